"""Every round is there or said to be missing; what is read is what was written."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import fuzz_journals as journals
import numpy as np
import pytest

import kvib
from kvib.journal import journalled, read, wal
from places import ROOT

COMMAND = ROOT / "tests/files/fuzz_journals.py"


def work(sampler, rounds, unheard=()):
    for _ in range(rounds):
        cohort = sampler.draw()
        if cohort.round not in unheard:
            sampler.update(cohort, np.ones(len(cohort)))


def begun(path, rounds=8, **options):
    """Eight rounds in 15 events, all heard but round 2; the last snapshot is after event 12."""
    options = {"snapshot_every": 3} | options
    sampler = journalled(path, kvib.KVib(), np.arange(1, 101), 5, **options)
    work(sampler, rounds, unheard=(2,))
    return sampler


def edited(path, *statements):
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()
    return path


TABLE = {
    "no round": ("DELETE FROM drawn WHERE round = 3", "one of 8 rounds is missing"),
    "no last round": ("DELETE FROM drawn WHERE round = 7", "one of 8 rounds is missing"),
    "another size": ("UPDATE drawn SET size = 6 WHERE round = 1", "a row of drawn does not match"),
    "another place": (
        "UPDATE drawn SET round = 8 WHERE round = 7",
        "a row of drawn does not match",
    ),
    "no budget": ("UPDATE drawn SET budget = NULL WHERE round = 1", "a row of drawn does not"),
    "the same twice": (
        "INSERT INTO drawn SELECT 8, event, size, budget, coefficients, crc FROM drawn LIMIT 1",
        "a row of drawn does not match",
    ),
    "no feedback": ("DELETE FROM heard WHERE round = 5", "feedback to one of 7 rounds is missing"),
    "other variance": ("UPDATE heard SET variance = 0", "a row of heard does not match"),
    "other norms": ("UPDATE heard SET norms = zeroblob(8)", "a row of heard does not match"),
    "no tip": ("DELETE FROM tip", "a row is missing"),
    "another tip": ("UPDATE tip SET rounds = 7", "a row of tip does not match its checksum"),
    "no last event": ("DELETE FROM event WHERE number = 15", "event 15 of 15 is missing"),
    "an older tip": ("DELETE FROM event WHERE number > 13", "event 14 of 15 is missing"),
    "version 1": ("PRAGMA user_version = 1", "does not say that it is of version 1"),
}
"""Of `table`, which reads no event."""


@pytest.mark.parametrize(("edit", "why"), TABLE.values(), ids=TABLE)
def test_numbers_of_rounds(tmp_path, edit, why):
    begun(tmp_path / "a").close()
    path = edited(tmp_path / "a", edit)
    for question in ("table", "participation", "rounds"):
        with pytest.raises(ValueError, match=why):
            list(getattr(read(path), question)())


def test_details_of_rounds(tmp_path):
    """Events before the last snapshot are missed too, though no process does them again."""
    begun(tmp_path / "a").close()
    path = edited(tmp_path / "a", "DELETE FROM event WHERE number = 3")
    for question in ("participation", "rounds"):
        with pytest.raises(ValueError, match="event 3 of 15 is missing"):
            list(getattr(read(path), question)())
    assert len(read(path).table().round) == 8
    begun(tmp_path / "b").close()
    path = edited(tmp_path / "b", "UPDATE event SET kind = 'update' WHERE number = 3")
    with pytest.raises(ValueError, match="event 3 update 1 does not match its checksum"):
        read(path).participation()


def test_clients(tmp_path):
    options = {"snapshot_every": 100, "keys": [f"c{k}" for k in range(100)]}
    with begun(tmp_path / "a", **options) as sampler:
        sampler.join([1.0], ["new"])
        assert len(read(tmp_path / "a").keys()) == 101
    for name, edit, why in (
        ("b", "UPDATE event SET kind = 'jo1n' WHERE number = 16", "event 16 jo1n None does not"),
        ("c", "DELETE FROM event WHERE number = 16", "event 16 of 16 is missing"),
        ("d", "UPDATE array SET shape = '[99]' WHERE name = 'now/weights'", "array now/weights"),
    ):
        path = edited(shutil.copy(tmp_path / "a", tmp_path / name), edit)
        for question in ("about", "participation", "keys")[: 2 if name == "d" else 3]:
            with pytest.raises(ValueError, match=why):
                answered(read(path), question)


def answered(history, question):
    answer = getattr(history, question)
    return answer() if callable(answer) else answer


def test_cohorts_that_wait(tmp_path):
    begun(tmp_path / "a").close()
    edited(tmp_path / "a", "DELETE FROM waiting WHERE round = 2")
    with (
        journalled(tmp_path / "a") as sampler,
        pytest.raises(ValueError, match="the cohort of round 2 is missing"),
    ):
        sampler.outstanding()


def test_what_is_removed_is_not_missing(tmp_path):
    with begun(tmp_path / "a", rounds=20, keep=4) as sampler:
        history = read(tmp_path / "a")
        assert history.about.removed > 10
        assert len(history.table().round) == 20
        assert history.participation().sum() == history.table().size.sum()
        assert sampler.outstanding() == []
        assert len(list(history.rounds())) == 20 - history.about.removed


# The log


def crashed(tmp_path):
    """What a crash leaves: nothing but the beginning is in the file itself."""
    sampler = begun(tmp_path / "a")
    (tmp_path / "left").mkdir()
    for name in ("a", "a-wal"):
        shutil.copy(tmp_path / name, tmp_path / "left" / name)
    sampler.close()
    return tmp_path / "left" / "a"


def test_a_damaged_log_is_refused_and_left_alone(tmp_path):
    path = crashed(tmp_path)
    log = Path(f"{path}-wal")
    whole, rng = log.read_bytes(), random.Random(0)
    assert read(path).about.rounds == 8
    for at in [*range(0, 32, 5), 40, 60, *(rng.randrange(len(whole) // 2) for _ in range(20))]:
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        log.write_bytes(broken)
        for attempt in (read, journalled):
            with pytest.raises(ValueError, match="its log a-wal is damaged"):
                attempt(path)
        assert log.read_bytes() == broken


def test_a_log_that_a_crash_cut_off_is_whole(tmp_path):
    """Wherever the last transaction ends, and whatever an earlier crash left behind it."""
    path = crashed(tmp_path)
    log = Path(f"{path}-wal")
    whole, frame = log.read_bytes(), 24 + 4096
    ends = [at for at in range(32, len(whole), frame) if whole[at + 4 : at + 8] != bytes(4)]
    last, before = ends[-1] + frame, ends[-2] + frame
    assert last - before > frame
    for torn in (
        whole[:before],
        whole[: before + 99],
        whole[: last - 99],
        whole[:before] + bytes(frame) + whole[before + frame :],  # written in another order
        whole[:before] + bytes(frame) + whole[before + frame :] + whole[last - frame : last],
    ):
        log.write_bytes(torn)
        assert not wal.broken(log)
        with journalled(shutil.copytree(path.parent, tmp_path / "next") / "a") as sampler:
            assert sampler.recorder.file.last == 14
        shutil.rmtree(tmp_path / "next")


# Everything together


def test_mutations(tmp_path):
    done = subprocess.run(
        [sys.executable, COMMAND, "--mutations", "100", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name, identical, refused, earlier, *bad = done.stdout.splitlines()[-1].split()
    assert (name, bad) == ("all", ["0", "0"])
    assert int(identical) + int(refused) + int(earlier) == 100
    assert int(identical) > 10
    assert int(refused) > 40


def test_a_silent_difference_would_be_found(tmp_path):
    """The judge: answers that differ, and errors that are none of the documented ones."""
    whole = {"table": [1], "sampler": [2]}
    specimen = journals.Specimen("any", {}, [{"table": [0], "sampler": [2]}, whole])
    judged = journals.judged
    assert judged(specimen, whole, False).outcome == "identical"
    assert judged(specimen, whole | {"table": ValueError()}, False).outcome == "refused"
    assert judged(specimen, whole | {"table": [0]}, True).outcome == "earlier"
    assert judged(specimen, whole | {"table": [0]}, False) == ("SILENT", "table")
    found = judged(specimen, whole | {"table": KeyError("x")}, False)
    assert found == ("FOREIGN", json.dumps({"table": "KeyError('x')"}))

"""A journal's file is whole or refused, and what is refused is not changed."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from journal_crash import assert_same

import kvib
from journal import fill
from kvib.journal import journalled, read
from kvib.journal.records import decode, encode

DISK = Path(__file__).parent / "journal_disk.py"


def work(sampler, rounds):
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))


def begun(path, rounds=8, clients=100, **options):
    options = {"snapshot_every": 3} | options
    sampler = journalled(path, kvib.KVib(), np.arange(1, clients + 1), 5, **options)
    work(sampler, rounds)
    return sampler


def contents(folder):
    """Of all files that hold data; SQLite's shared memory (-shm) and empty ones do not."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.endswith("-shm")}
    return {name: data for name, data in files.items() if data}


def refused(path, match):
    before = contents(path.parent)
    for attempt in (journalled, read, lambda p: journalled(p, kvib.KVib(), np.ones(9), 3)):
        with pytest.raises(ValueError, match=match):
            attempt(path)
    assert contents(path.parent) == before


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"SQLite format 3\0", b"PK\x03\x04" + b"\0" * 3000, b"\0" * 5000],
    ids=["empty", "text", "a beginning", "zip", "zeros"],
)
def test_foreign_files(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    refused(path, "not a (whole )?kvib journal")
    assert not Path(f"{path}.lock").exists()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_other_databases(tmp_path, mode):
    path = tmp_path / "a"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute("CREATE TABLE event (number)")
    db.execute("INSERT INTO event VALUES (1)")
    db.commit()
    refused(path, "not a kvib journal but some other file; give another name")
    db.close()
    refused(path, "not a kvib journal but some other file; give another name")


def test_state_files_are_no_journals(tmp_path):
    kvib.Sampler(kvib.KVib(), np.ones(5), 2).save(tmp_path / "a")
    refused(tmp_path / "a", "not a whole kvib journal")


def test_later_versions(tmp_path):
    begun(tmp_path / "a").close()
    db = sqlite3.connect(tmp_path / "a")
    db.execute("PRAGMA user_version = 7")
    db.close()
    refused(tmp_path / "a", "journal version 7, this kvib reads up to 2: install the kvib that")


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere for the journal a; make it"):
        begun(tmp_path / "nowhere" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="no folder"):
        begun(tmp_path / "file" / "a")
    (tmp_path / "a.lock").mkdir()
    with pytest.raises(OSError, match=r"a\.lock cannot be read or written .*: make the file and"):
        begun(tmp_path / "a")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_reading_leaves_nothing_beside_a_closed_journal(tmp_path):
    begun(tmp_path / "a").close()
    before = names(tmp_path), (tmp_path / "a").read_bytes()
    history = read(tmp_path / "a")
    assert history.about.rounds == len(list(history.rounds())) == 8
    rounds = history.rounds()  # two at once: the last one tidies up
    next(rounds)
    history.table()
    assert "a-wal" in names(tmp_path)
    rounds.close()
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == before


def test_reading_leaves_the_files_of_a_writer_and_of_a_crash(tmp_path):
    sampler = begun(tmp_path / "a")
    (tmp_path / "crashed").mkdir()
    for name in ("a", "a-wal"):
        shutil.copy(tmp_path / name, tmp_path / "crashed" / name)
    before = contents(tmp_path / "crashed")
    assert read(tmp_path / "crashed" / "a").about.rounds == 8
    assert contents(tmp_path / "crashed") == before
    for rounds in (9, 10):
        work(sampler, 1)
        history = read(tmp_path / "a")
        assert history.about.rounds == len(list(history.rounds())) == rounds
        assert {"a-wal", "a-shm"} <= set(names(tmp_path))
    sampler.close()
    sampler = journalled(tmp_path / "a")  # a writer that has not written yet
    assert read(tmp_path / "a").about.rounds == 10
    work(sampler, 1)
    assert read(tmp_path / "a").about.rounds == 11
    sampler.close()


ASKING = """
import sys
from kvib.journal import read
while True:
    told = read(sys.argv[1]).table()
    assert (told.round == range(len(told.round))).all()
    print(len(told.round), flush=True)
"""


def test_reading_while_writers_come_and_go(tmp_path):
    """Whoever tidies up after reading must not take anything from who begins to write."""
    begun(tmp_path / "a", rounds=1).close()
    with subprocess.Popen(
        [sys.executable, "-c", ASKING, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        for _ in range(40):
            with journalled(tmp_path / "a") as sampler:
                work(sampler, 1)
        assert child.poll() is None
        child.kill()
        told = [int(line) for line in child.stdout.read().split()]
    assert told == sorted(told)
    assert told[-1] <= 41
    assert read(tmp_path / "a").about.rounds == 41


def test_truncated_anywhere(tmp_path):
    begun(tmp_path / "whole").close()
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "torn").mkdir()
    path = tmp_path / "torn" / "a"
    for length in [1, 99, 100, 4095, *range(4096, len(whole), 4096)]:
        path.write_bytes(whole[:length])
        refused(path, "not a (whole )?kvib journal")


def test_a_crashed_file_that_is_torn_too(tmp_path):
    """With events in the write-ahead log still: neither file is changed."""
    sampler = begun(tmp_path / "a", clients=10_000)
    torn = tmp_path / "torn"
    torn.mkdir()
    shutil.copy(tmp_path / "a-wal", torn / "a-wal")
    (torn / "a").write_bytes((tmp_path / "a").read_bytes()[:50_000])
    sampler.close()
    before = contents(torn)
    with pytest.raises(ValueError, match="not a whole kvib journal"):
        journalled(torn / "a")
    assert contents(torn) == before


def test_a_missing_event_is_noticed(tmp_path):
    for number in (10, 16):  # in the middle, and the last
        begun(tmp_path / str(number), snapshot_every=100).close()
        db = sqlite3.connect(tmp_path / str(number), isolation_level=None)
        db.execute("DELETE FROM event WHERE number = ?", (number,))
        db.close()
        with pytest.raises(ValueError, match=r"event \d+ of 16 is missing"):
            journalled(tmp_path / str(number))


def test_damage_found_later_is_named(tmp_path):
    with begun(tmp_path / "a", rounds=20, keep=100) as sampler:
        sampler.recorder.file._db.execute("UPDATE event SET payload = zeroblob(9) WHERE number = 1")
        with pytest.raises(ValueError, match="event 1 draw 0 does not match its checksum"):
            read(tmp_path / "a").participation()


def test_a_log_without_its_file(tmp_path):
    sampler = begun(tmp_path / "a")
    shutil.copy(tmp_path / "a-wal", tmp_path / "b-wal")
    sampler.close()
    with pytest.raises(ValueError, match=r"b-wal is left of a journal .* that is gone"):
        begun(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_a_killed_beginning_left_is_cleared(tmp_path):
    (tmp_path / "a.new").write_bytes(b"half")
    (tmp_path / "a.new-wal").write_bytes(b"half")
    begun(tmp_path / "a").close()
    assert sorted(os.listdir(tmp_path)) == ["a", "a.lock"]


def test_it_becomes_unwritable(tmp_path):
    """SQLite refuses to write (query_only): the sampler stops, the file is whole."""
    sampler, straight = begun(tmp_path / "a"), kvib.Sampler(kvib.KVib(), np.arange(1, 101), 5)
    work(straight, 8)
    cohort = sampler.draw()
    sampler.recorder.file._db.execute("PRAGMA query_only = ON")
    with pytest.raises(OSError, match=r"could not be written \(attempt to write a readonly"):
        sampler.update(cohort, np.ones(len(cohort)))
    with pytest.raises(OSError, match="free space or restore access"):
        sampler.draw()
    with journalled(tmp_path / "a") as again:
        straight.draw()
        assert_same(again, straight)
        again.update(cohort, np.ones(len(cohort)))


def in_a_thread(work):
    """What it raises, or None."""
    raised = []

    def caught():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_closed_by_another_thread(tmp_path):
    sampler = begun(tmp_path / "a")
    assert in_a_thread(sampler.close) is None
    journalled(tmp_path / "a").close()


def test_it_becomes_unwritable_in_a_thread(tmp_path):
    sampler = begun(tmp_path / "a")
    sampler.recorder.file._db.execute("PRAGMA query_only = ON")
    error = in_a_thread(sampler.draw)
    assert isinstance(error, OSError)
    assert "could not be written" in str(error)
    journalled(tmp_path / "a").close()


def test_full_in_a_snapshot(tmp_path):
    """As many pages as there are (max_page_count): the event is safe, the snapshot did not come."""
    sampler = journalled(tmp_path / "a", kvib.KVib(), np.arange(1, 50_001), 5, snapshot_every=2)
    work(sampler, 1)
    db = sampler.recorder.file._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + 3}")
    cohort = sampler.draw()
    with pytest.raises(OSError, match=r"could not be written \(database or disk is full\)"):
        sampler.update(cohort, np.ones(len(cohort)))
    with journalled(tmp_path / "a") as again:
        assert again.outstanding() == []
        again.update(cohort, np.ones(len(cohort)))
        work(again, 3)


def disk(folder, what, *before):
    command = [*before, sys.executable, "-W", "error", DISK, what, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_full_disk(tmp_path):
    assert "disk I/O error" in disk(tmp_path, "full")


def may_mount(folder):
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "kvib", str(folder)]
    return shutil.which("unshare") and not subprocess.run(mount, capture_output=True).returncode


def test_no_space_left_on_device(tmp_path):
    if not may_mount(tmp_path):
        pytest.skip("this system lets nobody mount a small file system")
    assert "database or disk is full" in disk(tmp_path, "small", "unshare", "-rm")


def test_read_only():
    with TemporaryDirectory() as folder:  # root becomes nobody, who cannot enter tmp_path
        Path(folder).chmod(0o755)
        told = disk(folder, "read-only")
        Path(folder).chmod(0o755)
    assert told.count("make the file and its folder accessible") == 2


INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4"]
ARRAYS = st.one_of(
    hnp.arrays(np.bool_, hnp.array_shapes(max_dims=2, min_side=0)),
    hnp.arrays(st.sampled_from(INTEGERS), hnp.array_shapes(min_dims=0, max_dims=2, min_side=0)),
    hnp.arrays(np.uint64, st.integers(0, 9), elements=st.integers(0, 2**63 - 1)),
    hnp.arrays(np.uint8, st.integers(0, 9)).map(lambda a: np.cumsum(a, dtype=np.int64)),
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, min_side=0)),
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=0, min_dims=0)),
)
VALUES = st.one_of(
    ARRAYS, st.none(), st.floats(allow_nan=False), st.integers(-(2**53), 2**53), st.text()
)


@given(record=st.dictionaries(st.text(), VALUES, max_size=4))
def test_records(record):
    again = decode(encode(record))
    assert set(again) == set(record)
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            assert again[name].shape == value.shape
            assert again[name].dtype == (np.int64 if value.dtype.kind in "iu" else value.dtype)
            assert np.array_equal(again[name], value, equal_nan=value.dtype.kind == "f")
        else:
            assert again[name] == value


@pytest.mark.parametrize("kind", [*INTEGERS[1:4], *INTEGERS[5:], "u8"])
def test_lists_of_clients_of_any_kind(tmp_path, kind):
    """The reopened sampler draws what the uninterrupted one draws."""
    straight = kvib.Sampler(kvib.KVib(), np.ones(6_000), 20)
    listed = np.array([3, 4_100, 5_999], kind)
    with journalled(tmp_path / "a", kvib.KVib(), np.ones(6_000), 20) as sampler:
        for one in (sampler, straight):
            for given in ({"absent": listed}, {"available": listed[::-1], "budget": 2}):
                cohort = one.draw(**given)
                one.update(cohort, np.ones(len(cohort)))
    with journalled(tmp_path / "a") as sampler:
        assert_same(sampler, straight)


def test_records_are_short():
    ids = np.sort(np.random.default_rng(0).choice(10**6, 1000, replace=False))
    assert len(encode({"ids": ids})) < 2_100
    assert len(encode({"mask": np.ones(10**6, bool)})) < 1_000


def test_bytes_per_drawn_client(tmp_path):
    """10^5 rounds of 1,000 clients must stay under 1.5 GB: 15 bytes each, the file's own included.

    `benchmarks/journal.py` builds the whole of it; here are 300 rounds, without the snapshot.
    """
    with journalled(tmp_path / "a", kvib.Uniform(), np.ones(10**6), 1000) as sampler:
        begun = (tmp_path / "a").stat().st_size
        fill(sampler, 300, 1000)
    assert (tmp_path / "a").stat().st_size - begun < 300 * 1000 * 13

"""Runs in their folders: stopped, killed, diverged, torn; played once, and the same every time."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny
from kvib.lab import folders
from kvib.lab import runs as lab_runs
from kvib.lab.collect import KEYS, collect
from kvib.lab.folders import read_rounds
from kvib.lab.pool import play_all
from kvib.lab.runs import Machine, RunOutcome, check, outcome, play
from kvib.lab.tables import load
from kvib.sim import LinearEngine
from kvib.sim.records import RAGGED, SCALARS

pl = pytest.importorskip("polars")
ONE = Machine(threads=1)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """An experiment, its runs and the folder where all of them are finished."""
    folder = tmp_path_factory.mktemp("played")
    given = tiny.experiment(folder)
    runs = list(given.runs())
    ends = play_all(runs, folder / "runs", ONE)
    assert all(end.finished and end.rounds == 5 for end in ends)
    return given, runs, folder / "runs"


def rounds_of(out, runs):
    return {run.name: read_rounds(out / run.experiment.name / run.name) for run in runs}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].equals(b[name], null_equal=True), name


def ages(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def copied(played, tmp_path):
    """One finished run, in a folder of its own to be damaged."""
    _, [run, *_], out = played
    folder = tmp_path / run.name
    folder.mkdir()
    for path in (out / "tiny" / run.name).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return run, folder


# What a folder holds


def test_a_run_folder(played):
    given, [run, *_], out = played
    folder = out / "tiny" / run.name
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "environment.json",
        "outcome.json",
        "rounds.parquet",
        "timings.npz",
    }
    config = json.loads((folder / "config.json").read_text())
    assert config == {"format": lab_runs.FORMAT, "label": "uniform", **run.config()}
    about = json.loads((folder / "environment.json").read_text())
    assert {"kvib", "commit", "python", "machine", "device", "numpy"} <= set(about)
    assert (about["device"], about["threads"]) == ("cpu", 1)
    ended = outcome(folder, run)
    assert (ended.rounds, ended.finished, ended.diverged) == (5, True, None)
    with np.load(folder / "timings.npz") as file:
        assert ended.seconds == pytest.approx(sum(file[name].sum() for name in file.files))
        assert all(len(file[name]) == given.rounds for name in file.files)


def test_rounds_of_a_run(played):
    _, runs, out = played
    for name, frame in rounds_of(out, runs).items():
        assert frame.columns == [*SCALARS, *RAGGED]
        assert frame["round"].to_list() == list(range(5))
        assert frame["clients"].to_list() == [len(ids) for ids in frame["ids"]]
        assert np.isfinite(frame["loss"].to_numpy()).all()
        for column, every in (("train_loss", 2), ("sampling_cost", 2), ("variance", 2)):
            measured = np.isfinite(frame[column].to_numpy())
            assert measured.tolist() == [t % every == 0 for t in range(5)], (name, column)


def test_finished_runs_are_not_repeated(played):
    _, runs, out = played
    before = ages(out)
    reported = []
    ends = play_all(runs, out, ONE, report=lambda run, rounds: reported.append((run.name, rounds)))
    assert [(end.rounds, end.finished) for end in ends] == [(5, True)] * 4
    assert reported == [(run.name, 5) for run in runs]
    again = play_all(runs, out, ONE, processes=2)
    assert again == ends
    assert ages(out) == before


def test_a_label_may_change_but_not_the_folder(played, tmp_path):
    """The label decides nothing: what was played under it stays valid."""
    run, folder = copied(played, tmp_path)
    renamed = replace(run, sampler=replace(run.sampler, label="UNIFORM"))
    assert renamed.name == run.name
    assert outcome(folder, renamed).finished


# Stopped and killed


@pytest.mark.parametrize("which", [0, 1], ids=["uniform", "K-Vib"])
def test_stopped_by_the_deadline_again_and_again(played, tmp_path, which):
    _, runs, out = played
    run = runs[which]
    folder = tmp_path / run.name
    for done in range(1, 5):
        ended = play(run, tmp_path, ONE, deadline=time.monotonic())
        assert (ended.rounds, ended.finished) == (done, False)
        assert outcome(folder, run) == ended
        assert (folder / "checkpoint.npz").exists()
        assert not (folder / "rounds.parquet").exists()
    ended = play(run, tmp_path, ONE)
    assert (ended.rounds, ended.finished) == (5, True)
    assert not (folder / "checkpoint.npz").exists()
    assert read_rounds(folder).equals(read_rounds(out / "tiny" / run.name), null_equal=True)
    with np.load(folder / "timings.npz") as file:
        assert all(len(file[name]) == 5 for name in file.files)


def test_nothing_is_begun_after_the_deadline(played, tmp_path):
    _, runs, _ = played
    for processes in (1, 2):
        ends = play_all(runs, tmp_path / str(processes), ONE, processes=processes, stop_after=0)
        assert ends == [RunOutcome(0, finished=False)] * 4
        assert not (tmp_path / str(processes)).exists()


def test_an_interrupt_costs_only_time(played, tmp_path):
    _, [run, *_], out = played

    def interrupt(rounds):
        if rounds == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(run, tmp_path, ONE, report=interrupt)
    assert not outcome(tmp_path / run.name, run).finished
    assert play(run, tmp_path, ONE).finished
    assert read_rounds(tmp_path / run.name).equals(
        read_rounds(out / "tiny" / run.name), null_equal=True
    )


def test_killed_while_the_table_is_written(played, tmp_path, monkeypatch):
    """The last checkpoint is still there: nothing is played again, only written."""
    _, [run, *_], out = played
    folder = tmp_path / run.name

    def torn(folder, rows):
        (folder / "rounds.tmp").write_bytes(b"torn")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lab_runs, "write_rounds", torn)
        with pytest.raises(KeyboardInterrupt):
            play(run, tmp_path, ONE)
    assert not outcome(folder, run).finished
    reported = []
    assert play(run, tmp_path, ONE, report=reported.append).finished
    assert reported == []
    assert read_rounds(folder).equals(read_rounds(out / "tiny" / run.name), null_equal=True)
    assert not list(folder.glob("*.tmp"))


LONG = ("rounds=300", "exact_every=1", "seeds=[0]")


def begin(folder, processes, changes=LONG):
    changes = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "kvib.cli", "run", "tiny.toml", *changes, "--out", "runs"]
    return subprocess.Popen(
        [*command, "--processes", str(processes)],
        cwd=folder,
        env=tiny.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def playing(folder, runs, since):
    """Whether all these runs were begun after this time."""
    files = [folder / run.name / "environment.json" for run in runs]
    return all(file.exists() and file.stat().st_mtime_ns > since for file in files)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_in_the_middle(tmp_path, processes):
    """SIGKILL of everything, with a checkpoint to go on from: the same tables in the end."""
    runs = list(tiny.experiment(tmp_path, *LONG).runs())
    play_all(runs, tmp_path / "straight", ONE)
    folder, begun = tmp_path / "runs/tiny", runs[:processes]
    stopped = [play(run, folder, ONE, deadline=time.monotonic() + 0.2) for run in begun]
    since = time.time_ns()
    with begin(tmp_path, processes) as child:
        until(lambda: playing(folder, begun, since))
        time.sleep(0.3)
        os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    for run, end in zip(begun, stopped, strict=True):
        assert not outcome(folder / run.name, run).finished
        assert 0 < end.rounds < 300
    with begin(tmp_path, processes) as child:
        said = child.stdout.read()
    assert child.returncode == 0, said
    same(rounds_of(tmp_path / "runs", runs), rounds_of(tmp_path / "straight", runs))
    assert not list(folder.rglob("checkpoint.npz"))


ENDLESS = ("rounds=1000000", "seeds=[0, 1, 2]")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_saves_and_stops(tmp_path, processes):
    """As a terminal sends it, to all processes; what waits in the queue is not begun."""
    runs = list(tiny.experiment(tmp_path, *ENDLESS).runs())
    folder, begun = tmp_path / "runs/tiny", runs[:processes]
    with begin(tmp_path, processes, ENDLESS) as child:
        until(lambda: playing(folder, begun, 0))
        time.sleep(1)
        os.killpg(child.pid, signal.SIGINT)
        pressed = time.monotonic()
        said = child.stdout.read()
    assert time.monotonic() - pressed < 20
    assert child.returncode == 130, said
    assert said.endswith(
        "tiny: 0 of 6 runs are finished, stopped; repeat the command to continue\n"
    )
    assert "Traceback" not in said
    assert {path.name for path in folder.iterdir()} == {run.name for run in begun}
    for run in begun:
        assert outcome(folder / run.name, run).rounds > 0
        assert (folder / run.name / "checkpoint.npz").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_ctrl_c_while_workers_begin(tmp_path):
    tiny.write(tmp_path)
    with begin(tmp_path, 2, ENDLESS) as child:
        until(lambda: len(children(child.pid)) >= 2)  # one is multiprocessing's own
        os.killpg(child.pid, signal.SIGINT)
        said = child.stdout.read()
    assert child.returncode == 130, said
    assert "Traceback" not in said


def test_stopped_by_the_caller(played, tmp_path):
    """After a round, with a checkpoint; the others are not begun."""
    _, runs, out = played
    done = []

    def report(run, rounds):
        done.append(rounds)

    ends = play_all(runs, tmp_path, ONE, stop=lambda: 2 in done, report=report)
    assert [end.rounds for end in ends] == [2, 0, 0, 0]
    assert (tmp_path / "tiny" / runs[0].name / "checkpoint.npz").exists()
    play_all(runs, tmp_path, ONE)
    same(rounds_of(tmp_path, runs), rounds_of(out, runs))


def children(pid):
    """Processes whose parent this is, Linux."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_workers_do_not_outlive_a_killed_command(tmp_path):
    """They would go on writing into the folders that the same command then goes on with."""
    runs = list(tiny.experiment(tmp_path, *LONG).runs())
    with begin(tmp_path, 2) as child:
        until(lambda: playing(tmp_path / "runs/tiny", runs, 0))
        workers = children(child.pid)
        child.kill()
    try:
        assert len(workers) >= 2
        until(lambda: not any(map(alive, workers)), seconds=5)
    finally:
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)


def test_environments_of_all_starts(tmp_path, monkeypatch):
    """What the first rounds were played with is not forgotten when another machine goes on."""
    run = next(tiny.experiment(tmp_path).runs())
    commits = iter(["first", "first", "second"])
    monkeypatch.setattr(lab_runs, "_commit", lambda: next(commits))
    path = tmp_path / run.name / "environment.json"
    told = []
    for stop in (True, True, False):
        play(run, tmp_path, ONE, deadline=time.monotonic() if stop else np.inf)
        told.append(json.loads(path.read_text()))
    assert [about["commit"] for about in told] == ["first"] * 3
    assert "later" not in told[1]
    [later] = told[2]["later"]
    assert (later["commit"], later["device"]) == ("second", "cpu")
    assert outcome(tmp_path / run.name, run).finished


# Many at once


def test_two_processes_give_the_same_tables_as_one(played, tmp_path):
    given, runs, out = played
    reported, before = {}, dict(os.environ)
    ends = play_all(
        runs,
        tmp_path,
        ONE,
        processes=2,
        report=lambda run, rounds: reported.update({run.name: rounds}),
    )
    assert [(end.rounds, end.finished) for end in ends] == [(5, True)] * 4
    assert reported == {run.name: 5 for run in runs}
    same(rounds_of(tmp_path, runs), rounds_of(out, runs))
    a, b = (collect(given, runs, o, tmp_path / "table") for o in (out, tmp_path))
    assert a.table.equals(b.table, null_equal=True)
    assert dict(os.environ) == before


def test_words_that_come_late_turn_nothing_back(played, tmp_path, monkeypatch):
    """Words of workers and their results come by two ways, and either may be the first."""
    _, runs, _ = played
    monkeypatch.setattr("kvib.lab.pool._queued", lambda _: [(k, 1) for k in range(len(runs))])
    reported = {}
    play_all(
        runs,
        tmp_path,
        ONE,
        processes=2,
        report=lambda run, rounds: reported.update({run.name: rounds}),
    )
    assert reported == {run.name: 5 for run in runs}


FAILING = """
from dataclasses import dataclass
import kvib

@dataclass(frozen=True)
class Failing(kvib.Uniform):
    def observe(self, state, cohort, feedback):
        if cohort.round == 2:
            raise ValueError("seen enough")
        return state
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_fails_says_so(tmp_path, processes):
    (tmp_path / "failing.py").write_text(FAILING)
    line = '{label = "a", policy = "failing.py:Failing", procedure = "independent"}'
    runs = list(tiny.experiment(tmp_path, f"samplers=[{line}]").runs())
    with pytest.raises(ValueError, match="seen enough"):
        play_all(runs, tmp_path / "runs", ONE, processes=processes)
    assert not any(outcome(tmp_path / "runs/tiny" / run.name, run).finished for run in runs[:1])


FULL = """
import os
""" + FAILING.replace("cohort.round == 2", "cohort.round == 2 and 'FULL' in os.environ").replace(
    'ValueError("seen enough")', 'RuntimeError("CUDA out of memory. 5 GiB")'
)
TWO = """samplers=[
    {label = "large", policy = "failing.py:Failing", procedure = "independent"},
    {label = "small", policy = "Uniform", procedure = "independent"},
]"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_without_room_does_not_end_the_others(tmp_path, monkeypatch, processes):
    monkeypatch.setenv("FULL", "yes")
    (tmp_path / "failing.py").write_text(FULL)
    runs = list(tiny.experiment(tmp_path, TWO).runs())
    ends = play_all(runs, tmp_path / "runs", ONE, processes=processes)
    for run, end in zip(runs, ends, strict=True):
        small = run.sampler.label == "small"
        assert end.finished == small
        assert end.short == (None if small else "CUDA out of memory. 5 GiB")
    monkeypatch.delenv("FULL")
    again = play_all(runs, tmp_path / "runs", ONE, processes=2)
    assert all(end.finished and end.short is None for end in again)


def test_an_engine_goes_before_the_next_comes(tmp_path, monkeypatch):
    """For the same task and training it stays; two would hold the memory of two."""
    alive, most = weakref.WeakSet(), []

    class Watched(LinearEngine):
        def __init__(self, *given):
            alive.add(self)
            most.append(len(alive))
            super().__init__(*given)

    monkeypatch.setattr("kvib.sim.engines.linear.LinearEngine", Watched)
    rates = "local.learning_rates=[0.01, 0.02]"
    runs = list(tiny.experiment(tmp_path, rates, "seeds=[0]").runs())
    play_all(runs, tmp_path / "runs", ONE)
    assert len(runs) == 4
    assert most == [1, 1]


@pytest.mark.parametrize("processes", [1, 2])
def test_runs_without_time_keep_their_rounds(played, tmp_path, processes):
    _, runs, _ = played
    play(runs[1], tmp_path / "tiny", ONE, deadline=time.monotonic())
    ends = play_all(runs, tmp_path, ONE, processes=processes, stop_after=0)
    assert [end.rounds for end in ends] == [0, 1, 0, 0]


# Diverged


def test_a_diverging_run_is_recorded_and_others_go_on(played, tmp_path):
    given = tiny.experiment(tmp_path, "local.learning_rates=[1e38, 0.02]", "seeds=[0]")
    runs = list(given.runs())
    ends = play_all(runs, tmp_path, ONE)
    assert [(end.rounds, end.finished) for end in ends] == [(0, True)] * 2 + [(5, True)] * 2
    for end in ends[:2]:
        assert "diverged in round 0" in end.diverged
        assert "checkpoint" not in end.diverged  # there is none
    assert [end.diverged for end in ends[2:]] == [None] * 2
    before = ages(tmp_path)
    assert play_all(runs, tmp_path, ONE) == ends
    assert ages(tmp_path) == before
    results = collect(given, runs, tmp_path, tmp_path / "table")
    assert results.table["learning_rate"].unique().to_list() == [0.02]
    told = load(tmp_path / "table").about["runs"]
    assert [bool(told[run.name]["diverged"]) for run in runs] == [True, True, False, False]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_rounds_before_the_divergence_are_kept(tmp_path):
    given = tiny.experiment(
        tmp_path, "server.options.momentum=1e9", "rounds=12", "seeds=[0]", "exact_every=1"
    )
    runs = list(given.runs())
    ends = play_all(runs, tmp_path, ONE)
    for run, end in zip(runs, ends, strict=True):
        assert end.finished
        assert 0 < end.rounds < 12
        assert f"in round {end.rounds}" in end.diverged
        frame = read_rounds(tmp_path / "tiny" / run.name)
        assert frame["round"].to_list() == list(range(end.rounds))
        assert not (tmp_path / "tiny" / run.name / "checkpoint.npz").exists()
    table = collect(given, runs, tmp_path, tmp_path / "table").table
    assert len(table) == sum(end.rounds for end in ends)


def test_all_diverged_at_once(tmp_path):
    """A table without rows still has its columns, so that figures and claims can read it."""
    given = tiny.experiment(tmp_path, "local.learning_rates=[1e38]")
    runs = list(given.runs())
    play_all(runs, tmp_path, ONE)
    table = collect(given, runs, tmp_path, tmp_path / "table").table
    assert len(table) == 0
    assert table.columns[: len(KEYS)] == KEYS


# Folders that are not this run's


def test_folders_of_another_configuration(played, tmp_path):
    run, folder = copied(played, tmp_path)
    other = replace(run, experiment=replace(run.experiment, rounds=6, exact_every=1))
    for ask in (lambda: outcome(folder, other), lambda: play(other, tmp_path, ONE)):
        with pytest.raises(
            ValueError,
            match=r"is of another configuration \(rounds, exact_every differ\); give another --out",
        ):
            ask()
    assert outcome(folder, run).finished


@pytest.mark.parametrize(("key", "other"), [("engine", "torch"), ("precision", "bf16")])
def test_folders_of_another_engine_or_precision(played, tmp_path, key, other):
    """They change the records, if only in the last digits; folders that do not say are trusted."""
    run, folder = copied(played, tmp_path)
    elsewhere = replace(run, experiment=replace(run.experiment, **{key: other}))
    with pytest.raises(ValueError, match=rf"is of another configuration \({key} differ\); give"):
        outcome(folder, elsewhere)
    path = folder / "environment.json"
    about = json.loads(path.read_text())
    del about[key]
    path.write_text(json.dumps(about))
    assert outcome(folder, elsewhere).finished


def test_folders_of_an_edited_policy(tmp_path):
    """Where it lies is of no matter, what it says is."""
    line = '{label = "a", policy = "failing.py:Failing", procedure = "independent"}'
    runs = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "failing.py").write_text(FAILING)
        changes = (f"samplers=[{line}]", "rounds=2", "seeds=[0]")
        runs += tiny.experiment(tmp_path / place, *changes).runs()
    play(runs[0], tmp_path, ONE)
    assert outcome(tmp_path / runs[1].name, runs[1]).finished
    (tmp_path / "there/failing.py").write_text(FAILING.replace("seen enough", "enough"))
    with pytest.raises(ValueError, match=r"another configuration \(sampler differ\)"):
        outcome(tmp_path / runs[1].name, runs[1])


def test_folders_of_another_version(played, tmp_path):
    run, folder = copied(played, tmp_path)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for version in (0, 2, "1", None):
        path.write_text(json.dumps({**config, "format": version}))
        with pytest.raises(ValueError, match="is of another version of kvib; give another --out"):
            outcome(folder, run)
    del config["format"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is of another version"):
        outcome(folder, run)


def test_another_version_may_end_otherwise(played, tmp_path):
    """Do not tell people to remove what another version understands."""
    run, folder = copied(played, tmp_path)
    for name, more in (("config.json", {"format": 2}), ("outcome.json", {"resumed": 3})):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **more}))
    with pytest.raises(ValueError, match="is of another version"):
        outcome(folder, run)


@pytest.mark.parametrize("name", ["config.json", "environment.json", "outcome.json"])
@pytest.mark.parametrize("content", ['{"format": 1, ', "", "[]", "null"])
def test_torn_folders(played, tmp_path, name, content):
    run, folder = copied(played, tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=r"is not a whole run folder .*; remove it"):
        outcome(folder, run)


def test_folders_whose_sampler_is_none(played, tmp_path):
    run, folder = copied(played, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for junk in (3, {"policy": 3}):
        (folder / "config.json").write_text(json.dumps({**config, "sampler": junk}))
        with pytest.raises(ValueError, match=r"another configuration \(sampler differ\)"):
            outcome(folder, run)


@pytest.mark.parametrize("name", ["rounds.parquet", "environment.json"])
def test_finished_folders_that_lost_a_file(played, tmp_path, name):
    given, runs, out = played
    shutil.copytree(out / "tiny", tmp_path / "tiny")
    path = tmp_path / "tiny" / runs[1].name / name
    said = rf"{path.parent} is not a whole run folder \(.*{name}.*; remove it"
    for content in (b"junk", None):
        path.write_bytes(content) if content else path.unlink()
        with pytest.raises(ValueError, match=said):
            collect(given, runs, tmp_path, tmp_path / "table")


def test_folders_not_begun(played, tmp_path):
    run = played[1][0]
    assert outcome(tmp_path / "nowhere", run) is None
    (tmp_path / "empty").mkdir()
    assert outcome(tmp_path / "empty", run) is None


# Tables


def test_rounds_of_an_older_version(played, tmp_path):
    """It had fewer columns: what it did not measure is as if not measured."""
    _, folder = copied(played, tmp_path)
    whole = read_rounds(folder)
    whole.drop("quality", "cut").write_parquet(folder / "rounds.parquet")
    frame = read_rounds(folder)
    assert frame.columns == whole.columns
    assert frame["quality"].is_nan().all()
    assert frame.drop("quality").equals(whole.drop("quality"), null_equal=True)


def test_without_a_table_library(played, tmp_path, monkeypatch):
    """A machine with NumPy alone writes rounds.npz; here both read the same."""
    given, runs, out = played
    with monkeypatch.context() as patched:
        patched.setattr(folders, "find_spec", lambda _: None)
        play_all(runs, tmp_path, ONE)
    for run in runs:
        files = {path.name for path in (tmp_path / "tiny" / run.name).iterdir()}
        assert "rounds.npz" in files
        assert "rounds.parquet" not in files
    same(rounds_of(tmp_path, runs), rounds_of(out, runs))
    before = ages(tmp_path)
    assert all(end.finished for end in play_all(runs, tmp_path, ONE))
    assert ages(tmp_path) == before
    a, b = (collect(given, runs, o, tmp_path / "table") for o in (out, tmp_path))
    assert a.table.equals(b.table, null_equal=True)


def test_collect_and_load(played, tmp_path):
    given, runs, out = played
    made = collect(given, runs, out, tmp_path / "deep/er/tiny")
    loaded = load(tmp_path / "deep/er/tiny")
    assert loaded.table.equals(made.table, null_equal=True)
    assert loaded.about == json.loads(json.dumps(made.about))
    assert loaded.labels == ["uniform", "K-Vib"]
    table = loaded.table
    assert table.columns[: len(KEYS)] == KEYS
    assert len(table) == 4 * 5
    assert table.select("label", "seed").unique().sort("label", "seed").rows() == [
        ("K-Vib", 0),
        ("K-Vib", 1),
        ("uniform", 0),
        ("uniform", 1),
    ]
    assert "variance_error" not in table.columns or not table["variance_error"].is_null().all()
    assert sum(loaded.about["sizes"]) == 32_417
    assert loaded.about["sizes"] == sorted(loaded.about["sizes"], reverse=True)
    assert loaded.about["experiment"]["rounds"] == 5
    assert set(loaded.about["runs"]) == {run.name for run in runs}
    frame = read_rounds(out / "tiny" / runs[1].name)
    part = table.filter(pl.col("label") == "K-Vib", pl.col("seed") == 0)
    regret = (frame["sampling_cost"] - frame["optimal_sampling_cost"]).to_numpy()
    np.testing.assert_allclose(
        part["regret"].cast(pl.Float64).fill_null(np.nan).to_numpy(), regret, rtol=1e-6
    )
    assert part["loss"].to_numpy() == pytest.approx(frame["loss"].to_numpy(), rel=1e-6)


def test_the_same_runs_give_the_same_files(played, tmp_path):
    given, runs, out = played
    for name in "ab":
        collect(given, runs, out, tmp_path / name)
    for suffix in (".json", ".parquet"):
        a, b = (tmp_path / f"{name}{suffix}" for name in "ab")
        assert a.read_bytes() == b.read_bytes()


def test_names_with_a_dot(played, tmp_path):
    """lr-0.1.toml and lr-0.2.toml are two experiments."""
    given, runs, out = played
    collect(given, runs, out, tmp_path / "lr-0.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lr-0.1.json", "lr-0.1.parquet"]
    assert len(load(tmp_path / "lr-0.1").table) == 20


STRAGGLERS = """
[[samplers]]
label = "learning"
policy = "Forecast"
procedure = "independent"
response = "estimated"
availability = "ignored"

[[samplers]]
label = "average"
policy = "Uniform"
response = "ignored"
availability = "ignored"
estimator = "self_normalised"
"""


@pytest.mark.filterwarnings("ignore:cool_down")
def test_an_experiment_with_stragglers(tmp_path):
    """Stopped and continued it is the same; who ignores silence on purpose is not warned."""
    given = tiny.experiment(
        tmp_path,
        "response={first = 0.2, last = 0.6, by = 'size'}",
        "availability=0.7",
        "cool_down=2",
        "rounds=6",
        "budgets=[20]",
        "seeds=[0]",
        text=tiny.TEXT + STRAGGLERS,
    )
    runs = list(given.runs())
    play_all(runs, tmp_path / "straight", ONE)
    for run in runs:
        for _ in range(given.rounds):
            play(run, tmp_path / "stopped" / "tiny", ONE, deadline=time.monotonic())
    straight = rounds_of(tmp_path / "straight", runs)
    same(straight, rounds_of(tmp_path / "stopped", runs))
    for frame in straight.values():
        assert (frame["answered"] < frame["clients"]).all()
        assert (frame["clients"] <= frame["available"]).all()
        assert (frame["available"] < 100).all()
    collected = collect(given, runs, tmp_path / "straight", tmp_path / "results" / "tiny").table
    known = collected.filter(pl.col("bias").is_not_null())["label"].unique().to_list()
    assert sorted(known) == ["K-Vib", "learning", "uniform"]


def test_seeds_of_any_size(tmp_path):
    given = tiny.experiment(tmp_path, "seeds=[0, 3000000000]", "rounds=2")
    runs = list(given.runs())
    play_all(runs, tmp_path, ONE)
    table = collect(given, runs, tmp_path, tmp_path / "table").table
    assert sorted(table["seed"].unique().to_list()) == [0, 3_000_000_000]


def test_unfinished_runs(played, tmp_path):
    """Not collected, unless one asks for a part: then the table says what is missing."""
    given, runs, _ = played
    for partial in (False, True):
        with pytest.raises(ValueError, match=rf"tiny: 4 runs are not finished \({runs[0].name}, …"):
            collect(given, runs, tmp_path / "nowhere", tmp_path / "table", partial)
    for run in runs[:2]:
        play(run, tmp_path / "tiny", ONE)
    play(runs[2], tmp_path / "tiny", ONE, deadline=time.monotonic())
    with pytest.raises(ValueError, match="tiny: 2 runs are not finished"):
        collect(given, runs, tmp_path, tmp_path / "table")
    assert not (tmp_path / "table.parquet").exists()
    part = collect(given, runs, tmp_path, tmp_path / "table", partial=True)
    assert part.about["missing"] == [run.name for run in runs[2:]]
    assert set(part.about["runs"]) == {run.name for run in runs[:2]}
    assert part.table["seed"].unique().to_list() == [0]


def test_runs_collected_before_are_kept(played, tmp_path):
    """A sampler or a seed added to an experiment does not cost the runs that were played."""
    given, runs, out = played
    whole = collect(given, runs, out, tmp_path / "table")
    for run in runs[2:]:
        shutil.copytree(out / "tiny" / run.name, tmp_path / "some" / "tiny" / run.name)
    again = collect(given, runs, tmp_path / "some", tmp_path / "table", partial=True)
    assert again.about["missing"] == []
    assert again.about["runs"] == whole.about["runs"]
    assert again.table.equals(whole.table, null_equal=True)
    other = replace(given, rounds=6)
    with pytest.raises(ValueError, match=r"another configuration \(rounds differ\); play all"):
        collect(other, runs, tmp_path / "nowhere", tmp_path / "table", partial=True)


@pytest.fixture
def collected(played, tmp_path):
    given, runs, out = played
    collect(given, runs, out, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
def test_missing_and_torn_results(collected, suffix):
    path = collected.with_suffix(suffix)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"tiny are not whole results .*; make them again"):
            load(collected)
    path.unlink()
    with pytest.raises(
        ValueError, match=r"no results at .*tiny; make them with kvib run, or give another --res"
    ):
        load(collected)


def test_results_of_another_format(collected):
    path = collected.with_suffix(".json")
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "format": 2}))
    with pytest.raises(ValueError, match=r"tiny\.json is of format 2, this kvib reads 1; make"):
        load(collected)
    for content in ("[]", "null"):
        path.write_text(content)
        with pytest.raises(ValueError, match="tiny"):
            load(collected)


# What only the task can tell


def test_budgets_above_the_number_of_clients(tmp_path):
    check(tiny.experiment(tmp_path, "budgets=[0.5, 100]"))
    for budget in ("101", "0", "-1", "nan", "inf"):
        given = tiny.experiment(tmp_path, f"budgets=[5, {budget}]")
        with pytest.raises(
            ValueError,
            match=rf"budgets: {budget} is not between 0 and the 100 clients of synthetic; change",
        ):
            check(given)


@pytest.mark.parametrize("device", ["abacus", "cuda:99", ""])
def test_devices_that_are_not_here(tmp_path, device):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here: .*; leave it"):
        check(tiny.experiment(tmp_path), Machine(device))
    check(tiny.experiment(tmp_path), Machine("cpu"))


def test_tasks_that_are_not_here(tmp_path):
    given = tiny.experiment(tmp_path, "task=nowhere.npz")
    with pytest.raises(ValueError, match=r"'nowhere\.npz' is not one of synthetic, .*, nor a"):
        check(given)

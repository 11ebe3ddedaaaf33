"""A machine with nothing but NumPy and torch plays the runs; here they are collected."""

import json
import subprocess
import sys
import time

import pytest

import tiny
from kvib.lab.collect import collect
from kvib.lab.pool import play_all
from kvib.lab.runs import Machine, play
from kvib.sim import prepared, synthetic
from paper import variances
from places import ROOT

pytest.importorskip("torch")
pl = pytest.importorskip("polars")

ONE = Machine(threads=1)
SCRIPT = ROOT / "experiments/device.py"
TEXT = (
    tiny.TEXT.replace("rounds = 5", "rounds = 3")
    .replace("budgets = [5]", "budgets = [2]")
    .replace("seeds = [0, 1]", 'seeds = [0]\nengine = "torch"')
)
BARE = """
import runpy, sys
absent = ["polars", "numba", "typer", "rich", "matplotlib", "scipy", "datasets"]
sys.modules.update(dict.fromkeys(absent))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def device(folder, *words, bare=False, given="tiny.toml"):
    program = ["-c", BARE, str(SCRIPT)] if bare else [str(SCRIPT)]
    places = ("--runs", "runs", "--tasks", "tasks", "--device", "cpu", "--threads", "1")
    return subprocess.run(
        [sys.executable, *program, given, *places, *words],
        cwd=folder,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The same runs played here, and their table."""
    folder = tmp_path_factory.mktemp("here")
    given = tiny.experiment(folder, text=TEXT)
    runs = list(given.runs())
    play_all(runs, folder / "runs", ONE)
    return given, runs, collect(given, runs, folder / "runs", folder / "table").table


@pytest.mark.parametrize("bare", [False, True], ids=["as it is here", "NumPy and torch alone"])
def test_runs_of_the_device_are_collected_here(here, tmp_path, bare):
    given, runs, table = here
    tiny.write(tmp_path, TEXT)
    done = device(tmp_path, bare=bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("2 of 2 runs are finished")
    names = {path.name for path in (tmp_path / "runs/tiny" / runs[0].name).iterdir()}
    rounds = "rounds.npz" if bare else "rounds.parquet"
    assert names == {"config.json", "environment.json", "outcome.json", "timings.npz", rounds}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    words = ("run", "tiny.toml", "--out", "runs", "--results", "results")
    back = tiny.kvib(*words, "--processes", "1", cwd=tmp_path)
    assert (back.returncode, back.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
    found = pl.read_parquet(tmp_path / "results/tiny.parquet")
    assert found.equals(table, null_equal=True)
    assert given.rounds * len(runs) == len(found)


def test_runs_go_on_elsewhere(here, tmp_path):
    """Begun here, finished there from a prepared task: as if played in one place."""
    _, runs, table = here
    (tmp_path / "tasks").mkdir()
    prepared.prepare(synthetic(), tmp_path / "tasks/synthetic.npz")
    given = tiny.experiment(tmp_path, text=TEXT)
    for run in runs:
        ended = play(run, tmp_path / "runs/tiny", ONE, deadline=time.monotonic())
        assert (ended.rounds, ended.finished) == (1, False)
    done = device(tmp_path, "--stop-after", "0", bare=True)
    assert "0 of 2 runs are finished" in done.stdout
    done = device(tmp_path, bare=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 runs are finished" in done.stdout
    found = collect(given, runs, tmp_path / "runs", tmp_path / "table").table
    assert found.equals(table, null_equal=True)


def test_changes_and_diverged_runs(tmp_path):
    tiny.write(tmp_path, TEXT)
    words = ("--set", "local.learning_rates=[1e38]", "--set", "rounds=2")
    done = device(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 runs are finished" in done.stdout
    assert done.stdout.count("diverged in round 0") == 2


def test_experiments_are_found_by_name(tmp_path):
    """In the folder of the script, wherever it is called."""
    done = device(tmp_path, given="femnist-v9")
    assert done.returncode == 2
    assert "experiment: 'femnist-v9' is not one of beyond-budgets, " in done.stderr
    prepared.prepare(synthetic(), tmp_path / "synthetic.npz")
    words = ("--tasks", str(tmp_path), "--set", "rounds=2", "--set", "seeds=[0]")
    done = device(tmp_path, *words, given="beyond-synthetic-500")
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 of 3 runs are finished" in done.stdout
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["beyond-synthetic-500"]


def test_a_device_that_is_not_there(tmp_path):
    tiny.write(tmp_path, TEXT)
    done = device(tmp_path, "--device", "abacus")
    assert done.returncode == 2
    assert "device 'abacus' cannot be used here" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_noise_of_procedures_is_measured_on_the_same_updates(tmp_path):
    """The script for a GPU, at tiny size: without memory there is no difference to estimate."""
    script = ROOT / "experiments/procedures.py"
    given = ["synthetic", "--rounds", "4", "--every", "3", "--draws", "200", "--out", tmp_path]
    given += ["--learning"]
    subprocess.run([sys.executable, script, *map(str, given)], check=True, timeout=120)
    told = json.loads((tmp_path / "procedures-synthetic.json").read_text())
    assert str(tmp_path) not in json.dumps(told)  # results say nothing about folders
    first, later = told["rows"]
    assert first["difference"] == first["independent"]
    assert later["beta"] > 0
    assert later["difference"] < later["independent"]
    assert 0.7 < later["pivotal"] / later["independent"] < 1.3
    found = variances.load(tmp_path / "procedures-synthetic")
    assert found.ways == variances.WAYS
    assert first["difference, learning"] == first["independent"]  # nothing is remembered yet
    assert later["difference, learning"] < later["independent"]
    assert later["difference, learning"] != later["difference"]  # it has its own probabilities

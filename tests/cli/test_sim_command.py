"""`kvib simulate`: what it takes, what it refuses, what it leaves."""

import csv
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tiny
from kvib.sim import records

pytest.importorskip("typer")


def simulate(folder, *words):
    return tiny.kvib("simulate", "synthetic", "--out", "run", *words, cwd=folder)


def test_records_as_a_table_and_in_python(tmp_path):
    words = ("--rounds", "3", "--evaluate-every", "2", "--csv", "rounds.csv")
    done = simulate(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    with open(tmp_path / "rounds.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kept = records.read(tmp_path / "run")
    assert [int(row["round"]) for row in rows] == [record.round for record in kept] == [0, 1, 2]
    for row, record in zip(rows, kept, strict=True):
        np.testing.assert_equal(float(row["loss"]), record.loss)
        assert list(map(int, row["ids"].split())) == record.ids.tolist()
        assert list(map(float, row["norms"].split())) == record.norms.tolist()
    # Of a finished run too.
    assert simulate(tmp_path, *words, "--csv", "again.csv").returncode == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "rounds.csv").read_text()


@pytest.mark.parametrize(
    "policy", ["KVib(rounds=3, gain=2.0)", "forecast", "recommended", "Uniform"]
)
def test_policies_as_they_are_written_everywhere(tmp_path, policy):
    done = simulate(tmp_path, "--rounds", "2", "--policy", policy)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 rounds" in done.stdout


def test_the_recommended_combination_is_the_recommended_one(tmp_path):
    words = ("--policy", "recommended", "--procedure", "pivotal")
    assert simulate(tmp_path, *words, "--rounds", "2").returncode == 0
    other = simulate(tmp_path, "--policy", "Forecast", "--rounds", "2")
    assert "guard, sketch differ" in other.stderr


def test_stragglers(tmp_path):
    words = ("--response", "0.5", "--availability", "0.6", "--cool-down", "1", "--exact-every", "1")
    done = simulate(tmp_path, "--rounds", "4", *words)
    assert (done.returncode, done.stderr) == (0, "")
    kept = records.read(tmp_path / "run")
    assert sum(r.answered for r in kept) < sum(r.clients for r in kept)
    assert all(r.available < 100 for r in kept)
    assert all(np.isfinite([r.variance, r.sampling_cost, r.bias]).all() for r in kept)
    other = simulate(tmp_path, "--rounds", "4", "--response", "0.5")
    assert "true availability" in " ".join(other.stderr.split())


REFUSED = {
    "no probability": (("--response", "1.5"), "response must be probabilities from .* to 1"),
    "never there": (("--availability", "0"), "availability must be probabilities from .* to 1"),
    "waiting": (("--cool-down", "-1"), "cool_down=-1 is not a number of rounds"),
    "no rounds": (("--rounds", "0"), "--rounds 0: give at least 1"),
    "rounds below none": (("--rounds", "-3"), "--rounds -3: give at least 1"),
    "exact metrics": (("--exact-every", "-1"), "--exact-every -1: give at least 0"),
    "no time": (("--stop-after", "-1"), "--stop-after -1: give a positive number"),
    "no memory": (("--chunk-bytes", "0"), "--chunk-bytes 0: give a positive number"),
    "precision for nobody": (("--precision", "bf16"), "'bf16' is of torch, .*; give a device too"),
    "precision": (("--precision", "half", "--device", "cpu"), "'half' is not one of float32, tf32"),
    "device": (("--device", "gpu"), "device 'gpu' cannot be used here: .* cpu, cuda, mps, xpu"),
    "policy": (("--policy", "KVip"), r"policy 'KVip' is not one of .*did you mean KVib\?"),
    "its options": (("--policy", "KVib(round=3)"), r"'KVib\(round=3\)': KVib has no option round"),
    "procedure": (("--procedure", "pivot"), r"'pivot' is not one of .*; did you mean pivotal\?"),
    "a table nowhere": (("--csv", "nodir/a.csv"), "--csv nodir/a.csv: there is no folder nodir"),
    "a table that is a folder": (("--csv", "."), r"--csv \. is a folder; give the name of a file"),
    "a file": (("--out", __file__), "is a file; give the name of a folder"),
    "in a file": (("--out", f"{__file__}/run"), "is a file; give the name of a folder"),
    "Ray's options": (("--workers", "2"), "are of the Ray engine: --engine ray"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nonsense(tmp_path, what):
    words, message = REFUSED[what]
    done = simulate(tmp_path, *words)
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_line_a_minute_where_there_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("kvib.cli.screen.A_MINUTE", 0.0)
    done = simulate(tmp_path, "--rounds", "3")
    said = done.stderr.splitlines()
    assert len(said) == 3
    assert re.fullmatch(r"run: 2 of 3 rounds, [\d.]+ rounds/s, loss [\d.]+", said[1])
    assert len(done.stdout.splitlines()) == 1


def test_fewer_rounds_than_there_are(tmp_path):
    assert simulate(tmp_path, "--rounds", "4").returncode == 0
    done = simulate(tmp_path, "--rounds", "3", "--csv", "rounds.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "run holds 4 rounds already: give --rounds 4 or more, or another --out" in done.stderr
    assert not (tmp_path / "rounds.csv").exists()
    assert "4 of 4 rounds" in simulate(tmp_path, "--rounds", "4").stdout


@pytest.mark.slow
def test_ctrl_c_saves_and_stops(tmp_path):
    command = [sys.executable, "-m", "kvib.cli", "simulate", "synthetic", "--out", "run"]
    with subprocess.Popen(
        [*command, "--rounds", "1000000"],
        cwd=tmp_path,
        env=tiny.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        while not (tmp_path / "run").exists():  # made when the first round begins
            assert child.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        os.killpg(child.pid, signal.SIGINT)
        said = child.stdout.read()
    assert child.returncode == 130, said
    done = int(re.search(r"run: (\d+) of 1000000 rounds, .* stopped; repeat the command", said)[1])
    assert "Traceback" not in said
    assert len(records.read(tmp_path / "run")) == done > 0

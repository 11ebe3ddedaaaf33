"""`kvib simulate`: what it takes, what it refuses, what it leaves."""

import csv
import re

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
    "policy", ["KVib(rounds=3, gain=2.0)", "Forecast", "recommended", "Uniform"]
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


REFUSED = {
    "no rounds": (("--rounds", "0"), "--rounds 0: give at least 1"),
    "rounds below none": (("--rounds", "-3"), "--rounds -3: give at least 1"),
    "exact metrics": (("--exact-every", "-1"), "--exact-every -1: give at least 0"),
    "no time": (("--stop-after", "-1"), "--stop-after -1: give a positive number"),
    "no memory": (("--memory", "0"), "--memory 0: give a positive number"),
    "precision for nobody": (("--precision", "bf16"), "'bf16' is of torch, .*; give a device too"),
    "precision": (("--precision", "half", "--device", "cpu"), "'half' is not one of float32, tf32"),
    "device": (("--device", "gpu"), "device 'gpu' cannot be used here: .* cpu, cuda, mps, xpu"),
    "policy": (("--policy", "KVip"), "policy 'KVip' is not one of Uniform, BySize"),
    "its options": (("--policy", "KVib(round=3)"), r"policy 'KVib\(round=3\)': .*'round'"),
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
    monkeypatch.setattr("kvib.cli.simulate.A_MINUTE", 0.0)
    done = simulate(tmp_path, "--rounds", "3")
    said = done.stdout.splitlines()
    assert len(said) == 4
    assert re.fullmatch(r"run: 2 of 3 rounds, [\d.]+ rounds/s, loss [\d.]+", said[1])

"""Selectors in experiment files and on the command line."""

import json
import runpy
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tiny
from kvib.lab.files import read
from kvib.lab.pool import play_all
from kvib.lab.rehearsal import rehearse
from kvib.lab.runs import Machine, check, play
from kvib.sim import ClientData, Task, femnist, prepared
from places import ROOT

pl = pytest.importorskip("polars")

from kvib.lab.collect import collect  # noqa: E402
from kvib.lab.summary import summary  # noqa: E402

ONE = Machine(threads=1)
TEXT = (
    tiny.TEXT.partition("[[samplers]]")[0].replace("seeds = [0, 1]", "seeds = [0]")
    + """
[[samplers]]
label = "Power-of-Choice"
selector = "PowerOfChoice"
options = { candidates = 8 }

[[samplers]]
label = "DivFL"
selector = "DivFL"

[[samplers]]
label = "by size"
policy = "BySize"
"""
)


def test_results_say_that_they_are_biased(tmp_path):
    given = tiny.experiment(tmp_path, text=TEXT)
    runs = list(given.runs())
    check(given, ONE)
    play_all(runs, tmp_path / "runs", ONE)
    results = collect(given, runs, tmp_path / "runs", tmp_path / "results")
    assert results.labels == ["Power-of-Choice (biased)", "DivFL (biased)", "by size"]
    titles, rows = summary(results)
    assert [row[0] for row in rows] == results.labels
    told = dict(zip(titles, rows[0], strict=True))
    assert told["mean variance"] == told["total regret"] == "–"
    asked = results.table.group_by("label").agg(pl.col("asked").unique()).sort("label")
    assert dict(asked.iter_rows()) == {
        "DivFL (biased)": [0.0],
        "Power-of-Choice (biased)": [8.0],
        "by size": [0.0],
    }
    config = json.loads((tmp_path / "runs/tiny" / runs[0].name / "config.json").read_text())
    assert config["label"] == "Power-of-Choice (biased)"
    assert config["sampler"]["selector"] == "PowerOfChoice"
    assert config["sampler"]["estimator"] == "self_normalised"


@pytest.mark.parametrize("number", [0, 1])
def test_runs_of_selectors_go_on(tmp_path, number):
    run = list(tiny.experiment(tmp_path, text=TEXT).runs())[number]
    play(run, tmp_path / "straight", ONE)
    for rounds in (1, 2):
        ended = play(run, tmp_path / "stopped", ONE, deadline=time.monotonic())
        assert (ended.rounds, ended.finished) == (rounds, False)
    assert play(run, tmp_path / "stopped", ONE).finished
    a, b = (
        pl.read_parquet(tmp_path / f / run.name / "rounds.parquet") for f in ("straight", "stopped")
    )
    assert a.equals(b, null_equal=True)


MISTAKES = {
    "neither": ('selector = "DivFL"\n', "", "'DivFL': give it a policy or a selector"),
    "both": ('selector = "DivFL"', 'selector = "DivFL"\npolicy = "Uniform"', "a policy or a sel"),
    "unknown": ('selector = "DivFL"', 'selector = "DivFl"', "did you mean DivFL"),
    "procedure": (
        'selector = "DivFL"',
        'selector = "DivFL"\nprocedure = "pivotal"',
        "'DivFL': procedure is of samplers",
    ),
    "option": ("candidates = 8", "candidate = 8", "did you mean candidates"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(tmp_path, mistake):
    old, new, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        rehearse(tiny.experiment(tmp_path, text=TEXT.replace(old, new)))


def test_what_only_the_task_can_tell(tmp_path):
    with pytest.raises(ValueError, match="candidates=800 must lie between"):
        check(tiny.experiment(tmp_path, text=TEXT.replace("= 8 }", "= 800 }")), ONE)
    with pytest.raises(ValueError, match="cool_down = 1: selectors know no cool-down"):
        check(tiny.experiment(tmp_path, "cool_down=1", text=TEXT), ONE)


def tiny_images(path):
    """The task of FEMNIST's digits with few clients and random pixels."""
    rng, sizes = np.random.default_rng(0), np.arange(1, 10)
    x = rng.integers(0, 256, (sizes.sum() + 8, 28, 28)).astype(np.uint8)
    y = rng.integers(0, 10, len(x))
    train = ClientData(x[:-8], y[:-8], sizes)
    model = partial(femnist.cnn, 10)
    path.parent.mkdir()
    prepared.prepare(Task("femnist-v3", train, (x[-8:], y[-8:]), model, 10), path)


def test_the_experiment_on_images_works(tmp_path):
    """That of FEMNIST, with few clients and a few rounds on this machine's CPU."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    tiny_images(tmp_path / "tasks/femnist-v3.npz")
    changes = ("rounds=3", "seeds=[0]", "budgets=[3]", "precision=float32", "evaluate_every=1")
    given = read(ROOT / "experiments/selectors-femnist-v3.toml", changes)
    fewer = {"candidates": 6}
    samplers = [replace(s, options=fewer if s.options else {}) for s in given.samplers]
    given = replace(given, samplers=samplers, local=replace(given.local, epochs=1))
    machine = Machine("cpu", 1, tmp_path / "tasks")
    check(given, machine)
    ends = play_all(list(given.runs()), tmp_path / "runs", machine)
    assert all(end.finished and not end.diverged for end in ends)


def test_the_page_has_the_numbers_of_the_results():
    """`python experiments/selector_tables.py` writes them."""
    script = runpy.run_path(str(ROOT / "experiments/selector_tables.py"))
    assert script["page"](ROOT / "results") == (ROOT / "docs/selectors.md").read_text()


def test_command_line(tmp_path):
    pytest.importorskip("typer")
    words = ("simulate", "synthetic", "--out", "run", "--rounds", "2", "--selector")
    done = tiny.kvib(*words, "PowerOfChoice(candidates=20)", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 rounds" in done.stdout
    assert "biased" in done.stdout
    again = tiny.kvib(*words, "divfl", cwd=tmp_path)
    assert "selector differ" in " ".join(again.stderr.split())
    both = tiny.kvib(*words, "DivFL", "--policy", "Uniform", cwd=tmp_path)
    assert "--policy is of samplers" in " ".join(both.stderr.split())

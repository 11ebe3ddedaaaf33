"""The command that judges the paper: what it does, and what it says to a mistake."""

import re
import shutil
import sys
import time

import pytest

import tiny
from places import ROOT

pytest.importorskip("polars")
pytest.importorskip("matplotlib")
pytest.importorskip("typer")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with short experiments, and the results of one of its own."""
    folder = tmp_path_factory.mktemp("here")
    tiny.write(folder / "experiments")
    for name in ("synthetic", "femnist", "femnist-self-normalised"):
        text = (ROOT / f"experiments/{name}.toml").read_text(encoding="utf-8")
        text = text.replace("rounds = 500", "rounds = 100")
        tiny.write(folder / "experiments", text, name)
    done = tiny.kvib("run", "experiments/tiny.toml", "--processes", "1", cwd=folder)
    assert done.returncode == 0
    return folder


def paper(*words, cwd):
    """A command that goes well: nothing on stderr, not even a warning."""
    done = tiny.paper(*words, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def ages(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_from_the_root_of_a_clone(tmp_path):
    """As README and docs say it, in a process of its own; the page is the one we commit."""
    places = ("--results", "results", "--out", tmp_path / "reproduction.md")
    command = (sys.executable, "experiments/paper")
    done = tiny.process("report", *places, cwd=ROOT, program=command)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("reproduction.md", "beyond.md", "stragglers.md"):
        assert (tmp_path / name).read_bytes() == (ROOT / "docs" / name).read_bytes()


def test_figures(here, tmp_path):
    """Output is for other programs too, however narrow the terminal."""
    deep = tmp_path / "a-folder-with-a-long-name" / "and-another-one-with-a-longer-name" / "out"
    done = paper("figure", "example-2", "--out", deep, "--formats", "png, svg", cwd=here)
    assert done.stdout == f"{deep}/example-2.png\n{deep}/example-2.svg\n"
    assert len(ages(deep)) == 2


def test_examples(tmp_path):
    done = paper("examples", "--out", "demo", cwd=tmp_path)
    assert "Example 1: squared error of the estimate" in done.stdout
    assert "Example 2: every outcome for K = 2" in done.stdout
    assert done.stdout.endswith("figures: demo/example1.png, demo/example2.png\n")
    assert len(ages(tmp_path / "demo")) == 2


def test_reproduce_quickly_then_report(here):
    """A tenth of the rounds and one seed, into out/quick; the page and figures from there."""
    before = ages(here / "results")
    done = paper("reproduce", "synthetic", "--quick", "--processes", "1", cwd=here)
    assert "out/quick/results/synthetic.parquet: 11 runs of 10 rounds\n" in done.stdout
    assert "synthetic-gamma: left out, no results of synthetic-gamma\n" in done.stdout
    for name in ("synthetic", "synthetic-data"):
        for suffix in ("png", "pdf"):
            path = f"out/quick/figures/{name}.{suffix}"
            assert f"{path}\n" in done.stdout
            assert (here / path).stat().st_size > 5000
    assert ages(here / "results") == before
    done = paper("report", "--results", "out/quick/results", "--out", "docs/page.md", cwd=here)
    assert done.stdout == "docs/page.md\n"
    page = (here / "docs/page.md").read_text(encoding="utf-8")
    assert "## synthetic-data\n" in page
    assert "over T = 10:" in page
    assert "falls in the first round, when" in page
    figures = sorted(path.name for path in (here / "docs/figures").iterdir())
    assert figures == ["example-1.png", "example-2.png", "synthetic-data.png", "synthetic.png"]


def test_reproduce_what_needs_a_gpu(here):
    """Takes the results that are there, or says that there are none."""
    done = tiny.paper("reproduce", "femnist-v3", cwd=here)
    assert done.stdout.splitlines() == [
        "femnist-v3 is for a GPU: give --device cuda to run it; results holds none",
        "femnist-v3: left out, no results of femnist-v3",
    ]
    assert done.returncode == 2
    assert done.stderr == (
        "paper: nothing of femnist-v3 could be run or drawn here; the lines above say why\n"
    )
    assert not (here / "out/runs/femnist-v3").exists()


def test_reproduce_a_figure_of_other_experiments(here, tmp_path):
    """What it needs is run, or taken from the committed results."""
    shutil.copytree(here / "experiments", tmp_path / "experiments")
    words = ("--quick", "--processes", "1")
    done = paper("reproduce", "synthetic-data", *words, cwd=tmp_path)
    assert "out/quick/results/synthetic.parquet: 11 runs of 10 rounds\n" in done.stdout
    assert done.stdout.endswith("out/quick/figures/synthetic-data.pdf\n")
    (tmp_path / "results").mkdir()
    for path in (ROOT / "results").glob("procedures-*.json"):
        shutil.copy(path, tmp_path / "results")
    done = paper("reproduce", "beyond-procedures", cwd=tmp_path)
    line = "procedures-synthetic has no file in experiments; taking results/procedures-synthetic"
    assert line in done.stdout.splitlines()
    assert done.stdout.endswith("out/figures/beyond-procedures.pdf\n")


def test_time_is_for_all_experiments_together(here, tmp_path, monkeypatch):
    """The second is not given what the first has used."""
    for name in ("one", "one-more"):
        tiny.write(tmp_path / "experiments", name=name)
    given = []
    monkeypatch.setattr(
        "paper.commands.play", lambda *words: (given.append(words[-1]), time.sleep(0.2))
    )
    paper("reproduce", "one", "--stop-after", "0.3", cwd=tmp_path)
    assert 0.25 < given[0] <= 0.3
    assert given[1] <= 0.1


MISTAKES = {
    "unknown experiment": (
        ("reproduce", "nothing"),
        r"nothing is called 'nothing'; there are .*femnist-v3, .*, tiny",
    ),
    "a report of nothing": (
        ("report", "--out", "page.md"),  # what is there is one's own
        r"there are no results in results to judge by; give their folder \(--results\), or make",
    ),
    "unknown figure": (
        ("figure", "sinthetic"),
        r"figure: 'sinthetic' is not one of example-1, .*; did you mean synthetic\?",
    ),
    "figure without results": (
        ("figure", "synthetic"),
        r"there are no results at results/synthetic; make them with kvib run, or give another --r",
    ),
    "unknown format": (
        ("figure", "example-2", "--formats", "png,jpeg"),
        r"--formats: 'jpeg' is not one of png, pdf, svg",
    ),
    "no time": (
        ("reproduce", "synthetic", "--stop-after", "-1"),
        "--stop-after -1: give 0 seconds or more",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(here, mistake):
    words, said = MISTAKES[mistake]
    before = ages(here)
    is_one_line(tiny.paper(*words, cwd=here), said)
    assert ages(here) == before


def test_outside_a_clone(tmp_path):
    words = ("reproduce", "synthetic")
    said = r"no files experiments/\*\.toml here; go to the root of a clone"
    is_one_line(tiny.paper(*words, cwd=tmp_path), said)


def is_one_line(done, said):
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("paper: ")
    assert re.search(said, line)

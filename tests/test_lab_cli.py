"""The command line in processes of its own: what it does, and what it says to a mistake."""

import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiny
from kvib.sim import prepared, synthetic

pl = pytest.importorskip("polars")
pytest.importorskip("typer")

ROOT = Path(__file__).parents[1]
LITTLE = ("--set", "rounds=3", "--seeds", "0-1", "--processes", "1")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with experiments, and the results of `kvib run` in it."""
    folder = tmp_path_factory.mktemp("here")
    tiny.write(folder / "experiments")
    text = (ROOT / "experiments/synthetic.toml").read_text()
    tiny.write(folder / "experiments", text.replace("rounds = 500", "rounds = 100"), "synthetic")
    for name in ("femnist-v3", "femnist-self-normalised"):
        text = (ROOT / f"experiments/{name}.toml").read_text()
        tiny.write(folder / "experiments", text, name)
    done = kvib("run", "experiments/tiny.toml", "--processes", "1", cwd=folder)
    assert done.stdout == "results/tiny.parquet: 4 runs of 5 rounds\n"
    return folder


def kvib(*words, cwd, **options):
    """A command that goes well: nothing on stderr, not even a warning."""
    done = tiny.kvib(*words, cwd=cwd, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def ages(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# What it does


def test_run(here, tmp_path):
    """Changed, somewhere else, with two processes: nothing but the asked-for is written."""
    before = ages(here)
    words = ("--set", "rounds=3", "--set", "local.batch_size=32", "--seeds", "0-1,4")
    places = ("--out", tmp_path / "runs", "--results", tmp_path / "results")
    script = (Path(sys.executable).with_name("kvib"),)
    done = kvib("run", "experiments/tiny.toml", *words, *places, cwd=here, program=script)
    assert done.stdout.replace("\n", "") == (f"{tmp_path}/results/tiny.parquet: 6 runs of 3 rounds")
    assert len(list((tmp_path / "runs/tiny").iterdir())) == 6
    table = pl.read_parquet(tmp_path / "results/tiny.parquet")
    assert len(table) == 6 * 3
    assert sorted(table["seed"].unique().to_list()) == [0, 1, 4]
    about = json.loads((tmp_path / "results/tiny.json").read_text())["experiment"]
    assert (about["rounds"], about["local"]["batch_size"]) == (3, 32)
    assert ages(here) == before


def test_run_again_and_stopped(here, tmp_path):
    """Finished runs are not repeated; stopped ones go on with the same command."""
    folders = ages(here / "out/runs")
    done = kvib("run", "experiments/tiny.toml", cwd=here)
    assert done.stdout == "results/tiny.parquet: 4 runs of 5 rounds\n"
    assert ages(here / "out/runs") == folders
    command = ("run", "experiments/tiny.toml", *LITTLE, "--out", tmp_path / "runs")
    done = kvib(*command, "--stop-after", "0", cwd=here)
    assert done.stdout == "tiny: 0 of 4 runs are finished; the same command goes on\n"
    assert not (tmp_path / "results").exists()


def test_long_paths_are_one_line(here, tmp_path):
    """Output is for other programs too, however narrow the terminal."""
    deep = tmp_path / "a-folder-with-a-long-name" / "and-another-one-with-a-longer-name" / "out"
    done = kvib("figure", "example-2", "--out", deep, "--formats", "png", cwd=here)
    assert done.stdout == f"{deep}/example-2.png\n"


def test_list(here):
    """Names are whole, however narrow the terminal: one must be able to type them."""
    done = kvib("list", cwd=here)
    rows = [re.split(r"\s*│\s*", line)[1:-1] for line in done.stdout.splitlines() if "│" in line]
    firsts = [row[:4] for row in rows if row[0]]
    assert firsts[-1] == ["tiny", "Tiny", "4", "5"]
    assert "4 of 4" in done.stdout
    assert [name for name, *_ in firsts] == [
        "femnist-self-normalised",
        "femnist-v3",
        "synthetic",
        "tiny",
    ]


def test_reproduce_quickly_then_report(here):
    """A tenth of the rounds and one seed, into out/quick; the page and figures from there."""
    before = ages(here / "results")
    done = kvib("reproduce", "synthetic", "--quick", "--processes", "1", cwd=here)
    assert "out/quick/results/synthetic.parquet: 11 runs of 10 rounds\n" in done.stdout
    assert "synthetic-gamma: left out, no results of synthetic-gamma\n" in done.stdout
    for name in ("synthetic", "synthetic-data"):
        for suffix in ("png", "pdf"):
            path = f"out/quick/figures/{name}.{suffix}"
            assert f"{path}\n" in done.stdout
            assert (here / path).stat().st_size > 5000
    assert ages(here / "results") == before
    done = kvib("report", "--results", "out/quick/results", "--out", "docs/page.md", cwd=here)
    assert done.stdout == "docs/page.md\n"
    assert "## synthetic-data\n" in (here / "docs/page.md").read_text()
    figures = sorted(path.name for path in (here / "docs/figures").iterdir())
    assert figures == ["example-1.png", "example-2.png", "synthetic-data.png", "synthetic.png"]


def test_reproduce_what_needs_a_gpu(here):
    """Takes the results that are there, or says that there are none."""
    done = kvib("reproduce", "femnist-v3", cwd=here)
    said = done.stdout.replace("\n", " ")
    assert "femnist-v3 is for a GPU: give --device cuda to run it" in said
    assert "femnist-v3: left out, no results of femnist-v3" in said
    assert not (here / "out/runs/femnist-v3").exists()


def test_prepared_tasks_stand_for_the_data(here, tmp_path):
    """`--tasks` is for a machine without the data: nothing else may ask for them."""
    prepared.prepare(synthetic(clients=12), tmp_path / "femnist-v3.npz")
    words = ("--set", "task=femnist-v3", *LITTLE, "--out", tmp_path / "runs")
    kvib("run", "experiments/tiny.toml", *words, "--tasks", tmp_path, cwd=here)
    about = json.loads((tmp_path / "results/tiny.json").read_text())
    assert len(about["sizes"]) == 12


def test_diverged_runs_are_told(here, tmp_path):
    words = ("--set", "local.learning_rates=[1e38, 0.02]", *LITTLE, "--out", tmp_path / "runs")
    done = kvib("run", "experiments/tiny.toml", *words, cwd=here)
    said = done.stdout.replace("\n", " ")
    assert said.count("diverged in round 0") == 4
    assert "8 runs of 3 rounds" in said


LIGHT = """
import runpy, sys
sys.modules.update(dict.fromkeys(["polars", "matplotlib"]))
runpy.run_module("kvib.cli", run_name="__main__")
"""


def test_simulate_needs_no_tables_and_no_figures(tmp_path):
    """`pip install kvib[cli]` brings neither."""
    program = (sys.executable, "-c", LIGHT)
    words = ("simulate", "synthetic", "--out", "run", "--rounds", "2")
    done = kvib(*words, cwd=tmp_path, program=program)
    assert "2 of 2 rounds" in done.stdout
    done = tiny.kvib("figure", "example-2", cwd=tmp_path, program=program)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


# Mistakes: exit code 2 and one line

RUN = ("run", "experiments/tiny.toml")
MISTAKES = {
    "unknown sampler": (
        (*RUN, "--set", 'samplers=[{label = "a", policy = "KVibb"}]'),
        r"policy: 'KVibb' is not one of Uniform, .*; did you mean KVib\?",
    ),
    "misspelt key": ((*RUN, "--set", "rouds=5"), r"'rouds' .*; did you mean rounds\?"),
    "samplers that are none": (
        (*RUN, "--set", "samplers=[1]"),
        r"samplers\[0\] must be a table, not 1",
    ),
    "more clients than there are": (
        (*RUN, "--set", "budgets=[101]"),
        "budgets: 101 is not between 0 and the 100 clients of synthetic",
    ),
    "missing data": (
        (*RUN, "--set", "task=femnist-v3"),
        "KVIB_DATA is not set; set it to a folder with the FEMNIST files",
    ),
    "another configuration": (
        (*RUN, "--set", "rounds=6"),
        r"uniform_K5_lr0\.02_seed0 is of another configuration \(rounds differ\); give another",
    ),
    "runs of another version": (
        (*RUN, "--out", "other/runs"),
        r"other/runs/tiny/\S+ is of another version of kvib; give another --out",
    ),
    "results of another version": (
        ("figure", "synthetic", "--results", "other/results"),
        r"other/results/synthetic\.json is of format 99, this kvib reads 1",
    ),
    "unknown figure": (
        ("figure", "sinthetic"),
        r"figure: 'sinthetic' is not one of example-1, .*; did you mean synthetic\?",
    ),
    "figure without results": (
        ("figure", "synthetic"),
        r"there are no results at results/synthetic; make them with: kvib run experiments/synthet",
    ),
    "unknown experiment": (
        ("reproduce", "nothing"),
        r"nothing is called 'nothing'; there are .*femnist-v3, .*, tiny",
    ),
    "unreadable seeds": ((*RUN, "--seeds", "a-b"), "--seeds 'a-b': write it as 0-4 or 0,3,7"),
    "a GPU that is not there": (
        (*RUN, "--set", "engine=torch", "--device", "cuda:99", "--out", "other/gpu"),
        "cuda:99",
    ),
    "unknown task": (("simulate", "sinthetic", "--out", "other/run"), "task 'sinthetic' is not"),
}


@pytest.fixture(scope="module")
def others(here):
    """Runs and results of a kvib to come."""
    shutil.copytree(here / "out/runs", here / "other/runs")
    (here / "other/results").mkdir()
    for path in (here / "other/runs").rglob("config.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    about = json.loads((here / "results/tiny.json").read_text())
    (here / "other/results/synthetic.json").write_text(json.dumps({**about, "format": 99}))
    shutil.copy(here / "results/tiny.parquet", here / "other/results/synthetic.parquet")
    return here


@pytest.fixture(scope="module")
def answers(others):
    """What the command line says to each, several asked at once."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            name: pool.submit(tiny.kvib, *words, cwd=others)
            for name, (words, _) in MISTAKES.items()
        }
        return {name: job.result() for name, job in jobs.items()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(answers, mistake):
    done = answers[mistake]
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert re.search(MISTAKES[mistake][1], " ".join(done.stderr.split()))
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kvib: ")

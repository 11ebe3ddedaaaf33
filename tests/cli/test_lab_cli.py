"""The command line: what it does, and what it says to a mistake."""

import json
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import tiny
from kvib import Guard, recommended
from kvib.lab import parts
from kvib.lab.experiment import Experiment, LocalConfig, SamplerConfig, ServerConfig
from kvib.names import PROCEDURES
from kvib.sim import prepared, synthetic
from places import ROOT

pl = pytest.importorskip("polars")
pytest.importorskip("typer")

LITTLE = ("--set", "rounds=3", "--seeds", "0-1", "--processes", "1")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with experiments, and the results of `kvib run` in it."""
    folder = tmp_path_factory.mktemp("here")
    tiny.write(folder / "experiments")
    for name in ("synthetic", "femnist", "femnist-self-normalised"):
        text = (ROOT / f"experiments/{name}.toml").read_text(encoding="utf-8")
        text = text.replace("rounds = 500", "rounds = 100")
        tiny.write(folder / "experiments", text, name)
    done = kvib("run", "experiments/tiny.toml", "--processes", "1", cwd=folder)
    assert done.stdout.endswith("results/tiny.parquet: 4 runs of 5 rounds\n")
    return folder


def kvib(*words, cwd):
    """A command that goes well: nothing on stderr, not even a warning."""
    done = tiny.kvib(*words, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def ages(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# What it does


def test_the_page_has_all_keys_and_the_recommended_sampler(tmp_path):
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    rows = "".join(line for line in page.splitlines(True) if line.startswith("|"))
    for part in (Experiment, LocalConfig, ServerConfig, SamplerConfig):
        keys = {field.name for field in fields(part)} - {"name", "samplers", "local", "server"}
        assert keys <= set(re.findall(r"`(\w+)`", rows)), part
    assert set(PROCEDURES) <= set(re.findall(r"`(\w+)`", rows))
    [written] = [text for text in re.findall(r"```toml\n(.*?)```", page, re.S) if "sketch" in text]
    head = tiny.TEXT.partition("[[samplers]]")[0]
    run = next(tiny.experiment(tmp_path, text=head + written).runs())
    sizes = list(range(1, 9))
    made, wanted = parts.sampler(run, sizes, sizes), recommended(sizes, run.budget)
    for part in ("policy", "procedure", "estimator"):
        assert repr(getattr(made, part)) == repr(getattr(wanted, part))
    assert made.guard == Guard(2.0)
    assert made.state.sketches.size == wanted.state.sketches.size


def test_run(here, tmp_path):
    """Changed, somewhere else, with two processes: nothing but the asked-for is written."""
    before = ages(here)
    words = ("--set", "rounds=3", "--set", "local.batch_size=32", "--seeds", "0-1,4")
    places = ("--out", tmp_path / "runs", "--results", tmp_path / "results")
    script = (Path(sys.executable).with_name("kvib"),)
    command = ("run", "experiments/tiny.toml", *words, *places, "--processes", "2")
    done = tiny.process(*command, cwd=here, program=script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{tmp_path}/results/tiny.parquet: 6 runs of 3 rounds\n")
    assert len(list((tmp_path / "runs/tiny").iterdir())) == 6
    table = pl.read_parquet(tmp_path / "results/tiny.parquet")
    assert len(table) == 6 * 3
    assert sorted(table["seed"].unique().to_list()) == [0, 1, 4]
    about = json.loads((tmp_path / "results/tiny.json").read_text())["experiment"]
    assert (about["rounds"], about["local"]["batch_size"]) == (3, 32)
    assert ages(here) == before


def test_an_experiment_of_your_own_has_a_table_and_a_figure(here, tmp_path):
    done = kvib("run", "experiments/tiny.toml", "--processes", "1", cwd=here)
    titles, *rows, caption, _ = done.stdout.splitlines()
    assert re.split(r"\s{2,}", titles.strip()) == [
        "sampler",
        "K",
        "learning rate",
        "last test loss",
        "last test accuracy",
        "last training loss",
        "mean variance",
        "total regret",
    ]
    assert caption == "mean ± standard deviation over seeds"
    told = json.loads((here / "results/tiny.json").read_text())["experiment"]
    assert {row.split("  ")[0] for row in rows} >= {line["label"] for line in told["samplers"]}
    done = kvib("figure", "tiny", "--out", tmp_path, "--formats", "png", cwd=here)
    assert done.stdout == f"{tmp_path}/tiny.png\n"
    assert (tmp_path / "tiny.png").stat().st_size > 5000


def test_run_again_and_stopped(here, tmp_path):
    """Finished runs are not repeated; stopped ones go on with the same command."""
    folders = ages(here / "out/runs")
    done = kvib("run", "experiments/tiny.toml", "--processes", "1", cwd=here)
    assert done.stdout.endswith("results/tiny.parquet: 4 runs of 5 rounds\n")
    assert ages(here / "out/runs") == folders
    command = ("run", "experiments/tiny.toml", *LITTLE, "--out", tmp_path)
    done = kvib(*command, "--stop-after", "0", cwd=here)
    assert done.stdout == "tiny: 0 of 4 runs are finished; repeat the command to continue\n"
    assert not ages(tmp_path)


PAIR = """
extends = "tiny.toml"

[variants.pair-5]

[variants.pair-6]
budgets = [6]
"""


def test_a_file_with_several_experiments(here, tmp_path):
    """All are played, or those that are asked for: with --only from a file, or by name."""
    tiny.write(tmp_path / "experiments")
    tiny.write(tmp_path / "experiments", PAIR, "pair")
    words = ("--processes", "1", "--out", "runs")
    done = kvib("run", "experiments/pair.toml", "--only", "pair-6", *words, cwd=tmp_path)
    assert done.stdout.endswith("results/pair-6.parquet: 4 runs of 5 rounds\n")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"pair-6"}
    before = ages(tmp_path / "runs")
    done = kvib("run", "experiments/pair.toml", *words, cwd=tmp_path)
    for name in ("pair-5", "pair-6"):
        assert f"results/{name}.parquet: 4 runs of 5 rounds\n" in done.stdout
    after = ages(tmp_path / "runs")
    assert {path: after[path] for path in before} == before
    done = kvib("run", "pair-5", *words, "--partial", cwd=tmp_path)
    assert done.stdout == "results/pair-5.parquet: 0 runs are missing\n"
    done = kvib("run", "experiments/pair.toml", *words, "--partial", cwd=tmp_path)
    assert done.stdout.count("0 runs are missing\n") == 2
    alone = pl.read_parquet(here / "results/tiny.parquet")
    assert pl.read_parquet(tmp_path / "results/pair-5.parquet").equals(alone, null_equal=True)


def test_mistakes_of_the_last_come_before_the_first_is_played(tmp_path):
    tiny.write(tmp_path / "experiments")
    tiny.write(tmp_path / "experiments", PAIR.replace("[6]", "[101]"), "pair")
    done = tiny.kvib("run", "experiments/pair.toml", cwd=tmp_path)
    is_one_line(done, "budgets: 101 is not between 0 and the 100 clients of synthetic")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_line_a_minute_where_there_is_no_terminal(here, tmp_path, monkeypatch, processes):
    monkeypatch.setattr("kvib.cli.screen.A_MINUTE", 0.0)
    words = ("--seeds", "0", "--out", tmp_path / "runs", "--processes", processes)
    done = tiny.kvib("run", "experiments/tiny.toml", *words, cwd=here)
    assert done.stderr.endswith("\n")
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"tiny: 10 of 10 rounds, [\d.]+ rounds/s of 2 runs", last)


@pytest.mark.parametrize(
    ("change", "runs", "results"),
    [
        (("--set", "rounds=2"), "mine/tiny", "mine/results"),
        (("--quick",), "quick/mine/tiny", "quick/mine/results"),
    ],
    ids=["changed", "quick"],
)
def test_a_changed_experiment_stays_apart(here, tmp_path, change, runs, results):
    """Its results must not lie over those of the file as it is."""
    words = ("--seeds", "0", "--processes", "1", "--out", tmp_path / "mine")
    done = kvib("run", "experiments/tiny.toml", *change, *words, cwd=here)
    assert f"\n{tmp_path / results}/tiny.parquet: 2 runs of " in done.stdout
    assert {path.parent.parent for path in ages(tmp_path / runs)} == {tmp_path / runs}
    assert set(tmp_path.rglob("tiny.json")) == {tmp_path / results / "tiny.json"}


def test_figures(here, tmp_path):
    """Output is for other programs too, however narrow the terminal."""
    deep = tmp_path / "a-folder-with-a-long-name" / "and-another-one-with-a-longer-name" / "out"
    done = kvib("figure", "all", "--out", deep, "--formats", "png, svg", cwd=here)
    assert done.stdout == f"{deep}/tiny.png\n{deep}/tiny.svg\n"
    assert len(ages(deep)) == 2


def test_list(here):
    """Names are whole, however narrow the terminal: one must be able to type them."""
    lines = kvib("list", cwd=here).stdout.splitlines()
    rows = [re.split(r"\s{2,}", line.rstrip()) for line in lines]
    named = [row for row in rows[1:] if row[0]]
    levels = ["femnist-v1", "femnist-v2", "femnist-v3"]
    names = ["femnist-self-normalised", *levels, "synthetic", "tiny"]
    assert [row[0] for row in named] == names
    assert named[-1] == ["tiny", "Tiny", "4", "5", "0 min here", "4 of 4"]


def test_list_tells_how_long_and_where(here, tmp_path, monkeypatch):
    """Of a CPU scaled to the cores that are here, of a GPU as it was there."""
    shutil.copytree(here / "experiments", tmp_path / "experiments")
    about = json.loads((here / "results/tiny.json").read_text())
    (tmp_path / "results").mkdir()
    for name, device in (("tiny", "cpu"), ("femnist-v3", "NVIDIA H200")):
        runs = {f"run{k}": {"seconds": 600.0, "device": device} for k in range(4)}
        path = tmp_path / "results" / f"{name}.json"
        path.write_text(json.dumps({**about, "runs": runs}))
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    told = kvib("list", cwd=tmp_path).stdout
    assert re.search(r"^tiny .* 8 min here +4 of 4", told, re.MULTILINE)
    assert "40 min on" in told


def test_list_shows_what_cannot_be_read(here, tmp_path):
    """One mistake does not hide the other experiments."""
    shutil.copytree(here / "experiments", tmp_path / "experiments")
    tiny.write(tmp_path / "experiments", tiny.TEXT.replace("rounds", "rouds"), "mine")
    tiny.write(tmp_path / "experiments", 'extends = "nowhere.toml"\n', "far")
    about = json.loads((here / "results/tiny.json").read_text())
    del about["runs"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tiny.json").write_text(json.dumps(about))
    told = " ".join(kvib("list", cwd=tmp_path).stdout.split())
    assert "did you mean rounds?" in told
    assert "nowhere.toml, which cannot be read" in told
    assert "results/tiny are not whole results (no 'runs'); make them again" in told
    assert "femnist-v3" in told


def test_prepared_tasks_stand_for_the_data(here, tmp_path):
    """`--tasks` is for a machine without the data: nothing else may ask for them."""
    prepared.prepare(synthetic(clients=12), tmp_path / "femnist-v3.npz")
    words = ("--set", "task=femnist-v3", *LITTLE, "--out", tmp_path / "runs")
    command = ("run", "experiments/tiny.toml", *words, "--tasks", tmp_path)
    for part in ((), ("--partial",)):
        kvib(*command, *part, cwd=here)
        path = tmp_path / "runs/results/tiny.json"
        assert len(json.loads(path.read_text())["sizes"]) == 12
        path.unlink()


def test_diverged_runs_are_reported(here, tmp_path):
    words = ("--set", "local.learning_rates=[1e38, 0.02]", *LITTLE, "--out", tmp_path / "runs")
    done = kvib("run", "experiments/tiny.toml", *words, cwd=here)
    *told, last = done.stdout.splitlines()
    told = [line for line in told if "diverged" in line]
    assert len(told) == 4
    assert all("diverged in round 0" in line for line in told)
    assert last.endswith("8 runs of 3 rounds")


FULL = """
from dataclasses import dataclass
import kvib

@dataclass(frozen=True)
class Full(kvib.Uniform):
    def observe(self, state, cohort, feedback):
        if cohort.round < 2:
            return state
        raise RuntimeError("CUDA out of memory. Tried to allocate 5 GiB")
"""


def test_runs_without_room_are_reported_at_the_end(here, tmp_path):
    (here / "experiments/full.py").write_text(FULL)
    line = '{label = "large", policy = "full.py:Full", procedure = "independent"}'
    both = f'samplers=[{line}, {{label = "small", policy = "KVib"}}]'
    words = ("--set", both, *LITTLE, "--out", tmp_path / "runs")
    done = tiny.kvib("run", "experiments/tiny.toml", *words, cwd=here)
    (here / "experiments/full.py").unlink()
    assert done.returncode == 2
    assert "memory was short for 2 of 4 runs; CUDA out of memory" in " ".join(done.stderr.split())
    assert len(list((tmp_path / "runs").rglob("rounds.parquet"))) == 2


LIGHT = """
import sys
sys.modules.update(dict.fromkeys(["polars", "matplotlib", "torch"]))
from kvib import cli
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    try:
        cli.main()
    except SystemExit as end:
        print("exit", end.code or 0)
"""


def test_without_tables_figures_and_torch(tmp_path):
    """`pip install kvib[cli]` brings none of them: the rest works, or says what to install."""
    tiny.write(tmp_path / "experiments")
    words = (
        "simulate synthetic --out run --rounds 2",
        "list",
        "run experiments/tiny.toml",
        "figure tiny",
        "simulate synthetic --out other --device cpu",
    )
    done = tiny.process(*words, cwd=tmp_path, program=(sys.executable, "-c", LIGHT))
    assert (done.returncode, re.findall("exit .", done.stdout)) == (
        0,
        ["exit 0", "exit 0", "exit 2", "exit 2", "exit 2"],
    )
    assert "2 of 2 rounds" in done.stdout
    assert done.stderr.splitlines() == [
        "kvib: this needs polars: pip install '.[lab]' in a clone of kvib",
        "kvib: this needs matplotlib: pip install '.[lab]' in a clone of kvib",
        "kvib: this needs torch: pip install '.[torch]' in a clone of kvib",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"experiments", "run"}


# Mistakes: exit code 2 and one line

RUN = ("run", "experiments/tiny.toml")
MISTAKES = {
    "unknown sampler": (
        (*RUN, "--set", 'samplers=[{label = "a", policy = "KVibb"}]'),
        r"policy: 'KVibb' is not one of AOCS, .*; did you mean KVib\?",
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
    "another engine": (
        (*RUN, "--set", "engine=torch"),
        r"uniform_K5_lr0\.02_seed0 is of another configuration \(engine differ\); give another",
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
        ("figure", "tini"),
        r"results in results: 'tini' is not one of tiny; did you mean tiny\?",
    ),
    "figure without results": (
        ("figure", "tiny", "--results", "nowhere"),
        r"there are no results at nowhere/tiny; make them with kvib run, or give another --results",
    ),
    "unknown format": (
        ("figure", "tiny", "--formats", "png,jpeg"),
        r"--formats: 'jpeg' is not one of png, pdf, svg",
    ),
    "no format": (("figure", "tiny", "--formats", ""), "--formats: '' is not one of png, pdf"),
    "no experiment files": (
        ("list", "nowhere"),
        r"there are no files nowhere/\*\.toml; give their folder: kvib list FOLDER",
    ),
    "a command of earlier versions": (
        ("reproduce", "synthetic", "--quick"),
        "reproduce is a command of the paper now, .*: "
        "python experiments/paper reproduce synthetic --quick$",
    ),
    "no file": (("run", "nofile.toml"), r"no experiment file nofile\.toml \(No such file"),
    "no experiment": (("run", "tyny"), r"experiment: 'tyny' is not one of .*; did you mean tiny\?"),
    "not in the file": ((*RUN, "--only", "pair"), r"tiny\.toml: 'pair' is not one of tiny$"),
    "no processes": ((*RUN, "--processes", "0"), "--processes 0: give at least 1"),
    "no time": ((*RUN, "--stop-after", "-1"), "--stop-after -1: give 0 seconds or more"),
    "a file for a folder": (
        (*RUN, "--out", "experiments/tiny.toml"),
        "--out experiments/tiny.toml: .* is a file; give the name of a folder",
    ),
    "unreadable seeds": ((*RUN, "--seeds", "a-b"), "--seeds 'a-b': write it as 0-4 or 0,3,7"),
    "a GPU that is not there": (
        (*RUN, "--set", "engine=torch", "--device", "cuda:99", "--out", "other/gpu"),
        "device 'cuda:99' cannot be used here: .*; leave it out for the CPU",
    ),
    "no device at all": (
        ("simulate", "synthetic", "--out", "other/run", "--device", "abacus"),
        "device 'abacus' cannot be used here",
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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(others, mistake):
    words, said = MISTAKES[mistake]
    before = ages(others)
    is_one_line(tiny.kvib(*words, cwd=others), said)
    assert ages(others) == before


def is_one_line(done, said):
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("kvib: ")
    assert re.search(said, line)

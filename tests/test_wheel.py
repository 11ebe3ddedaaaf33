"""The wheel serves anyone's experiments, outside any clone, and says nothing about the paper."""

import json
import shutil
import subprocess
import sys
import zipfile

import pytest

import tiny
from places import ROOT

pytest.importorskip("polars")
pytest.importorskip("matplotlib")
pytest.importorskip("typer")

from paper import beyond, claims, figures, goals, report, stragglers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what it is made of."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--wheel-dir", folder, folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Where the wheel is installed: in a folder of somebody's own repository."""
    home = tmp_path_factory.mktemp("home")
    pip("install", "--target", home / "site", wheel)
    for words in (["init"], ["-c", *ME, "commit", "--allow-empty", "-m", "Mine"]):
        subprocess.run(["git", *words, "--quiet"], cwd=home, check=True, timeout=60)
    return home / "site"


ME = ("user.name=Me", "-c", "user.email=me@example.org")


def pip(command, *words):
    program = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps"]
    subprocess.run([*program, *map(str, words)], check=True, timeout=240)


@pytest.fixture(scope="module")
def folder(site, tmp_path_factory):
    """An empty folder, with an experiment file of the user's own and what it gave."""
    place = site.parent / "work"
    place.mkdir()
    tiny.write(place, name="mine")
    done = kvib(site, "run", "mine.toml", "--processes", "2", cwd=place)
    assert done.stdout.endswith("results/mine.parquet: 4 runs of 5 rounds\n")
    return place


def kvib(site, *words, cwd, code=0):
    """The installed command; nothing but mistakes on stderr."""
    program = (sys.executable, site / "bin/kvib")
    done = tiny.process(*words, cwd=cwd, program=program, PYTHONPATH=str(site))
    assert done.returncode == code, done.stderr
    assert bool(done.stderr) == bool(code)
    return done


def test_the_wheel_holds_nothing_about_the_paper(wheel):
    judged = (*claims.CLAIMS, *goals.CLAIMS, *stragglers.CLAIMS)
    words = {claim.says for claim in judged}
    words |= {drawing.caption for drawing in figures.FIGURES.values()}
    words |= {page.HEAD.splitlines()[0] for page in (report, beyond, stragglers)}
    words |= {"verdict", "not reproduced", "from paper", "import paper"}
    with zipfile.ZipFile(wheel) as held:
        names = [name for name in held.namelist() if name.endswith(".py")]
        texts = {name: held.read(name).decode() for name in names}
    assert len(texts) > 100
    for name, text in texts.items():
        assert name.startswith("kvib/")
        assert not [word for word in words if word in text], name


def test_the_installed_code_is_what_runs(site, tmp_path):
    code = "import importlib.util, kvib; print(kvib.__file__, importlib.util.find_spec('paper'))"
    program = (sys.executable, "-c", code)
    done = tiny.process(cwd=tmp_path, program=program, PYTHONPATH=str(site))
    assert done.stdout == f"{site}/kvib/__init__.py None\n"


def test_an_experiment_of_the_users_own(site, folder):
    """Its table, its figure, its line in the list; the commit of their repository is not ours."""
    done = kvib(site, "figure", "mine", "--formats", "png", cwd=folder)
    assert done.stdout == "out/figures/mine.png\n"
    assert (folder / "out/figures/mine.png").stat().st_size > 5000
    listed = kvib(site, "list", ".", cwd=folder).stdout.splitlines()
    assert listed[1].split() == ["mine", "Tiny", "4", "5", "0", "min", "here", "4", "of", "4"]
    about = json.loads((folder / "results/mine.json").read_text())
    assert {run["commit"] for run in about["runs"].values()} == {""}


def test_simulating(site, folder):
    task = folder / "task.npz"
    kvib(site, "prepare", "synthetic", "--out", task, cwd=folder)
    words = ("--rounds", "3", "--out", "run", "--csv", "run.csv")
    done = kvib(site, "simulate", task, *words, cwd=folder)
    assert done.stdout.startswith("run: 3 of 3 rounds, ")
    assert len((folder / "run.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("words", [("report",), ("reproduce", "synthetic")], ids=" ".join)
def test_commands_of_the_paper_say_where_they_are(site, folder, words):
    done = kvib(site, *words, cwd=folder, code=2)
    [line] = done.stderr.splitlines()
    assert line.endswith(
        f"in the root of a clone of kvib: python experiments/paper {' '.join(words)}"
    )

"""Files that build on others, several experiments in one file, and names."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import tiny
from kvib.lab import layers
from kvib.lab.experiment import Run
from kvib.lab.files import catalogue, choose, find, read, read_all
from kvib.lab.rehearsal import rehearse
from places import ROOT

HERE = ROOT / "experiments"
ALL = [given for path in sorted(HERE.rglob("*.toml")) for given in read_all(path)]
BASE = tiny.TEXT.replace('title = "Tiny"\n', "").replace("budgets = [5]\n", "")
TWO = """
[variants.few]
title = "Few clients"
budgets = [5]

[variants.many]
title = "Many clients"
budgets = [50]
seeds = [7]
local.batch_size = 32
"""


# What we ship


def whole(experiment):
    """As results hold it; own files without their folders, which differ between machines."""
    table = json.loads(json.dumps(asdict(experiment)))
    for line in table["samplers"]:
        for key in ("policy", "estimator"):
            line[key] = Path(line[key]).name
    return table


def filled(said, now):
    """What results say, with today's value of keys that are younger than they."""
    table = {**now, **said}
    lines = zip(said["samplers"], now["samplers"], strict=True)
    table["samplers"] = [{**new, **old} for old, new in lines]
    for line in table["samplers"]:
        for key in ("policy", "estimator"):
            line[key] = Path(line[key]).name
    return table


PLAYED = [given for given in ALL if (ROOT / f"results/{given.name}.json").exists()]


@pytest.mark.parametrize("given", PLAYED, ids=lambda given: given.name)
def test_committed_results_are_of_what_the_files_say(given):
    """The file may be written in another way; the experiment in it is the one that was played."""
    path = ROOT / f"results/{given.name}.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    now = whole(given)
    assert filled(about["experiment"], now) == now
    names = {run.name for run in given.runs()}
    assert set(about["runs"]) | set(about.get("missing", ())) == names


def test_names_are_unique():
    names = [given.name for given in ALL]
    assert len(set(names)) == len(names)
    known = {path.stem for path in (ROOT / "results").glob("*.json")} - set(names)
    assert all(name.startswith("procedures-") for name in known)  # of experiments/procedures.py


# Several experiments in one file


def test_variants_are_experiments_of_their_own(tmp_path):
    few, many = read_all(tiny.write(tmp_path, BASE + TWO, "both"))
    assert (few.name, few.title, few.budgets, few.seeds) == ("few", "Few clients", [5], [0, 1])
    assert (many.name, many.title, many.budgets, many.seeds) == ("many", "Many clients", [50], [7])
    assert (few.local.batch_size, many.local.batch_size) == (64, 32)
    assert few.local.learning_rates == many.local.learning_rates
    assert few.samplers == many.samplers
    alone = tiny.experiment(tmp_path, "title=Few clients", name="few")
    assert alone == few  # written out in a file of its own it is the same


def test_changes_are_made_to_all_variants(tmp_path):
    path = tiny.write(tmp_path, BASE + TWO, "both")
    for given in read_all(path, ("rounds=9", "local.epochs=3", "budgets=[2]")):
        assert (given.rounds, given.local.epochs, given.budgets) == (9, 3, [2])
    [many] = read_all(path, ("seeds=[3]",), only=("many",))
    assert (many.name, many.seeds) == ("many", [3])
    with pytest.raises(ValueError, match=r"both.toml: few: experiment.rouds: .* mean rounds\?"):
        read_all(path, ("rouds=9",))


def test_one_is_read_by_its_name(tmp_path):
    path = tiny.write(tmp_path, BASE + TWO, "both")
    tiny.write(tmp_path)
    assert catalogue(tmp_path) == {"few": path, "many": path, "tiny": tmp_path / "tiny.toml"}
    assert find("many", tmp_path) == choose(Path("many"), folder=tmp_path)[0]
    assert find("many", tmp_path) == choose(path, ("many",))[0]
    assert choose(path) == read_all(path)
    assert find("tiny", tmp_path) == read(tmp_path / "tiny.toml")
    with pytest.raises(ValueError, match=r"both.toml holds several experiments \(few, many\)"):
        read(path)
    with pytest.raises(ValueError, match=r"'mani' is not one of few, many, tiny; did you mean m"):
        find("mani", tmp_path)
    with pytest.raises(ValueError, match=r"there are no files .*nowhere/\*.toml to find 'many' in"):
        find("many", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"both.toml: 'tiny' is not one of few, many$"):
        choose(path, ("tiny",))
    with pytest.raises(ValueError, match=r"--only chooses from a file; many is one experiment"):
        choose(Path("many"), ("many",), folder=tmp_path)


def test_two_experiments_of_one_name(tmp_path):
    tiny.write(tmp_path, BASE + TWO, "both")
    tiny.write(tmp_path, name="many")
    with pytest.raises(ValueError, match=r"many is in .*both.toml and in .*many.toml; rename one"):
        catalogue(tmp_path)


# Files that build on others


def test_a_file_takes_the_rest_from_the_one_it_extends(tmp_path):
    tiny.write(tmp_path)
    text = 'extends = "../tiny.toml"\nrounds = 9\nlocal.epochs = 2\n'
    given = read(tiny.write(tmp_path / "deep", text, "longer"))
    assert given == tiny.experiment(tmp_path, "rounds=9", "local.epochs=2", name="longer")


def test_a_list_is_replaced_and_labels_choose_from_below(tmp_path):
    tiny.write(tmp_path)
    own = '{ label = "by size", policy = "BySize" }'
    text = f'extends = "tiny.toml"\nbudgets = [6]\nsamplers = ["K-Vib", {own}]\n'
    given, below = read(tiny.write(tmp_path, text, "mine")), read(tmp_path / "tiny.toml")
    assert given.budgets == [6]
    assert [line.label for line in given.samplers] == ["K-Vib", "by size"]
    assert given.samplers[0] == below.samplers[1]
    with pytest.raises(ValueError, match=r"mine.toml: samplers: 'KVib' is not one of uniform, K-"):
        read(tiny.write(tmp_path, text.replace("K-Vib", "KVib"), "mine"))


def test_variants_of_the_file_below_stay_there(tmp_path):
    tiny.write(tmp_path, BASE + TWO, "both")
    text = 'extends = "both.toml"\ntitle = "One"\nbudgets = [3]\n'
    assert read(tiny.write(tmp_path, text, "one")).name == "one"
    three = text + '[variants.three]\nsamplers = ["K-Vib"]\n'
    given = read(tiny.write(tmp_path, three, "several"))
    assert (given.name, given.budgets, len(given.samplers)) == ("three", [3], 1)


def test_python_files_lie_beside_the_file_that_names_them(tmp_path):
    named = tiny.TEXT.replace('policy = "KVib"', 'policy = "mine.py:Mine"')
    tiny.write(tmp_path, named)
    text = 'extends = "../tiny.toml"\n[variants.a]\n[variants.b]\nrounds = 7\n'
    for given in read_all(tiny.write(tmp_path / "deep", text, "both"), ("seeds=[4]",)):
        assert given.samplers[1].policy == f"{tmp_path}/deep/../mine.py:Mine"
    changed = 'samplers=[{label = "a", policy = "yours.py:Mine"}]'
    given = tiny.experiment(tmp_path, changed)
    assert given.samplers[0].policy == f"{tmp_path}/yours.py:Mine"


def chain(folder, length):
    """Files 0.toml, 1.toml, … of which each extends the one before."""
    tiny.write(folder, name="0")
    for k in range(1, length):
        last = tiny.write(folder, f'extends = "{k - 1}.toml"\n', str(k))
    return last


def test_a_row_of_files_is_bounded(tmp_path):
    assert read(chain(tmp_path, layers.LONGEST)).rounds == 5
    with pytest.raises(ValueError, match=r"5.toml extends 4.toml .*: more than 5 files in a row;"):
        read(chain(tmp_path, layers.LONGEST + 1))


MISTAKES = {
    "itself": ('extends = "mine.toml"', r"mine.toml extends mine.toml: files in a circle .*; rem"),
    "a circle": ('extends = "round.toml"', "mine.toml extends round.toml extends mine.toml: files"),
    "no file": ('extends = "nofile.toml"', r"mine.toml extends .*nofile.toml, which cannot .*rela"),
    "no TOML": ('extends = "notes.txt"', r"notes.txt is not a TOML file: "),
    "no word": ("extends = 5", r'mine.toml: extends = 5 is not a file; write extends = "other'),
    "no tables": (
        "variants = 3",
        r"mine.toml: variants are tables \[variants.NAME\], one at least",
    ),
    "none": ("[variants]", r"mine.toml: variants are tables \[variants.NAME\], one at least"),
    "no table": ("[variants]\na = 3", "mine.toml: variants.a must be a table, not 3"),
    "a folder's name": ('[variants."../a"]', r"'../a' is to be the name of a folder; use letters"),
    "a variant that extends": (
        '[variants.a]\nextends = "tiny.toml"',
        "mine.toml: variants.a.extends has no meaning; extends is of a whole file",
    ),
    "an unknown label": (
        'extends = "tiny.toml"\n[variants.a]\nsamplers = ["KVib"]',
        r"mine.toml: a: samplers: 'KVib' is not one of uniform, K-Vib; did you mean K-Vib\?",
    ),
    "a label of nothing": (
        tiny.TEXT.partition("[[samplers]]")[0].replace("rounds", 'samplers = ["K-Vib"]\nrounds'),
        r"samplers\[0\] must be a table, not 'K-Vib'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    text, said = MISTAKES[mistake]
    tiny.write(tmp_path)
    tiny.write(tmp_path, 'extends = "mine.toml"', "round")
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(ValueError, match=said) as raised:
        read_all(tiny.write(tmp_path, text, "mine"))
    assert "\n" not in str(raised.value)


# Reading is cheap

LIGHT = """
import sys
from pathlib import Path
from kvib.lab.files import catalogue, find
for name in catalogue(Path(sys.argv[1])):
    find(name, Path(sys.argv[1]))
print(*{"kvib.sim", "numba", "torch", "scipy", "polars", "kvib.own.mine"} & set(sys.modules))
"""


def test_reading_builds_nothing_and_runs_no_file(tmp_path):
    """Neither the simulator nor a policy of one's own is imported."""
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    named = tiny.TEXT.replace('policy = "KVib"', 'policy = "mine.py:Mine"')
    tiny.write(tmp_path, named)
    for folder in (HERE, tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", LIGHT, str(folder)], capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_a_rehearsal_names_the_experiment(tmp_path):
    path = tiny.write(tmp_path, BASE.replace("synthetic", "nothing") + TWO, "both")
    few, _ = read_all(path)
    with pytest.raises(ValueError, match=r"^few: task: 'nothing' is not one of"):
        rehearse(few)


def test_a_python_file_that_is_not_there(tmp_path):
    given = tiny.experiment(tmp_path, 'samplers=[{label = "a", policy = "gone.py:Mine"}]')
    run: Run = next(given.runs())
    with pytest.raises(ValueError, match=r"there is no file .*gone.py; put it beside"):
        run.config()

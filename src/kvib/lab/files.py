"""Reads experiment files. Errors name the file and the key."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from kvib.lab import layers
from kvib.lab.configuration import change, filled, one_of
from kvib.lab.experiment import Experiment

EXPERIMENTS = Path("experiments")
"""The folder in which experiments are found by name."""


def read_all(path: Path, changes: Sequence[str] = (), only: Sequence[str] = ()) -> list[Experiment]:
    """Read the experiments of a file, in the order of the file.

    Args:
        path: The path of the file.
        changes: Changes to make to each experiment, such as "rounds=50" or "local.batch_size=10".
        only: The names of the experiments to read. An empty sequence means all.
    """
    tables = layers.experiments(path)
    for name in only:
        one_of(tables, name, str(path))
    read = []
    for name in only or tables:
        who = str(path) if list(tables) == [path.stem] else f"{path}: {name}"
        read.append(_made(path, tables[name], changes, who))
    return read


def read(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read a file that holds one experiment. Raise ValueError if it holds several."""
    first, *others = read_all(path, changes)
    if others:
        names = ", ".join(experiment.name for experiment in (first, *others))
        raise ValueError(f"{path} holds several experiments ({names}); choose one by its name")
    return first


def find(name: str, folder: Path = EXPERIMENTS, changes: Sequence[str] = ()) -> Experiment:
    """Find an experiment by its name among the files of a folder.

    Args:
        name: The name of the experiment.
        folder: The folder of the files.
        changes: Changes to make to the experiment.
    """
    known = catalogue(folder)
    if not known:
        raise ValueError(f"there are no files {folder}/*.toml to find {name!r} in; give a file")
    one_of(known, name, "experiment")
    [found] = read_all(known[name], changes, (name,))
    return found


def choose(
    given: Path,
    only: Sequence[str] = (),
    changes: Sequence[str] = (),
    folder: Path = EXPERIMENTS,
) -> list[Experiment]:
    """Read the experiments that a command line names: those of a file, or one by its name.

    Args:
        given: A file, or the name of an experiment in the folder if it does not end in .toml.
        only: The names of the experiments to take from a file with several.
        changes: Changes to make to each experiment.
        folder: The folder in which names are looked up.
    """
    if given.suffix == ".toml" or given.is_file():
        return read_all(given, changes, only)
    if only:
        raise ValueError(f"--only chooses from a file; {given} is one experiment, leave it out")
    return [find(str(given), folder, changes)]


def catalogue(folder: Path = EXPERIMENTS) -> dict[str, Path]:
    """The names of all experiments in a folder, sorted, and their files.

    A file that cannot be read is listed by its own name. Reading it later says why.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            names = list(layers.experiments(path))
        except ValueError:
            names = [path.stem]
        for name in names:
            if name in found:
                raise ValueError(
                    f"experiment {name} is in {found[name]} and in {path}; rename one, since "
                    "their results have one name"
                )
            found[name] = path
    return dict(sorted(found.items()))


def _made(path: Path, shared: layers.TomlTable, changes: Sequence[str], who: str) -> Experiment:
    """The experiment of a table with changes. Its errors begin with `who`."""
    table = deepcopy(shared)  # experiments of one file share tables
    before = table.get("samplers")
    for words in changes:
        change(table, words)
    if table.get("samplers") is not before:
        layers.look_beside(path, table)
    try:
        return filled(Experiment, table)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error

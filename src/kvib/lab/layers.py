"""Merges experiment files that build on each other into one plain table per experiment.

A file that `extends` another takes from it the keys that it does not have. A file with
`[variants.NAME]` tables holds one experiment for each variant. A variant takes from the file the
keys that it does not have.

    extends = "femnist.toml"

    [variants.femnist-rates]
    budgets = [20]

    [variants.femnist-rates-10]
    budgets = [10]

Tables such as [local] are merged key by key. Every other value is replaced as a whole. In a list
of samplers, a word means the sampler with that label in the file below:
samplers = ["uniform", "K-Vib"].
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from kvib.lab.configuration import one_of
from kvib.lab.experiment import OWN

LONGEST = 5
"""The most files that may extend each other in a row. A reader could not follow more."""

TomlTable = dict[str, Any]


def experiments(path: Path) -> dict[str, TomlTable]:
    """The experiments of a file by name: its variants, or one with the name of the file."""
    table = _whole(path, ())
    if "variants" not in table:
        return {path.stem: {"name": path.stem, **table}}
    variants = table.pop("variants")
    _check_variants(path, variants)
    named = {}
    for name, own in variants.items():
        try:
            named[name] = {**laid_over(table, own), "name": name}
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {error}") from error
    return named


def laid_over(below: TomlTable, above: TomlTable) -> TomlTable:
    """Merge two tables. Where both have a key, `above` decides.

    Args:
        below: The table that is extended.
        above: The table that extends it.
    """
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = laid_over(below[key], above[key])
    if isinstance(below.get("samplers"), list) and isinstance(above.get("samplers"), list):
        merged["samplers"] = _named(below["samplers"], above["samplers"])
    return merged


def _named(below: list[Any], above: list[Any]) -> list[Any]:
    """The samplers of `above`, each word replaced by the sampler of that label in `below`."""
    tables = [line for line in below if isinstance(line, dict)]
    labels = {str(line.get("label")): line for line in tables}
    lines = []
    for line in above:
        if isinstance(line, str):
            one_of(labels, line, "samplers")
            line = labels[line]
        lines.append(line)
    return lines


def _whole(path: Path, above: tuple[Path, ...]) -> TomlTable:
    """A file and the files that it extends, as one table.

    Args:
        path: The path of the file.
        above: The files that extend this one.
    """
    table = _load(path, above)
    if "extends" not in table:
        return table
    base = table.pop("extends")
    if not isinstance(base, str):
        raise ValueError(f'{path}: extends = {base!r} is not a file; write extends = "other.toml"')
    below = _whole(path.parent / base, (*above, path))
    for key in ("name", "variants"):  # these keys belong to that file alone
        below.pop(key, None)
    try:
        return laid_over(below, table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _load(path: Path, above: tuple[Path, ...]) -> TomlTable:
    """The table of one file. Raise ValueError for files that extend each other in a circle."""
    row = " extends ".join(file.name for file in (*above, path))
    if path.resolve() in [file.resolve() for file in above]:
        raise ValueError(f"{row}: files in a circle have no beginning; remove one `extends`")
    if len(above) >= LONGEST:
        raise ValueError(f"{row}: more than {LONGEST} files in a row; write some into one")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if above:
            raise ValueError(
                f"{above[-1]} extends {path}, which cannot be read ({error.strerror}); name a "
                "file by its place relative to the one that extends it"
            ) from error
        raise ValueError(f"no experiment file {path} ({error.strerror}); see kvib list") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    variants = table.get("variants")
    for each in (table, *(variants.values() if isinstance(variants, dict) else ())):
        if isinstance(each, dict):
            look_beside(path, each)
    return table


def look_beside(path: Path, table: TomlTable) -> None:
    """Make the names of Python files in a table relative to the folder of the experiment file."""
    samplers = table.get("samplers")
    for line in samplers if isinstance(samplers, list) else ():
        for key in OWN:
            name = line.get(key) if isinstance(line, dict) else None
            if isinstance(name, str) and ":" in name:
                line[key] = str(path.parent / name)


def _check_variants(path: Path, variants: Any) -> None:
    """Raise ValueError unless the variants are named tables that extend nothing themselves."""
    if not isinstance(variants, dict) or not variants:
        raise ValueError(f"{path}: variants are tables [variants.NAME], one at least")
    for name, own in variants.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(
                f"{path}: variants: {name!r} is to be the name of a folder; use letters, digits, "
                "-, _ and ."
            )
        if not isinstance(own, dict):
            raise ValueError(f"{path}: variants.{name} must be a table, not {own!r}")
        for key in ("extends", "variants", "name"):
            if key in own:
                raise ValueError(
                    f"{path}: variants.{name}.{key} has no meaning; {key} is of a whole file"
                )

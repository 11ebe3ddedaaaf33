"""Reads and writes the folder of one run: small JSON files, and the table of its rounds."""

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvib.files import storage
from kvib.sim import records
from kvib.sim.records import RAGGED, RENAMED, SCALARS, Record

if TYPE_CHECKING:
    import polars as pl

FORMAT = 1
"""The format of run folders and result tables. Files of another format are not read."""


def read_part(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run folder. The result is empty if the file does not exist yet."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
        content = error
    if not isinstance(content, dict):
        raise torn_run(path.parent, f"{path.name}: {content}")
    return content


def torn_run(folder: Path, reason: object) -> ValueError:
    """The error for a run folder that cannot be read."""
    return ValueError(f"{folder} is not a whole run folder ({reason}); remove it")


def write_part(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file of a run folder as a whole or not at all."""
    temporary = path.with_suffix(".tmp")
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_rounds(folder: Path, rows: Sequence[Record]) -> None:
    """Write the rounds as `rounds.parquet`, or as `rounds.npz` where polars is not installed."""
    if find_spec("polars") is None:
        arrays = storage.headed("rounds", {}, records.packed(rows))
        storage.write(folder / "rounds.npz", arrays, compressed=True)
        return
    temporary = folder / "rounds.tmp"
    _frame(rows).write_parquet(temporary)
    os.replace(temporary, folder / "rounds.parquet")


def read_rounds(folder: Path) -> "pl.DataFrame":
    """Read the rounds of one run from either file."""
    import polars as pl

    path = folder / "rounds.npz"
    if path.exists():
        _, arrays = storage.read(path, "rounds", (*SCALARS, *RAGGED), compressed=True)
        with storage.whole("rounds", path):
            return _frame(records.unpacked(arrays))
    try:
        frame = of_today(pl.read_parquet(folder / "rounds.parquet"))
    except (FileNotFoundError, pl.exceptions.PolarsError) as error:
        raise torn_run(folder, f"rounds.parquet: {error}") from error
    blank = Record(round=0, clients=0)
    missing = [name for name in SCALARS if name not in frame.columns]  # an older kvib wrote it
    filled = frame.with_columns(pl.lit(getattr(blank, name)).alias(name) for name in missing)
    return filled.select(*SCALARS, *RAGGED)


def _frame(rows: Sequence[Record]) -> "pl.DataFrame":
    """The records as a table, one row per round."""
    import polars as pl

    columns: dict[str, Any] = {name: [getattr(r, name) for r in rows] for name in SCALARS}
    columns |= {name: [getattr(r, name).tolist() for r in rows] for name in RAGGED}
    kinds: dict[str, Any] = {"ids": pl.List(pl.Int64), "norms": pl.List(pl.Float64)}
    return pl.DataFrame(columns, schema_overrides=kinds)


def of_today(rounds: "pl.DataFrame") -> "pl.DataFrame":
    """The rounds that an earlier version wrote, under the column names of today."""
    return rounds.rename(RENAMED, strict=False)

"""A cache of arrays that are made once and read often: folders of memory-mapped files."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np

from kvib.types import Arrays

VERSION = 2
"""The version of the cache. A kvib with a higher version makes all arrays again."""
MADE_OF = "made_of.json"
"""The file beside the arrays with checksums of the files that they were made of."""


def folder() -> Path:
    """The folder of the cache: `KVIB_CACHE`, by default ~/.cache/kvib.

    Copied to another machine, it stands in for the data, the tokenizer and the hub.
    """
    path = os.environ.get("KVIB_CACHE")
    return Path(path) if path else Path.home() / ".cache" / "kvib"


def kept(
    name: str,
    make: Callable[[], Arrays],
    sources: Sequence[str] = ("",),
    made_of: Mapping[str, int] | None = None,
) -> Arrays:
    """The arrays of this name as views of files, made if the cache does not hold them.

    Two processes that make them at once do so in folders of their own, and the first one stays.

    Args:
        name: The name of the arrays in the cache.
        make: A function that makes the arrays.
        sources: The sources that the arrays may come from, as parts of the folder's name. `make`
            uses the first.
        made_of: Checksums of the files that `make` reads, by name. The arrays are made again where
            the checksums beside them differ or are missing. Without files on this machine, the
            arrays in the cache are used as they are.
    """
    places = [folder() / "-".join([name, *filter(None, [s]), f"v{VERSION}"]) for s in sources]
    place = next((p for p in places if p.exists()), places[0])
    checksums = json.dumps(made_of, sort_keys=True) if made_of else ""
    if not place.exists() or _stale(place, checksums):
        _make(place, make, checksums)
    try:
        return {file.stem: np.load(file, mmap_mode="r") for file in sorted(place.glob("*.npy"))}
    except (EOFError, ValueError) as error:
        raise ValueError(f"{place} is damaged ({error}); remove it, it is made again") from error


def _stale(place: Path, checksums: str) -> bool:
    """Whether arrays were made of other files than those here. False if no files are here."""
    file = place / MADE_OF
    same = file.exists() and file.read_text(encoding="utf-8") == checksums
    return bool(checksums) and not same


def _make(place: Path, make: Callable[[], Arrays], checksums: str) -> None:
    """Make arrays in a temporary folder, and move it to its place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{uuid4().hex}")
    old = temporary.with_name(f"{temporary.name}.old")
    temporary.mkdir()
    try:
        for key, array in make().items():
            np.save(temporary / f"{key}.npy", array, allow_pickle=False)
        if checksums:
            (temporary / MADE_OF).write_text(checksums, encoding="utf-8")
        if _stale(place, checksums):  # a process that has the old files open keeps them
            with suppress(FileNotFoundError):
                os.rename(place, old)
        try:
            os.rename(temporary, place)
        except OSError:  # another process was faster
            if not place.exists():
                raise
    finally:
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)

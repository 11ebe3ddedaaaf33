"""What is made once and read often: folders of arrays, memory-mapped."""

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
"""Of what is kept; a younger kvib makes it again."""
MADE_OF = "made_of.json"
"""Beside the arrays: the files they were made of."""


def folder() -> Path:
    """`KVIB_CACHE`, by default ~/.cache/kvib. Carried to another machine, it stands for the data,
    the tokenizer and the hub."""
    given = os.environ.get("KVIB_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "kvib"


def kept(
    name: str,
    make: Callable[[], Arrays],
    sources: Sequence[str] = ("",),
    made_of: Mapping[str, int] | None = None,
) -> Arrays:
    """The arrays of this name, made if nobody has before, as views of files.

    Two processes that make them at once do so in folders of their own; the first one stays.

    Args:
        name: of what is kept.
        make: how it is made.
        sources: where the data may come from, as parts of the name; made from the first.
        made_of: checksums of the files that `make` reads, by name: made again where others are
            written beside the arrays, or none. Without any here, what is kept stands for them.
    """
    places = [folder() / "-".join([name, *filter(None, [s]), f"v{VERSION}"]) for s in sources]
    place = next((p for p in places if p.exists()), places[0])
    told = json.dumps(made_of, sort_keys=True) if made_of else ""
    if not place.exists() or _stale(place, told):
        _make(place, make, told)
    try:
        return {file.stem: np.load(file, mmap_mode="r") for file in sorted(place.glob("*.npy"))}
    except (EOFError, ValueError) as error:
        raise ValueError(f"{place} is damaged ({error}); remove it, it is made again") from error


def _stale(place: Path, told: str) -> bool:
    """Whether it was made of other files than those here; where there are none, it was not."""
    file = place / MADE_OF
    return bool(told) and not (file.exists() and file.read_text(encoding="utf-8") == told)


def _make(place: Path, make: Callable[[], Arrays], told: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{uuid4().hex}")
    old = temporary.with_name(f"{temporary.name}.old")
    temporary.mkdir()
    try:
        for key, array in make().items():
            np.save(temporary / f"{key}.npy", array, allow_pickle=False)
        if told:
            (temporary / MADE_OF).write_text(told, encoding="utf-8")
        if _stale(place, told):  # whoever has it open keeps what was there
            with suppress(FileNotFoundError):
                os.rename(place, old)
        try:
            os.rename(temporary, place)
        except OSError:  # somebody was faster
            if not place.exists():
                raise
    finally:
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)

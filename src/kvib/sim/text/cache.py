"""What is made once and read often: folders of arrays, memory-mapped."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np

from kvib.cohort import Arrays

VERSION = 2
"""Of what is kept; a younger kvib makes it again."""


def folder() -> Path:
    """`KVIB_CACHE`, by default ~/.cache/kvib. Carried to another machine, it stands for the data,
    the tokenizer and the hub."""
    given = os.environ.get("KVIB_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "kvib"


def kept(name: str, make: Callable[[], Arrays], sources: Sequence[str] = ("",)) -> Arrays:
    """The arrays of this name, made if nobody has before, as views of files.

    Two processes that make them at once do so in folders of their own; the last one stays.

    Args:
        name: of what is kept.
        make: how it is made.
        sources: where the data may come from, as parts of the name; made from the first.
    """
    places = [folder() / "-".join([name, *filter(None, [s]), f"v{VERSION}"]) for s in sources]
    place = next((p for p in places if p.exists()), places[0])
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{uuid4().hex}")
        temporary.mkdir()
        try:
            for key, array in make().items():
                np.save(temporary / f"{key}.npy", array, allow_pickle=False)
            try:
                os.rename(temporary, place)
            except OSError:  # somebody was faster
                if not place.exists():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    try:
        return {file.stem: np.load(file, mmap_mode="r") for file in sorted(place.glob("*.npy"))}
    except (EOFError, ValueError) as error:
        raise ValueError(f"{place} is damaged ({error}); remove it, it is made again") from error

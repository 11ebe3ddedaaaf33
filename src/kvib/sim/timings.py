"""Seconds of every phase of every round: beside a checkpoint, since they cannot be repeated."""

import math
import time
from pathlib import Path

import numpy as np

from kvib.files import storage

PHASES = ("evaluate", "exact", "draw", "train", "update")
Laps = dict[str, float]
"""Seconds by phase."""


class Clock:
    """Seconds by phase, of one round."""

    def __init__(self) -> None:
        self.laps: Laps = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """A phase is over."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def write(path: Path, rounds: list[Laps]) -> None:
    """All rounds to a file, atomically."""
    names = list(rounds[0]) if rounds else []
    columns = {name: np.array([laps[name] for laps in rounds]) for name in names}
    with storage.replacing(path) as file:
        np.savez(file, allow_pickle=False, **columns)


def read(path: Path, rounds: int) -> list[Laps]:
    """Timings that were kept; a run whose timings are lost goes on without them."""
    try:
        with storage.whole("timings", path), open(path, "rb") as file, np.load(file) as archive:
            columns = {name: archive[name][:rounds] for name in archive.files}
    except ValueError:
        columns = {}
    whole = np.full((len(PHASES), rounds), math.nan)
    for row, name in zip(whole, PHASES, strict=True):
        kept = columns.get(name, row[:0])
        row[: len(kept)] = kept
    return [dict(zip(PHASES, laps, strict=True)) for laps in whole.T.tolist()]

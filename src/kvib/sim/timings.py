"""Seconds of every phase of every round.

They lie beside a checkpoint, not in it, since no second run repeats them.
"""

import math
import time
from pathlib import Path

import numpy as np

from kvib.files import storage

PHASES = ("evaluate", "exact", "draw", "train", "update")
"""The phases of a round, in their order."""
Laps = dict[str, float]
"""Seconds by phase."""


class Clock:
    """The seconds of one round, by phase."""

    def __init__(self) -> None:
        self.laps: Laps = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End a phase, and begin the next."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def write(path: Path, rounds: list[Laps]) -> None:
    """Write the timings of all rounds to a file, atomically."""
    names = list(rounds[0]) if rounds else []
    columns = {name: np.array([laps[name] for laps in rounds]) for name in names}
    with storage.replacing(path) as file:
        np.savez(file, allow_pickle=False, **columns)


def read(path: Path, rounds: int) -> list[Laps]:
    """The timings in a file. A run whose timings are lost continues with NaN instead."""
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

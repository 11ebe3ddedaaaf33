"""The variance that each way to draw would have had in the same rounds.

`experiments/procedures.py` writes the files that this module reads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvib.lab import tables
from kvib.lab.tables import MissingResultsError
from kvib.types import FloatArray, IntArray
from paper.origins import note

DRAWS = ("pivotal", "neighbours", "balanced")
"""Ways to draw that are compared with independent draws, at equal probabilities and updates."""
MEMORY = ("difference", "difference, neighbours", "difference, balanced")
"""Ways to draw what a memory leaves to be sampled."""
LEARNING = tuple(f"{way}, learning" for way in MEMORY)
"""The same ways, with a policy that learns from what the memory leaves (`--learning`)."""
WAYS = (*DRAWS, *MEMORY, *LEARNING)
EXACT = ("difference", "difference, learning")
"""Ways with a closed form; the variance of the others comes from a Monte Carlo."""


@dataclass(frozen=True)
class Variances:
    """Measured rounds of one run, the variance of every way to draw in them, and ‖D‖²."""

    rounds: IntArray
    values: dict[str, FloatArray]
    about: dict[str, Any]

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.about["options"]["task"])

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to draw that were measured."""
        return tuple(way for way in WAYS if way in self.values)

    def ratio(self, way: str) -> FloatArray:
        """The variance over that of independent draws, in every measured round."""
        self._check(way)
        return self.values[way] / self.values["independent"]

    def _check(self, way: str) -> None:
        if way not in self.values:
            raise MissingResultsError(
                f"the results of {self.task} hold no {way}; measure again, with --learning"
            )

    def window(self, way: str, rounds: int) -> FloatArray:
        """The ratio of the sums of both variances over this many consecutive measured rounds."""
        self._check(way)
        if len(self.rounds) < rounds:
            raise MissingResultsError(f"fewer than {rounds} rounds of {self.task} were measured")
        ones = np.ones(rounds)
        own, plain = (
            np.convolve(self.values[name], ones, "valid") for name in (way, "independent")
        )
        return np.asarray(own / plain)

    def between(self, first: int, last: int) -> "Variances":
        """The measurements of the rounds from `first` to `last`."""
        at = (self.rounds >= first) & (self.rounds <= last)
        if not at.any():
            raise MissingResultsError(
                f"no round of {self.task} between {first} and {last} was measured"
            )
        values = {name: numbers[at] for name, numbers in self.values.items()}
        return Variances(self.rounds[at], values, self.about)

    def origin(self) -> str:
        """The origin of the measurements, in a line."""
        given, where = self.about["options"], self.about["environment"]
        line = (
            f"\n`experiments/procedures.py {given['task']}`: one run of the recommended "
            f"combination, seed {given['seed']}, K = {given['budget']:g}, local learning rate "
            f"{given['learning_rate']:g}, batch {given['batch_size']}, {given['epochs']} epochs, "
            f"{given['draws']} draws for each Monte Carlo; {where['device']}, at commit "
            f"{where['commit'] or 'unknown'}.\n"
        )
        return line + note(self.about)


def load(path: Path) -> Variances:
    """Read one file of results."""
    try:
        about = tables.load_about(path, "options", "environment", "rows")
    except MissingResultsError as error:
        raise MissingResultsError(
            f"there are no results at {path}; make them with: python experiments/procedures.py "
            f"{path.name.removeprefix('procedures-')}"
        ) from error
    try:
        rows = about.pop("rows")
        there = [way for way in WAYS if way in rows[0]]  # files may be older than some ways
        names = ("independent", *there, "full step")
        values = {name: np.array([row[name] for row in rows]) for name in names}
        return Variances(np.array([row["round"] for row in rows]), values, about)
    except (AttributeError, KeyError, TypeError) as error:
        raise tables.torn(path, f"no {error}") from error

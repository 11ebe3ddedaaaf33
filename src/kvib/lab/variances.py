"""What each way to draw would have left of noise in the same rounds: read what
`experiments/procedures.py` writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvib.cohort import FloatArray, IntArray
from kvib.lab import tables
from kvib.lab.tables import AbsentError

WAYS = ("pivotal", "balanced", "difference", "difference, balanced")
"""Compared with independent draws; all with the same probabilities and the same updates."""
MONTE_CARLO = ("pivotal", "balanced", "difference, balanced")
"""Those without a closed form."""


@dataclass(frozen=True)
class Variances:
    """Measured rounds of one run, the variance of every way to draw in them, and ‖D‖²."""

    rounds: IntArray
    values: dict[str, FloatArray]
    about: dict[str, Any]

    @property
    def task(self) -> str:
        """Its name."""
        return str(self.about["options"]["task"])

    def ratio(self, way: str) -> FloatArray:
        """Variance over that of independent draws, in every measured round."""
        return self.values[way] / self.values["independent"]

    def window(self, way: str, rounds: int) -> FloatArray:
        """The same of sums over so many measured rounds in a row."""
        if len(self.rounds) < rounds:
            raise AbsentError(f"fewer than {rounds} rounds of {self.task} were measured")
        ones = np.ones(rounds)
        own, plain = (
            np.convolve(self.values[name], ones, "valid") for name in (way, "independent")
        )
        return np.asarray(own / plain)

    def between(self, first: int, last: int) -> "Variances":
        """Only these rounds."""
        at = (self.rounds >= first) & (self.rounds <= last)
        if not at.any():
            raise AbsentError(f"no round of {self.task} between {first} and {last} was measured")
        values = {name: numbers[at] for name, numbers in self.values.items()}
        return Variances(self.rounds[at], values, self.about)

    def origin(self) -> str:
        """Where they are from, in a line."""
        given, where = self.about["options"], self.about["environment"]
        line = (
            f"\n`experiments/procedures.py {given['task']}`: one run of the recommended "
            f"combination, seed {given['seed']}, K = {given['budget']:g}, local learning rate "
            f"{given['learning_rate']:g}, batch {given['batch_size']}, {given['epochs']} epochs, "
            f"{given['draws']} draws for each Monte Carlo; {where['device']}.\n"
        )
        return line + (tables.EARLIER if self.earlier else "")

    @property
    def earlier(self) -> bool:
        """Whether they are of a Forecast that is not quite today's."""
        return str(self.about["environment"]["commit"]).startswith(tables.EARLIER_FLOOR)


def load(path: Path) -> Variances:
    """One file of results."""
    try:
        about = tables.load_about(path)
    except AbsentError as error:
        raise AbsentError(
            f"there are no results at {path}; make them with: python experiments/procedures.py "
            f"{path.name.removeprefix('procedures-')}"
        ) from error
    try:
        rows = about.pop("rows")
        names = ("independent", *WAYS, "full step")
        values = {name: np.array([row[name] for row in rows]) for name in names}
        return Variances(np.array([row["round"] for row in rows]), values, about)
    except (KeyError, TypeError) as error:
        raise tables.torn(path, f"no {error}") from error

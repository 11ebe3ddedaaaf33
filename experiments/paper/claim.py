"""A claim of the paper or a goal of ours, the results that it needs, and the verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvib.lab import tables
from kvib.lab.tables import MissingResultsError, Results

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
UNTESTED = "not tested as published"
"""The verdict where models, data, rates or rounds differ from the paper's."""
COMMAND = "python experiments/paper"
"""The command of this package, for the root of a clone."""
BASELINES = ("uniform", "Mabs", "Vrb", "Avare")
"""The samplers that the paper compares K-Vib with."""


@dataclass(frozen=True)
class Finding:
    """The measurement, the verdict and its reason."""

    measured: str
    verdict: str
    reason: str = ""


def paired(path: Path) -> Results:
    """Results of the seeds that every sampler has run."""
    return tables.load(path).paired()


@dataclass(frozen=True)
class Claim:
    """A claim with the results it needs, its judge, its command, and a reader of results."""

    says: str
    where: str
    needs: tuple[str, ...]
    judge: Callable[[list[Any]], Finding]
    command: str
    read: Callable[[Path], Any] = paired

    def row(self, results: Path) -> str:
        """A row of a table: the claim, the measurement, the verdict, the reason, the command."""
        finding = self.finding(results)
        if finding is None:
            amount = "no" if tables.missing(self.needs, results) else "too few"
            cells = (f"{amount} results of {', '.join(self.needs)} yet", "open", "")
        else:
            cells = (finding.measured, f"**{finding.verdict}**", finding.reason)
        says = f"{self.says} ({self.where})" if self.where else self.says
        return f"| {' | '.join((says, *cells))} | `{self.command}` |\n"

    def finding(self, results: Path) -> Finding | None:
        """The finding; None if results are missing or cannot decide."""
        try:
            return self.judge([self.read(results / need) for need in self.needs])
        except MissingResultsError:
            return None


def reproduce(name: str, *, gpu: bool = False) -> str:
    """The command that makes the results and figures of this name."""
    return f"{COMMAND} reproduce {name}" + " --device cuda" * gpu


def lowest(values: dict[str, np.ndarray], ours: str) -> str:
    """The verdict on one line being below all others: on every seed, on average, or not."""
    others = [numbers for label, numbers in values.items() if label != ours]
    if not all(map(len, values.values())):
        return NOT
    if all((values[ours] < numbers).all() for numbers in others):
        return REPRODUCED
    if all(values[ours].mean() < numbers.mean() for numbers in others):
        return PARTLY
    return NOT

"""A claim, the results that can tell, and the verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvib.lab import tables
from kvib.lab.tables import MissingResultsError, Results

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
UNTESTED = "not tested as published"
"""The verdict where models, data, rates or rounds were others than the paper's."""
COMMAND = "python experiments/paper"
"""How this package is run, in the root of a clone."""
BASELINES = ("uniform", "Mabs", "Vrb", "Avare")
"""Samplers that the paper compares with."""


@dataclass(frozen=True)
class Finding:
    """What we saw."""

    measured: str
    verdict: str
    reason: str = ""


def paired(path: Path) -> Results:
    """Results of seeds that every sampler has played."""
    return tables.load(path).paired()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the results that can tell, the judgement, how to read results."""

    says: str
    where: str
    needs: tuple[str, ...]
    judge: Callable[[list[Any]], Finding]
    command: str
    read: Callable[[Path], Any] = paired

    def row(self, results: Path) -> str:
        """A row of a table: what was said, what was measured, the verdict, why, the command."""
        finding = self.finding(results)
        if finding is None:
            known = "no" if tables.missing(self.needs, results) else "too few"
            told = (f"{known} results of {', '.join(self.needs)} yet", "open", "")
        else:
            told = (finding.measured, f"**{finding.verdict}**", finding.reason)
        says = f"{self.says} ({self.where})" if self.where else self.says
        return f"| {' | '.join((says, *told))} | `{self.command}` |\n"

    def finding(self, results: Path) -> Finding | None:
        """None where results are missing, or where they cannot tell."""
        try:
            return self.judge([self.read(results / need) for need in self.needs])
        except MissingResultsError:
            return None


def reproduce(name: str, *, gpu: bool = False) -> str:
    """The command that makes the results and figures of this name."""
    return f"{COMMAND} reproduce {name}" + " --device cuda" * gpu


def lowest(values: dict[str, np.ndarray], ours: str) -> str:
    """Whether one line is below all others: on every seed, on average, or not."""
    others = [numbers for label, numbers in values.items() if label != ours]
    if not all(map(len, values.values())):
        return NOT
    if all((values[ours] < numbers).all() for numbers in others):
        return REPRODUCED
    if all(values[ours].mean() < numbers.mean() for numbers in others):
        return PARTLY
    return NOT

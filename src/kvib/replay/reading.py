"""One pass over a log under its terms, in which all rivals are measured."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from kvib.checks import normalise, short
from kvib.replay.logged import Logged
from kvib.replay.measurements import Measurements
from kvib.replay.members import Members
from kvib.replay.rivals import Rival
from kvib.replay.terms import Log, Terms


class Reading:
    """A log that is read once, from its first round to its last.

    Args:
        log: Rounds in the order of their draws, or a log that knows its terms.
        terms: The terms under which they were drawn. None asks the log.
    """

    def __init__(self, log: Log | Iterable[Logged], terms: Terms | None) -> None:
        self.terms = _terms(log, terms)
        first, self._rounds = _opened(log.rounds() if isinstance(log, Log) else log)
        self.budget = _design_budget(self.terms, first)
        """The budget that the sampler was made for, in units of the prices."""
        self.members = _members(self.terms, self.budget)
        """The clients at the first round."""

    def measurements(
        self,
        rivals: Sequence[tuple[Rival, Sequence[float | None]]],
        since: int,
        progress: Callable[[int], None] | None,
    ) -> Measurements:
        """The estimated variances of all rivals after the last round.

        Args:
            rivals: The rivals, each with its budgets.
            since: The number of the first round to measure.
            progress: A function that is called with the number of rounds read so far.
        """
        measurements = Measurements(rivals, self.members, since)
        for k, logged in enumerate(self._rounds):
            measurements.add(logged)
            if progress is not None:
                progress(k + 1)
        return measurements


def _terms(log: Log | Iterable[Logged], terms: Terms | None) -> Terms:
    """The terms that were given, or those of the log."""
    if isinstance(terms, Terms):
        return terms
    if terms is not None:
        raise ValueError(
            f"terms {short(terms)} are not terms; write kvib.replay.Terms(weights, procedure=…)"
        )
    if isinstance(log, Log):
        return log.terms()
    raise ValueError(
        "rounds alone do not say under which terms they were drawn; give the journal itself, "
        "kvib.journal.read(path), or terms=kvib.replay.Terms(weights, procedure=…)"
    )


def _opened(rounds: Iterable[Logged]) -> tuple[Logged, Iterator[Logged]]:
    """The first round, and an iterator over all rounds, the first included."""
    rest = iter(rounds)
    first = next(rest, None)
    if first is None:
        raise ValueError("no rounds to replay; log some first")
    if not isinstance(first, Logged):
        raise ValueError(
            f"{short(first)} is not a round of a log; give kvib.journal.read(path), or "
            "kvib.replay.Logged(cohort, norms) for every round"
        )
    return first, chain([first], rest)


def _design_budget(terms: Terms, first: Logged) -> float:
    """The budget of the terms; that of the first round where the terms have none."""
    for budget in (terms.budget, first.cohort.requested):
        if not math.isnan(budget):
            return budget
    return first.cohort.budget


def _members(terms: Terms, budget: float) -> Members:
    """The clients at the beginning, under these terms."""
    weights, variables = terms.weights.copy(), terms.variables
    normalise(weights)
    clients = budget if terms.prices is None else budget / float(terms.prices.mean())
    variables = np.empty((len(weights), 0)) if variables is None else variables
    return Members(weights, terms.prices, clients, terms.procedure.cap, variables)

"""Journals of version 1, whose rows had no seals: they are checked against the events instead."""

from collections.abc import Iterable, Iterator
from math import isclose
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvib.journal.access import torn
from kvib.journal.cohorts import digest, lengthened
from kvib.journal.layout import Answered, Drawn, Event, RoundRows, Tip


class Readable(Protocol):
    """The methods of a journal's file that this module needs."""

    path: Path
    about: dict[str, Any]
    tip: Tip

    @property
    def last(self) -> int:
        """The number of the last event."""

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """The one row that a query finds."""

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""

    def array(self, group: str, name: str) -> Any:
        """One array of a group."""

    def events(self, numbers: Iterable[int]) -> Iterator[Event]:
        """The events with these numbers."""


def tip(file: Readable) -> Tip:
    """The counts of the file, from its snapshot and the events after it."""
    (last,) = file.one("SELECT seq FROM sqlite_sequence WHERE name = 'event'")
    if not isinstance(last, int):
        raise torn(file.path, "the number of its last event is missing")
    file.tip = Tip(last)
    updated = file.array("now", "updated")
    since = [event.kind for event in file.events(range(file.about["snapshot"] + 1, last + 1))]
    feedback = sum(kind in ("update", "finish") for kind in since)
    return Tip(last, len(updated) + since.count("draw"), int(updated.sum()) + feedback)


def rounds(file: Readable) -> list[RoundRows]:
    """The rows of all rounds as version 2 would have written them.

    The estimated variance is taken as it is. So are the rows of rounds whose details were removed:
    no event is left to check them by.
    """
    drawn, answers = _written(file)
    removed, weights = file.about["removed"], file.array("begun", "weights")
    first = 1
    if removed:
        (first,) = file.one("SELECT min(number) FROM event")
    for event in file.events(range(first, file.last + 1)):
        if event.round is None:
            continue
        rows: dict[int, Any] = drawn if event.kind == "draw" else answers
        row = rows.get(event.round)
        if row is None or row.event or not _agrees(row, event, weights):
            raise torn(file.path, f"numbers of round {event.round} are not those of its events")
        rows[event.round] = row._replace(event=event.number)
    if (len(answers), list(drawn)) != (file.tip.answered, list(range(file.tip.rounds))):
        raise torn(file.path, f"one of {file.tip.rounds} rounds is missing")
    pairs = [(row, answers.get(row.round)) for row in drawn.values()]
    for draw, answer in pairs[removed:]:
        if not draw.event or (answer and not answer.event):
            raise torn(file.path, f"an event of round {draw.round} is missing")
    return pairs


def _written(file: Readable) -> tuple[dict[int, Drawn], dict[int, Answered]]:
    """The rows of all rounds as version 1 wrote them, by round, without the numbers of events."""
    drawn, answers = {}, {}
    names = "round, size, budget, coefficients, answered, variance, norms"
    for row in file.all(f"SELECT {names} FROM round ORDER BY round"):
        round, size, budget, coefficients, answered, variance, norms = row
        kinds = [int, int, float, float]
        if answered is not None:
            kinds += [int, float if variance is not None else type(None), bytes]
            answers[round] = Answered(round, 0, answered, variance, norms)
        if [type(value) for value in row[: len(kinds)]] != kinds:
            raise torn(file.path, f"numbers of round {round} are not numbers")
        drawn[round] = Drawn(round, 0, size, budget, coefficients)
    return drawn, answers


def _agrees(row: Drawn | Answered, event: Event, weights: Any) -> bool:
    """Whether the numbers of a row are those of an event, which has a seal."""
    if isinstance(row, Answered):
        norms = event.record["norms"]
        answered = int(np.count_nonzero(~np.isnan(norms)))
        return (row.answered, row.norms) == (answered, digest(norms))
    cohort = lengthened(event.record, weights)
    total = float(cohort.coefficients.sum())  # from expected counts in single precision
    same = (row.size, row.budget) == (len(cohort), cohort.budget)
    return same and isclose(row.coefficients, total, rel_tol=1e-5)

"""How the population of a journal changed, from the first round whose details it kept."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvib.files import storage
from kvib.journal.file import JournalFile
from kvib.journal.layout import Event, RoundRows
from kvib.journal.records import EventRecord
from kvib.replay.logged import Change, Joined, Left, Reweighed
from kvib.replay.members import Members
from kvib.types import BoolArray, FloatArray, IntArray, Key

_NO_VARIABLES = np.empty((0, 0))


class Past:
    """The clients of a journal through time, as its events tell.

    Clients are named by id, and weights are in units of the total at the beginning. Use it inside
    `JournalFile.at_once`.

    Where no round was removed, the population at the first kept round is that of the beginning.
    Otherwise it is found from the population of the last snapshot, by undoing change after change.

    Args:
        file: The file of the journal.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self.weights = file.array("begun", "weights")
        """λ at the beginning, [N]."""
        header = storage.about(file.array("now", "header"), "sampler")
        self._unit: tuple[float, float] = header["population"]["unit"]
        rates = file.array("now", "response.known")
        self._rate = rates if header["over-select"] and len(rates) else np.ones(1)
        self._costs = "cost.each" in file.about["arrays"]["now"]
        self._priced = self._costs or (header["over-select"] and len(rates) > 0)
        self._read = {"join": self._joined, "leave": self._left, "reweigh": self._reweighed}

    @property
    def prices(self) -> FloatArray | None:
        """Prices of the first clients, [N]; None means 1 each."""
        return None if self._start.prices is None else self._start.prices[: len(self.weights)]

    def most(self) -> float:
        """The largest budget that the clients could ever spend."""
        members = Members(self.weights, self.prices, 1.0, 1.0, _NO_VARIABLES)
        most = members.most
        for _, change in self._changes():
            change.happen(members)
            most = max(most, members.most)
        return most

    def rounds(self) -> Iterator[tuple[tuple[Change, ...], Event, Event | None]]:
        """Every kept round whose population is known.

        Each comes with the changes of the population since the draw before, the event of its draw,
        and the event of its feedback (None if there is none).
        """
        known, kept = self._start.number, self._rows[self._removed :]
        if kept and kept[-1][0].event < known:
            raise ValueError(
                f"{self._file.path}: no round was drawn since event {known}, and what clients "
                "weighed or cost before is not known any more; draw some rounds first"
            )
        kept = [pair for pair in kept if pair[0].event > known]
        events = self._file.events(row.event for pair in kept for row in pair if row is not None)
        changes = self._changes()
        ahead = next(changes, None)
        for drawn, answers in kept:
            happened = []
            while ahead is not None and ahead[0] < drawn.event:
                happened.append(ahead[1])
                ahead = next(changes, None)
            yield tuple(happened), next(events), None if answers is None else next(events)

    def _changes(self) -> Iterator[tuple[int, Change]]:
        """All changes from the beginning to the last event, each with the number of its event."""
        yield from ((self._start.number, change) for change in self._start.caught_up)
        known = self._start.number
        for event in self._file.events(number for number in self._others if number > known):
            if event.kind in self._read:
                yield event.number, self._read[event.kind](event)

    @property
    def _removed(self) -> int:
        """The first round whose details are kept."""
        removed: int = self._file.about["removed"]
        return removed

    @cached_property
    def _rows(self) -> list[RoundRows]:
        """The rows of all rounds."""
        return self._file.rounds()

    @cached_property
    def _others(self) -> list[int]:
        """Numbers of the kept events that are neither a draw nor feedback, ascending."""
        first = self._rows[self._removed][0].event if self._removed else 1
        of_rounds = [row.event for pair in self._rows for row in pair if row is not None]
        every = np.arange(first, self._file.last + 1)
        others: list[int] = np.setdiff1d(every, of_rounds).tolist()
        return others

    @cached_property
    def _start(self) -> "_Start":
        """The point from which on the population is known."""
        if not self._removed:  # then weights are known from the beginning, and costs may be
            unknown, back = self._undone(weights=False) if self._costs else (0, None)
            if not unknown:
                return _Start(0, (), self._rates if back is None else back.prices)
        unknown, back = self._undone(weights=True)
        return _Start(unknown, tuple(self._caught_up(back)), back.prices)

    @property
    def _rates(self) -> FloatArray | None:
        """Prices of the first clients where drawing has no costs, [N]; None means 1 each."""
        return np.ones(len(self.weights)) * self._rate if self._priced else None

    def _undone(self, weights: bool) -> tuple[int, "_Back"]:
        """The population before the first kept event, and 0.

        Where a change cannot be undone, it is the population after that change, and the number of
        its event.

        Args:
            weights: Whether the weights must be right. Without it a change of weights that cannot
                be undone is passed over.
        """
        back, snapshot = self._as_of_snapshot(weights), self._file.about["snapshot"]
        before = [number for number in self._others if number <= snapshot]
        changes = [event for event in self._file.events(before) if event.kind in self._read]
        for event in reversed(changes):
            if not back.undo(self._read[event.kind](event), event.record):
                return event.number, back
        return 0, back

    def _as_of_snapshot(self, by_weight: bool) -> "_Back":
        """The population of the last snapshot."""
        weights = self._file.array("now", "weights")
        present = np.ones(len(weights), np.bool_)
        present[self._file.array("now", "population.gone")] = False
        prices = None
        if self._priced:
            cost = self._file.array("now", "cost.each") if self._costs else np.ones(len(weights))
            prices = cost * self._rate
        return _Back(weights, present, prices, self._rate, by_weight)

    def _caught_up(self, back: "_Back") -> Iterator[Change]:
        """Changes that lead from the beginning to the first known population, as few as possible.

        A client that joins only after that point joins here and leaves again. Its later join is
        then a return without history.
        """
        N, every = len(self.weights), np.arange(len(back.weights))
        if len(every) > N:
            prices = None if back.prices is None else back.prices[N:]
            yield Joined(every[N:], back.weights[N:], prices, number=0)
        changed = np.flatnonzero(back.weights[:N] != self.weights)
        if len(changed):
            yield Reweighed(changed, back.weights[changed], number=0)
        if not back.present.all():
            yield Left(np.flatnonzero(~back.present), number=0)

    def _joined(self, event: Event) -> Change:
        """The change that a recorded join made."""
        record, prices = event.record, None
        ids = record["ids"]
        if self._priced:
            prices = self._rate * (record["cost"] if self._costs else np.ones(len(ids)))
        return Joined(ids, self._in_units(record["weights"]), prices, event.number)

    def _left(self, event: Event) -> Change:
        """The change that a recorded leave made."""
        return Left(np.unique(self._ids(event.record["keys"])), event.number)

    def _reweighed(self, event: Event) -> Change:
        """The change that a recorded change of weights made."""
        ids = self._ids(event.record["keys"])
        return Reweighed(ids, self._in_units(event.record["weights"]), event.number)

    def _in_units(self, weights: FloatArray) -> FloatArray:
        """Weights as the user gave them, in units of the total at the beginning."""
        return weights / self._unit[0] / self._unit[1]

    def _ids(self, keys: Iterable[Key]) -> IntArray:
        """Ids of clients by their keys."""
        ids = self._id_of
        return np.array([key if ids is None else ids[key] for key in keys], np.int64)

    @cached_property
    def _id_of(self) -> dict[Key, int] | None:
        """Ids by key; None where clients are named by their ids."""
        keys = names(self._file)
        return None if keys is None else {key: i for i, key in enumerate(keys)}


class _Start(NamedTuple):
    """The point from which on the population is known."""

    number: int
    """The event before which the population is not known; 0: it is known at every kept event."""
    caught_up: tuple[Change, ...]
    """Changes that lead from the beginning to that point."""
    prices: FloatArray | None
    """Prices of all clients at that point; None means 1 each."""


class _Back:
    """A population whose changes are undone one by one, the last one first.

    Args:
        weights: Weights of all clients that ever joined.
        present: Whether each client is in the population.
        prices: Prices of the clients. None means 1 each.
        rate: The factor that turns a cost into a price.
        by_weight: Whether the weights must be right.
    """

    def __init__(
        self,
        weights: FloatArray,
        present: BoolArray,
        prices: FloatArray | None,
        rate: FloatArray,
        by_weight: bool,
    ) -> None:
        self.weights, self.present, self.prices = weights, present, prices
        self._rate, self._by_weight = rate, by_weight
        self._unsure = np.zeros(len(weights), np.bool_)
        """Clients whose weight or cost at the time of their last presence is not known."""
        self._record: EventRecord = {}

    def undo(self, change: Change, record: EventRecord) -> bool:
        """Undo a change; False if that is not possible, and then nothing changes.

        Args:
            change: The change.
            record: The record of its event.
        """
        self._record, self._known = record, True
        change.happen(self)
        return self._known

    def join(self, ids: IntArray, weights: FloatArray, prices: FloatArray | None) -> None:
        """Undo a join: the clients were not in the population before."""
        self.present[ids] = False
        before = self._record.get("before", np.full(len(ids), np.nan))
        back = ~np.isnan(before)
        self.weights[ids[back]] = before[back]
        self._unsure[ids] = ~back
        if self.prices is not None and "cost before" in self._record:
            self.prices[ids[back]] = (self._rate * self._record["cost before"])[back]

    def leave(self, ids: IntArray) -> None:
        """Undo a leave: the clients were in the population before."""
        self._known = not self._unsure[ids].any()
        if self._known:
            self.present[ids] = True

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Undo a change of weights, if the weights before it are recorded."""
        before = self._record.get("before")
        if before is not None:
            self.weights[ids] = before
        elif self._by_weight:
            self._known = not self.present[ids].any()
            self._unsure[ids] |= self._known


def clients(file: JournalFile) -> int:
    """The number of clients that ever took part."""
    joined = (event.record["ids"].max(initial=-1) for event in file.events_since_snapshot(["join"]))
    return max([file.clients(), *(int(last) + 1 for last in joined)])


def names(file: JournalFile) -> Sequence[Key] | None:
    """Keys of all clients that ever took part, by their ids; None where their ids are the keys."""
    if "population.keys" not in file.about["arrays"]["now"]:
        return None
    keys: list[Key] = json.loads(file.array("now", "population.keys").tobytes())
    for event in file.events_since_snapshot(["join"]):
        joined = zip(event.record["ids"], event.record["keys"], strict=True)
        keys += [key for i, key in joined if i >= len(keys)]  # the others returned
    return keys

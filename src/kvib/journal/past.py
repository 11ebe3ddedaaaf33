"""How the population of a journal changed, from the first round that it kept."""

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
    """What the events of a journal say of its clients: by id, with weights in units of the total at
    the beginning. Asked inside `JournalFile.at_once`.

    The population at the first round that was kept is that of the beginning where nothing was
    removed. Else it is that of the last snapshot, taken back change by change.
    """

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self.weights = file.array("begun", "weights")
        """λ at the beginning, [N]."""
        said = storage.about(file.array("now", "header"), "sampler")
        self._unit: tuple[float, float] = said["population"]["unit"]
        rates = file.array("now", "response.known")
        self._rate = rates if said["over-select"] and len(rates) else np.ones(1)
        self._costs = "cost.each" in file.about["arrays"]["now"]
        self._priced = self._costs or (said["over-select"] and len(rates) > 0)
        self._read = {"join": self._joined, "leave": self._left, "reweigh": self._reweighed}

    @property
    def prices(self) -> FloatArray | None:
        """What drawing each of the first clients takes from the budget, [N]; None: one."""
        return None if self._start.prices is None else self._start.prices[: len(self.weights)]

    def most(self) -> float:
        """The largest budget that clients could ever spend."""
        members = Members(self.weights, self.prices, 1.0, 1.0, _NO_VARIABLES)
        most = members.most
        for _, change in self._changes():
            change.happen(members)
            most = max(most, members.most)
        return most

    def rounds(self) -> Iterator[tuple[tuple[Change, ...], Event, Event | None]]:
        """Every round that was kept and whose population is known: what happened to that since the
        draw before, the draw, and the feedback if that came."""
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
        """All changes that lead from the beginning to the last event, by their numbers."""
        yield from ((self._start.number, change) for change in self._start.caught_up)
        known = self._start.number
        for event in self._file.events(number for number in self._others if number > known):
            if event.kind in self._read:
                yield event.number, self._read[event.kind](event)

    @property
    def _removed(self) -> int:
        removed: int = self._file.about["removed"]
        return removed

    @cached_property
    def _rows(self) -> list[RoundRows]:
        return self._file.rounds()

    @cached_property
    def _others(self) -> list[int]:
        """Numbers of the events that are there and are neither a draw nor feedback, ascending."""
        first = self._rows[self._removed][0].event if self._removed else 1
        of_rounds = [row.event for pair in self._rows for row in pair if row is not None]
        every = np.arange(first, self._file.last + 1)
        others: list[int] = np.setdiff1d(every, of_rounds).tolist()
        return others

    @cached_property
    def _start(self) -> "_Start":
        if not self._removed:  # then weights are known from the beginning, and costs may be
            unknown, back = self._gone_back(weights=False) if self._costs else (0, None)
            if not unknown:
                return _Start(0, (), self._rates if back is None else back.prices)
        unknown, back = self._gone_back(weights=True)
        return _Start(unknown, tuple(self._caught_up(back)), back.prices)

    @property
    def _rates(self) -> FloatArray | None:
        """Prices where drawing has no costs."""
        return np.ones(len(self.weights)) * self._rate if self._priced else None

    def _gone_back(self, weights: bool) -> tuple[int, "_Back"]:
        """The population as of the first event that was kept, and 0; or as of the last one that
        cannot be taken back, and its number. Without `weights` they need not be right."""
        back, snapshot = self._as_of_snapshot(weights), self._file.about["snapshot"]
        before = [number for number in self._others if number <= snapshot]
        changes = [event for event in self._file.events(before) if event.kind in self._read]
        for event in reversed(changes):
            if not back.undo(self._read[event.kind](event), event.record):
                return event.number, back
        return 0, back

    def _as_of_snapshot(self, by_weight: bool) -> "_Back":
        weights = self._file.array("now", "weights")
        present = np.ones(len(weights), np.bool_)
        present[self._file.array("now", "population.gone")] = False
        prices = None
        if self._priced:
            cost = self._file.array("now", "cost.each") if self._costs else np.ones(len(weights))
            prices = cost * self._rate
        return _Back(weights, present, prices, self._rate, by_weight)

    def _caught_up(self, back: "_Back") -> Iterator[Change]:
        """From the beginning to the first population that is known, in as few steps as it takes.
        Clients who came later are there and gone: whoever was never seen comes back as new."""
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
        record, prices = event.record, None
        ids = record["ids"]
        if self._priced:
            prices = self._rate * (record["cost"] if self._costs else np.ones(len(ids)))
        return Joined(ids, self._in_units(record["weights"]), prices, event.number)

    def _left(self, event: Event) -> Change:
        return Left(np.unique(self._ids(event.record["keys"])), event.number)

    def _reweighed(self, event: Event) -> Change:
        ids = self._ids(event.record["keys"])
        return Reweighed(ids, self._in_units(event.record["weights"]), event.number)

    def _in_units(self, weights: FloatArray) -> FloatArray:
        return weights / self._unit[0] / self._unit[1]

    def _ids(self, keys: Iterable[Key]) -> IntArray:
        known = self._id_of
        return np.array([key if known is None else known[key] for key in keys], np.int64)

    @cached_property
    def _id_of(self) -> dict[Key, int] | None:
        called = names(self._file)
        return None if called is None else {key: i for i, key in enumerate(called)}


class _Start(NamedTuple):
    """From where on the population is known."""

    number: int
    """The event before which the population is not known; 0: it is known from the first kept."""
    caught_up: tuple[Change, ...]
    """What leads there from the beginning."""
    prices: FloatArray | None


class _Back:
    """A population that is taken back, change by change.

    Args:
        weights: of all clients who ever came.
        present: who is there.
        prices: what drawing each takes from the budget; None: one.
        rate: what a cost is multiplied by to be a price.
        by_weight: whether weights must be right.
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
        """Clients whose weight or cost is not known of the time when they were last there."""
        self._record: EventRecord = {}

    def undo(self, change: Change, record: EventRecord) -> bool:
        """Whether a change, of which this is recorded, could be taken back. If not, all is as
        before."""
        self._record, self._known = record, True
        change.happen(self)
        return self._known

    def join(self, ids: IntArray, weights: FloatArray, prices: FloatArray | None) -> None:
        """They were away before."""
        self.present[ids] = False
        before = self._record.get("before", np.full(len(ids), np.nan))
        back = ~np.isnan(before)
        self.weights[ids[back]] = before[back]
        self._unsure[ids] = ~back
        if self.prices is not None and "cost before" in self._record:
            self.prices[ids[back]] = (self._rate * self._record["cost before"])[back]

    def leave(self, ids: IntArray) -> None:
        """They were there before."""
        self._known = not self._unsure[ids].any()
        if self._known:
            self.present[ids] = True

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """They had other weights before."""
        before = self._record.get("before")
        if before is not None:
            self.weights[ids] = before
        elif self._by_weight:
            self._known = not self.present[ids].any()
            self._unsure[ids] |= self._known


def clients(file: JournalFile) -> int:
    """How many clients ever took part."""
    joined = (event.record["ids"].max(initial=-1) for event in file.events_since_snapshot(["join"]))
    return max([file.clients(), *(int(last) + 1 for last in joined)])


def names(file: JournalFile) -> Sequence[Key] | None:
    """What all clients are called who ever took part, by their ids; None: by their ids."""
    if "population.keys" not in file.about["arrays"]["now"]:
        return None
    known: list[Key] = json.loads(file.array("now", "population.keys").tobytes())
    for event in file.events_since_snapshot(["join"]):
        came = zip(event.record["ids"], event.record["keys"], strict=True)
        known += [key for i, key in came if i >= len(known)]  # the others came back
    return known

"""A sampler whose every round is durable, and that continues where a dead process stopped."""

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import getLogger
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import kvib
from kvib import switching
from kvib.checkin import Admission
from kvib.checks import checked_cohort, cohort_norms
from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.estimation import Ended
from kvib.journal import agreement, cohorts, switches
from kvib.journal.access import TornError, torn
from kvib.journal.file import Event, JournalFile
from kvib.journal.layout import GIVE_UP, Drawn, Heard, Row, Upgrade, storable
from kvib.journal.learning import taught
from kvib.journal.lock import Lock
from kvib.journal.records import Record
from kvib.ledger import HEARD
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.population import Key, listed
from kvib.procedures import Procedure
from kvib.sampler import Sampler
from kvib.switching import Learned, NewGuard
from kvib.urn import Chances
from kvib.variance import deviation

REPLAY = 1.0
"""Seconds of work to be done again at opening before a snapshot is due,"""
SHARE = 0.2
"""unless snapshots would take more than this part of the time."""
_LARGEST = float(np.finfo(np.float32).max)
_LOG = getLogger("kvib.journal")


class Done(NamedTuple):
    """What an event did."""

    round: int | None = None
    outcome: Mapping[str, Any] = MappingProxyType({})
    """Written beside what was given; doing the event again must give the same."""
    row: Row | None = None
    """Numbers of its round."""
    result: Any = None


class Journalled(Sampler):
    """A `Sampler` that writes down what happens to it; made by `journalled`.

    Whatever changes it is an event: done, written and durable before the call returns. If it cannot
    be written the sampler stops, since it would know more than its file.
    """

    keeps_variance = True
    _file: JournalFile | None = None
    _stopped = "it has no file; open one with kvib.journalled(path, …)"
    _held: Lock

    def _start(self, file: JournalFile, weights: FloatArray, relearns: bool) -> None:
        self._file, self._stopped, self._process = file, "", os.getpid()
        self._begun_weights = weights
        self._recent: dict[int, Cohort] = {}
        """Drawn since the last snapshot and not heard of."""
        self._spent = self._snapshot_cost = 0.0
        self._fact: Cohort | None = None
        """While a recorded draw is done again: its cohort."""
        self._changed: int | None = None
        """The first round that came out differently when it was done again."""
        self._relearns = relearns
        """Whether all rounds are learned from once more."""

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, in {self._file.path if self._file else 'no file'}>"

    def __enter__(self) -> "Journalled":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, so that it can be opened elsewhere. Nothing is lost without it."""
        with self._lock:
            self._stop("it was closed")

    def draw(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> Cohort:
        """As `Sampler.draw`; durable before the cohort is returned."""
        given: Record = {}
        if absent is not None:
            given["given absent"] = np.asarray(absent)
        if available is not None:
            given["given available"] = np.asarray(available)
        if budget is not None:
            given["given budget"] = float(budget)
        if norms is not None:
            given["given norms"] = _single(np.asarray(norms, dtype=np.float64))
        cohort: Cohort = self._do("draw", None, given)
        return cohort

    def admit(self, key: Key) -> Admission:
        """As `Sampler.admit`; that the round is open is durable before anybody is admitted."""
        with self._lock:
            self._usable()
            return super().admit(key)

    def _open_check_in(self) -> None:
        self._do("check in", None, {})

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """As `Sampler.gather`, likewise."""
        cohort: Cohort = self._do("draw", None, {"checked in": listed(keys)})
        return cohort

    def join(
        self,
        weights: ArrayLike,
        keys: Sequence[Key] | Key | None = None,
        cost: ArrayLike | None = None,
    ) -> IntArray:
        """As `Sampler.join`, likewise."""
        record: Record = {"weights": np.atleast_1d(np.asarray(weights, np.float64))}
        if keys is not None:
            record["keys"] = listed(keys)
        if cost is not None:
            record["cost"] = np.atleast_1d(np.asarray(cost, np.float64))
        ids: IntArray = self._do("join", None, record)
        return ids

    def leave(self, keys: Any) -> None:
        """As `Sampler.leave`, likewise."""
        self._do("leave", None, {"keys": listed(keys)})

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """As `Sampler.reweigh`, likewise."""
        new = np.atleast_1d(np.asarray(weights, np.float64))
        self._do("reweigh", None, {"keys": listed(keys), "weights": new})

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """As `Sampler.update`, of norms in single precision; durable before it returns.

        The same once more is ignored, so that a server may repeat what it is unsure of.
        """
        with self._lock:
            values = _single(cohort_norms(cohort, norms))
            if not self._heard(cohort, values):
                self._refuse_check_in("update")
                self._warn(cohort, values.astype(np.float64))
                self._do("update", cohort.round, {"norms": values}, checked=True)

    def give_up(self, cohort: Cohort) -> None:
        """As `Sampler.give_up`; durable before it returns."""
        with self._lock:
            self._usable()
            self._ledger.check(checked_cohort(cohort))
            self._as_drawn(cohort)
            self._do(GIVE_UP, cohort.round, {}, checked=True)

    def _finish(self, ended: Ended) -> None:
        """As `Sampler` learns from it; durable, and the variance is kept with the round."""
        cohort = ended.cohort
        with self._lock:
            values = _single(cohort_norms(cohort, ended.norms))
            self._usable()
            self._ledger.check(cohort)
            self._as_drawn(cohort)
            self._refuse_check_in("finish")
            sketched = ended.sketches.astype(np.float32)
            record = {"norms": values, "sketches": sketched, "usual": ended.usual}
            if not math.isnan(ended.variance):
                record["variance"] = float(ended.variance)
            self._do("finish", cohort.round, record, checked=True)

    def switch(
        self,
        policy: Policy[Any],
        procedure: Procedure | None = None,
        guard: NewGuard = "keep",
    ) -> Learned:
        """As `Sampler.switch`, and the new policy learns from all past rounds whose details are
        kept; durable before it returns, as a whole or not at all."""
        with self._lock:
            file = self._usable()
            self._refuse_check_in("switch")
            way = switching.chosen(self, policy, procedure, guard)
            if way is None:
                return Learned(0, 0)
            learner, learned = taught(self, file, way)
            about = agreement.switched(file.about, way, self.round, learned)
            with self._or_stop():
                switching.take_over(self, way, learner)
                self._snapshot(("switch", about["switches"][-1]), **about)
            return learned

    def outstanding(self) -> list[Cohort]:
        """Cohorts neither updated nor given up, the oldest first, to finish after a restart.

        Second moments come back for independent draws only.
        """
        with self._lock:
            self._usable()
            found = [self._drawn(int(round)) for round in self._ledger.outstanding()]
            return [self._with_moments(cohort) for cohort in found if cohort is not None]

    def _with_moments(self, cohort: Cohort) -> Cohort:
        known = {**PROCEDURES, self.procedure.name: self.procedure}
        name = switches.procedure_of(self._usable().about, cohort.round)
        return cohorts.with_moments(cohort, known.get(name))

    def _heard(self, cohort: Cohort, values: NDArray[np.float32]) -> bool:
        """Whether the file has exactly this feedback; an error if it has another."""
        file, at = self._usable(), cohort.round
        ours = cohort.token == self._ledger.token and 0 <= at < self.round
        if not (ours and self._ledger.updated[at] == HEARD):
            self._ledger.check(cohort)
            self._as_drawn(cohort)
            return False
        if file.row(Heard, at).norms != cohorts.digest(values):
            raise ValueError(
                f"the cohort of round {at} was updated before, with other norms; the first ones "
                "count, leave it at that"
            )
        return True

    def _as_drawn(self, cohort: Cohort) -> None:
        known = self._drawn(cohort.round)
        if known is None:
            raise ValueError(
                f"round {cohort.round} was given up: this journal keeps {self._keep} rounds; open "
                "it with a larger keep=… if answers take longer"
            )
        if not np.array_equal(known.ids, cohort.ids):
            raise ValueError(
                f"this is not the cohort that was drawn in round {cohort.round}; give it as drawn, "
                "with NaN where there was no answer"
            )

    def _drawn(self, round: int) -> Cohort | None:
        """The cohort of a round that was not heard of; None if it was given up."""
        if round in self._recent:
            return self._recent[round]
        file = self._usable()
        record = file.waiting(round)
        if record is None and round >= file.about["removed"]:
            raise torn(file.path, f"the cohort of round {round} is missing")
        return None if record is None else Cohort(**record)

    # Events

    def _do(self, kind: str, round: int | None, record: Record, checked: bool = False) -> Any:
        """Do something and write it down, or neither; stop where that cannot be told.

        Args:
            kind: a name in `KINDS`.
            round: the round it belongs to, if known before.
            record: what was given.
            checked: whether that was checked, so that an error leaves a half-changed sampler.
        """
        with self._lock:
            file = self._usable()
            with self._or_stop(harmless=() if checked else (ValueError, TypeError)):
                done = self._again(kind, round, record)
            with self._or_stop():
                file.append(kind, done.round, {**record, **done.outcome}, done.row)
                if self._due():
                    self._snapshot()
            return done.result

    @contextmanager
    def _or_stop(self, harmless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Stop after an error, but for those that leave sampler and file as they were."""
        try:
            yield
        except sqlite3.Error as error:
            self._stop(f"its file could not be written ({error}): free space or restore access")
            raise OSError(self._refusal()) from error
        except BaseException as error:
            if not isinstance(error, harmless):
                self._stop(f"it was interrupted by {error!r}")
            raise

    def _again(self, kind: str, round: int | None, record: Record) -> Done:
        started = time.perf_counter()
        try:
            return KINDS[kind](self, round, record)
        finally:
            self._spent += time.perf_counter() - started

    def _replay(self, event: Event) -> None:
        """Do again what a process did that is gone."""
        path, what = self._usable().path, f"event {event.number} ({event.kind})"
        if event.kind not in KINDS:
            raise ValueError(f"{path} has {event.kind!r} events: install the kvib it is from")
        try:
            done = self._again(event.kind, event.round, event.record)
        except TornError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: {what} cannot be done again ({error}); nothing was changed: open it with "
                "the kvib and the policy that it was written with"
            ) from error
        if done.round != event.round:
            raise torn(path, f"{what} is of round {event.round}, not of round {done.round}")
        ids = done.outcome.get("ids")
        if ids is not None and not np.array_equal(ids, event.record["ids"]):
            raise torn(path, f"{what} is of other clients")

    def _as_recorded(self, draw: Callable[[], Cohort], record: Record) -> Cohort:
        """A recorded cohort is a fact. To draw it again gives its probabilities in full precision;
        where the rule has changed since, the cohort is taken as it is recorded."""
        unknown = record["ids"][(record["ids"] < 0) | (record["ids"] >= len(self))]
        if len(unknown):
            raise ValueError(f"there is no client {unknown[0]}")
        self._fact = fact = cohorts.lengthened(record, self._begun_weights, round=self.round)
        try:
            return draw()
        except (TypeError, ValueError):  # today's rule would not draw it at all
            return self._take(fact, record)
        finally:
            self._fact = None

    def _take(self, fact: Cohort, record: Record) -> Cohort:
        """What a draw does beside drawing."""
        self._note(fact)
        self._check_in = None
        available, absent = (record.get(f"given {name}") for name in ("available", "absent"))
        self._count_available(available, self._absent(absent))
        chances = Chances(np.zeros_like, lambda rng: fact, fact.budget, fact.requested)
        return self._opened(fact, chances, None)

    def _opened(self, drawn: Cohort, chances: Chances, left_out: IntArray | None) -> Cohort:
        """As `Sampler` opens the next round, or as it is recorded."""
        fact = self._fact
        if fact is None:
            return super()._opened(drawn, chances, left_out)
        same = cohorts.alike(drawn, fact, cohorts.DRAWN)
        cohort = super()._opened(drawn if same else fact, chances, left_out)
        if same and cohorts.alike(cohort, fact, cohorts.CONDITIONS):
            return cohort
        self._note(fact)
        recorded = replace(cohort, **{name: getattr(fact, name) for name in cohorts.CONDITIONS})
        self._ledger.keep(recorded)
        return recorded

    def _note(self, fact: Cohort) -> None:
        """Remember the first recorded round of this policy that comes out differently today."""
        if self._changed is None and fact.round >= self._since:
            self._changed = fact.round

    @property
    def _since(self) -> int:
        """The first round that was left to the policy of today."""
        return switches.since(self._usable().about)

    # Snapshots

    @property
    def _keep(self) -> int | None:
        keep: int | None = self._usable().about["keep"]
        return keep

    def _due(self) -> bool:
        about, last = self._usable().about, self._usable().last
        if about["snapshot_every"] is not None:
            return bool(last - about["snapshot"] >= 2 * about["snapshot_every"])
        return self._spent >= max(REPLAY, self._snapshot_cost / SHARE)

    def _snapshot(self, event: tuple[str, Record] | None = None, **about: Any) -> None:
        started, file = time.perf_counter(), self._usable()
        arrays, removed = {"now": self.packed()}, file.about["removed"]
        if self._keep is not None and self.round - self._keep > removed:
            removed = self.round - self._keep
            arrays["removed"] = {"participation": self._participation_before(removed)}
        waiting = {at: cohorts.exact(cohort) for at, cohort in self._recent.items()}
        file.snapshot(arrays, waiting, event, removed=removed, **about)
        self._recent.clear()
        self._spent, self._snapshot_cost = 0.0, time.perf_counter() - started

    def _upgrade(self) -> None:
        """Say once that recorded rounds come out differently today, and keep what was learned."""
        if self._changed is None and not self._relearns:
            return
        file, upgrade = self._usable(), Upgrade(kvib.__version__, self._changed, self._relearns)
        said = upgrade._asdict()
        with file.reading():
            self._snapshot(("upgrade", said), upgrades=[*file.about.get("upgrades", []), said])
        _LOG.warning("%s: %s", file.path, upgrade)
        self._changed, self._relearns = None, False

    def _participation_before(self, end: int) -> NDArray[np.uint32]:
        """How often each client was drawn in rounds whose details are about to be removed."""
        file = self._usable()
        total = np.zeros(len(self), np.uint32)
        for earlier in file.arrays("removed").values():
            total[: len(earlier)] += earlier
        rows = (file.row(Drawn, round) for round in range(file.about["removed"], end))
        for event in file.events(row.event for row in rows):
            total[event.record["ids"]] += 1
        return total

    # Stopping

    def _usable(self) -> JournalFile:
        if self._file is None or self._stopped:
            raise OSError(self._refusal())
        if os.getpid() != self._process:
            raise OSError(
                f"{self._file.path} was opened by process {self._process}, this is its child "
                f"{os.getpid()}; draw and update where it was opened"
            )
        return self._file

    def _refusal(self) -> str:
        where = f" {self._file.path}" if self._file else ""
        return (
            f"the sampler{where} has stopped, {self._stopped}. What it did before is safe; "
            "open it again: kvib.journalled(path)"
        )

    def _stop(self, why: str) -> None:
        if self._file is not None and not self._stopped:
            self._stopped = why
            self._file.close()
            self._held.release()


def _draw(sampler: Journalled, round: int | None, record: Record) -> Done:
    given = {
        name.removeprefix("given "): value
        for name, value in record.items()
        if name.startswith("given ")
    }
    draw = partial(Sampler.draw, sampler, **given)
    if "checked in" in record:
        draw = partial(Sampler.gather, sampler, record["checked in"])
    cohort = sampler._as_recorded(draw, record) if "ids" in record else draw()
    sampler._recent[cohort.round] = replace(cohort, pairs=None)  # they hold on to [N] numbers
    total = float(cohort.coefficients.sum())
    row = Drawn(cohort.round, 0, len(cohort), float(cohort.budget), total)
    return Done(cohort.round, cohorts.short(cohort, sampler._begun_weights), row, cohort)


def _update(sampler: Journalled, round: int | None, record: Record) -> Done:
    cohort, norms = _waiting(sampler, round), record["norms"].astype(np.float64)
    sampler._ledger.check(cohort)
    sampler._learn(cohort, norms)
    return _learned(sampler, cohort, norms)


def _finish(sampler: Journalled, round: int | None, record: Record) -> Done:
    cohort, norms = _waiting(sampler, round), record["norms"].astype(np.float64)
    sketches = record["sketches"].astype(np.float64)
    ended = Ended(cohort, norms, sketches, record["usual"], [])
    Sampler._finish(sampler, ended)
    return _learned(sampler, cohort, norms, record.get("variance"))


def _give_up(sampler: Journalled, round: int | None, record: Record) -> Done:
    Sampler.give_up(sampler, _waiting(sampler, round))
    assert round is not None
    sampler._recent.pop(round, None)
    return Done(round)


def _check_in(sampler: Journalled, round: int | None, record: Record) -> Done:
    if sampler.round >= sampler._since:  # else another policy drew it, and its cohort is a fact
        Sampler._open_check_in(sampler)
    return Done()


def _join(sampler: Journalled, round: int | None, record: Record) -> Done:
    before = _before(sampler, record)
    ids = Sampler.join(sampler, record["weights"], record.get("keys"), record.get("cost"))
    return Done(outcome={"ids": ids, **before}, result=ids)


def _leave(sampler: Journalled, round: int | None, record: Record) -> Done:
    Sampler.leave(sampler, record["keys"])
    return Done()


def _reweigh(sampler: Journalled, round: int | None, record: Record) -> Done:
    before = _before(sampler, record)
    Sampler.reweigh(sampler, record["keys"], record["weights"])
    return Done(outcome=before)


def _keep_begun(sampler: Journalled) -> None:
    """Weights of the beginning are kept once, with those of today, until one of them changes."""
    if np.may_share_memory(sampler._begun_weights, sampler.population.raw):
        sampler._begun_weights = sampler._begun_weights.copy()


def _before(sampler: Journalled, record: Record) -> Record:
    """What clients weighed and cost before they come back or are weighed anew: a journal that has
    forgotten its beginning goes back from a snapshot to what they were in its first round."""
    _keep_begun(sampler)
    ids = sampler.population.found(record.get("keys", []))
    if (ids < 0).all():
        return {}
    before = {"before": np.where(ids < 0, np.nan, sampler.population.raw[ids])}
    if sampler.prices.cost is not None:
        before["cost before"] = np.where(ids < 0, np.nan, sampler.prices.cost[ids])
    return before


def _known(sampler: Journalled, round: int | None, record: Record) -> Done:
    """Another kvib or another policy took over here; the snapshot with it knows."""
    return Done()


KINDS: dict[str, Callable[[Journalled, int | None, Record], Done]] = {
    "draw": _draw,
    "check in": _check_in,
    "update": _update,
    "finish": _finish,
    "join": _join,
    "leave": _leave,
    "reweigh": _reweigh,
    GIVE_UP: _give_up,
    "upgrade": _known,
    "switch": _known,
}
"""Everything that changes a sampler, and how it is done, the first time and again."""


def _waiting(sampler: Journalled, round: int | None) -> Cohort:
    cohort = None if round is None else sampler._drawn(round)
    if cohort is None:
        raise torn(sampler._usable().path, f"the cohort of round {round} is missing")
    return cohort


def _learned(
    sampler: Journalled, cohort: Cohort, norms: FloatArray, seen: float | None = None
) -> Done:
    """The round is over; its variance as `seen` in the updates, or as far as norms tell."""
    sampler._recent.pop(cohort.round, None)
    variance, known = math.nan if seen is None else seen, sampler._with_moments(cohort)
    if seen is None and known.pairs is not None:
        variance = deviation(known, norms, None).value
    answered = int(np.count_nonzero(~np.isnan(norms)))
    digest = cohorts.digest(norms.astype(np.float32))
    return Done(cohort.round, row=Heard(cohort.round, 0, answered, storable(variance), digest))


def _single(norms: FloatArray) -> NDArray[np.float32]:
    """In the precision of the file, so that replaying is exact."""
    if (norms > _LARGEST).any():
        raise ValueError(
            f"norm {norms[norms > _LARGEST].max():g} is beyond single precision ({_LARGEST:g}), "
            "which a journal keeps; report NaN for a client that failed or diverged"
        )
    single = norms.astype(np.float32)
    single[np.isnan(single)] = np.nan  # one NaN, not many: they are compared by their bytes
    return single

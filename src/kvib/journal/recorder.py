"""A sampler and the file that knows everything that happened to it."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from logging import getLogger
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Cohort
from kvib.journal import cohorts, switches
from kvib.journal.access import TornError, torn
from kvib.journal.file import JournalFile
from kvib.journal.layout import Drawn, Event, FileRow, Upgrade
from kvib.journal.lock import Lock
from kvib.journal.records import EventRecord
from kvib.names import PROCEDURES
from kvib.sampler.drawing import Conditions, Draw
from kvib.sampler.sampler import Sampler
from kvib.types import FloatArray
from kvib.version import __version__

REPLAY = 1.0
"""Take a snapshot once replaying would cost this many seconds."""
SHARE = 0.2
"""Spend at most this share of the run time on snapshots."""
_LOG = getLogger("kvib.journal")


class Done(NamedTuple):
    """What an event did."""

    round: int | None = None
    outcome: Mapping[str, Any] = MappingProxyType({})
    """Written beside what was given; doing the event again must give the same."""
    row: FileRow | None = None
    """Numbers of its round."""
    result: Any = None


Doing = Callable[["Recorder", int | None, EventRecord], Done]
"""How a kind of event is done: with its round, if that is known before, and what was given."""


class Recorder:
    """Does events to a sampler and writes them down, each durable before the call returns.

    If an event cannot be written the recorder stops, since the sampler would know more than its
    file.

    Args:
        sampler: as of the last snapshot.
        file: the journal, open for reading; `write_to` opens it for writing.
        weights: λ at the beginning.
        kinds: how each kind of event is done.
        relearns: whether all rounds are learned from once more.
    """

    def __init__(
        self,
        sampler: Sampler,
        file: JournalFile,
        weights: FloatArray,
        kinds: Mapping[str, Doing],
        relearns: bool,
    ) -> None:
        self.sampler = sampler
        self.file = file
        self.recent: dict[int, Cohort] = {}
        """Cohorts that were drawn since the last snapshot and have no feedback yet."""
        self._kinds = kinds
        self._begun_weights = weights
        self._relearns = relearns
        self._changed: int | None = None
        """The first round that came out differently when it was done again."""
        self.spent = 0.0
        """Seconds of work since the last snapshot."""
        self.snapshot_cost = 0.0
        """Seconds that the last snapshot took."""
        self._process = os.getpid()
        self._stopped = ""
        self._held: Lock | None = None

    @property
    def begun_weights(self) -> FloatArray:
        """λ at the beginning, [N]."""
        return self._begun_weights

    def keep_begun_weights(self) -> None:
        """Keep them apart from the weights of today, which are about to change."""
        if np.may_share_memory(self._begun_weights, self.sampler.state.population.raw):
            self._begun_weights = self._begun_weights.copy()

    def cohort(self, round: int) -> Cohort | None:
        """The cohort of a round without feedback; None if its details were removed."""
        if round in self.recent:
            return self.recent[round]
        file = self.usable()
        record = file.waiting(round)
        if record is None and round >= file.about["removed"]:
            raise torn(file.path, f"the cohort of round {round} is missing")
        return None if record is None else cohorts.whole(record)

    def waiting(self, round: int | None) -> Cohort:
        """The cohort of a round without feedback, which must be there."""
        cohort = None if round is None else self.cohort(round)
        if cohort is None:
            raise torn(self.usable().path, f"the cohort of round {round} is missing")
        return cohort

    def with_moments(self, cohort: Cohort) -> Cohort:
        """A cohort with its second moments, if its procedure draws clients independently."""
        procedure = self.sampler.procedure
        known = {**PROCEDURES, procedure.name: procedure}
        name = switches.procedure_of(self.usable().about, cohort.round)
        return cohorts.with_moments(cohort, known.get(name))

    # Events

    def do(self, kind: str, round: int | None, record: EventRecord, checked: bool = False) -> Any:
        """Do something and write it down, or neither; stop where that cannot be told.

        Args:
            kind: of the event.
            round: the round it belongs to, if known before.
            record: what was given.
            checked: whether that was checked, so that an error leaves a half-changed sampler.
        """
        with self.sampler.state.lock:
            file = self.usable()
            with self.or_stop(harmless=() if checked else (ValueError, TypeError)):
                done = self._done(kind, round, record)
            with self.or_stop():
                file.append(kind, done.round, {**record, **done.outcome}, done.row)
                if self._due():
                    self.snapshot()
            return done.result

    @contextmanager
    def or_stop(self, harmless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Stop after an error, but for those that leave sampler and file as they were."""
        try:
            yield
        except sqlite3.Error as error:
            self.stop(f"its file could not be written ({error}): free space or restore access")
            raise OSError(self._refusal()) from error
        except BaseException as error:
            if not isinstance(error, harmless):
                self.stop(f"it was interrupted by {error!r}")
            raise

    def _done(self, kind: str, round: int | None, record: EventRecord) -> Done:
        started = time.perf_counter()
        try:
            return self._kinds[kind](self, round, record)
        finally:
            self.spent += time.perf_counter() - started

    def replay(self, event: Event) -> None:
        """Do again what a process did that is gone."""
        path, what = self.usable().path, f"event {event.number} ({event.kind})"
        if event.kind not in self._kinds:
            raise ValueError(f"{path} has {event.kind!r} events: install the kvib it is from")
        try:
            done = self._done(event.kind, event.round, event.record)
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

    def drawn_again(self, record: EventRecord, given: Conditions) -> Cohort:
        """The cohort of a recorded draw, which is a fact.

        To draw it again gives its probabilities in full precision. Where the rule has changed
        since, the cohort is taken as it is recorded.
        """
        state = self.sampler.state
        unknown = record["ids"][(record["ids"] < 0) | (record["ids"] >= len(self.sampler))]
        if len(unknown):
            raise ValueError(f"there is no client {unknown[0]}")
        fact = cohorts.lengthened(record, self._begun_weights, round=state.rounds.round)
        try:
            draw = self._drawn_by_rule(record, given)
        except (TypeError, ValueError):  # today's rule would not draw it at all
            self._note(fact)
            draw = state.drawing.drawn(fact, fact.budget, fact.requested, given)
            draw = draw._replace(excluded=None)
        state.check_in.close()
        same = cohorts.alike(draw.cohort, fact, cohorts.DRAWN)
        cohort = state.drawing.open(draw if same else draw._replace(cohort=fact))
        if same and cohorts.alike(cohort, fact, cohorts.CONDITIONS):
            return cohort
        self._note(fact)
        recorded = replace(cohort, **{name: getattr(fact, name) for name in cohorts.CONDITIONS})
        state.rounds.keep(recorded)
        return recorded

    def _drawn_by_rule(self, record: EventRecord, given: Conditions) -> Draw:
        """What today's rule draws in a recorded round."""
        state = self.sampler.state
        if "checked in" in record:
            return state.check_in.gathered(record["checked in"])
        state.check_in.refuse("draw")
        return state.drawing.draw(given)

    def _note(self, fact: Cohort) -> None:
        """Remember the first recorded round of this policy that comes out differently today."""
        if self._changed is None and fact.round >= self.since:
            self._changed = fact.round

    @property
    def since(self) -> int:
        """The first round that was left to the policy of today."""
        return switches.since(self.usable().about)

    # Snapshots

    @property
    def keep(self) -> int | None:
        """The number of last rounds whose details are kept; None means all."""
        keep: int | None = self.usable().about["keep"]
        return keep

    def _due(self) -> bool:
        about, last = self.usable().about, self.usable().last
        if about["snapshot_every"] is not None:
            return bool(last - about["snapshot"] >= 2 * about["snapshot_every"])
        return self.spent >= max(REPLAY, self.snapshot_cost / SHARE)

    def snapshot(self, event: tuple[str, EventRecord] | None = None, **about: Any) -> None:
        """Write down the sampler as it is; with `event`, that comes first and is known to it."""
        started, file, round = time.perf_counter(), self.usable(), self.sampler.round
        arrays, removed = {"now": self.sampler.packed()}, file.about["removed"]
        if self.keep is not None and round - self.keep > removed:
            removed = round - self.keep
            arrays["removed"] = {"participation": self._participation_before(removed)}
        waiting = {at: cohorts.exact(cohort) for at, cohort in self.recent.items()}
        file.snapshot(arrays, waiting, event, removed=removed, **about)
        self.recent.clear()
        self.spent, self.snapshot_cost = 0.0, time.perf_counter() - started

    def _participation_before(self, end: int) -> NDArray[np.uint32]:
        """How often each client was drawn in rounds whose details are about to be removed."""
        file = self.usable()
        total = np.zeros(len(self.sampler), np.uint32)
        for earlier in file.arrays("removed").values():
            total[: len(earlier)] += earlier
        rows = (file.row(Drawn, round) for round in range(file.about["removed"], end))
        for event in file.events(row.event for row in rows):
            total[event.record["ids"]] += 1
        return total

    # Opening and stopping

    def write_to(self, file: JournalFile, held: Lock) -> None:
        """Go on in this file, under this lock; say first what comes out differently today."""
        self.file, self._held = file, held
        if self._changed is None and not self._relearns:
            return
        upgrade = Upgrade(__version__, self._changed, self._relearns)
        said = upgrade._asdict()
        with file.reading():
            self.snapshot(("upgrade", said), upgrades=[*file.about.get("upgrades", []), said])
        _LOG.warning("%s: %s", file.path, upgrade)
        self._changed, self._relearns = None, False

    def usable(self) -> JournalFile:
        """The file, or an error where the recorder has stopped or is another process's."""
        if self._stopped:
            raise OSError(self._refusal())
        if os.getpid() != self._process:
            raise OSError(
                f"{self.file.path} was opened by process {self._process}, this is its child "
                f"{os.getpid()}; draw and update where it was opened"
            )
        return self.file

    def _refusal(self) -> str:
        return (
            f"the sampler {self.file.path} has stopped, {self._stopped}. What it did before is "
            "safe; open it again: kvib.journalled(path)"
        )

    def stop(self, why: str) -> None:
        """Let go of the file for good, for this reason."""
        if not self._stopped:
            self._stopped = why
            self.file.close()
            if self._held is not None:
                self._held.release()

"""A sampler and its file: every event is done to the sampler and written to the file."""

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
"""Seconds of work after which a snapshot is due, since opening would have to repeat them."""
SHARE = 0.2
"""The largest share of the sampler's time that snapshots take."""
_LOG = getLogger("kvib.journal")


class Done(NamedTuple):
    """The effect of an event."""

    round: int | None = None
    """The round that the event belongs to, if any."""
    outcome: Mapping[str, Any] = MappingProxyType({})
    """Entries that are recorded beside the arguments. A replay must give the same."""
    row: FileRow | None = None
    """The row that the event adds to its round, if any."""
    result: Any = None
    """The value that the call returns."""


Doing = Callable[["Recorder", int | None, EventRecord], Done]
"""A function that does a kind of event: from the recorder, the round (if it is known before) and
the record of the arguments."""


class Recorder:
    """Does events to a sampler and records them, each durable before the call returns.

    If an event cannot be written, the recorder stops: from then on the sampler would know more than
    its file.

    Args:
        sampler: The sampler at the last snapshot.
        file: The journal, open for reading. `write_to` replaces it by one that is open for writing.
        weights: λ at the beginning.
        kinds: The function of each kind of event.
        relearns: Whether the policy learns from all rounds again.
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
        """Cohorts without feedback that were drawn since the last snapshot, by their rounds."""
        self._kinds = kinds
        self._begun_weights = weights
        self._relearns = relearns
        self._changed: int | None = None
        """The first recorded round that today's rule would have drawn differently."""
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
        """Copy λ of the beginning if it shares memory with the present weights, which change."""
        if np.may_share_memory(self._begun_weights, self.sampler.state.population.raw):
            self._begun_weights = self._begun_weights.copy()

    def cohort(self, round: int) -> Cohort | None:
        """The cohort of a round without feedback; None if its details were removed."""
        if round in self.recent:
            return self.recent[round]
        file = self.usable()
        record = file.open_cohort(round)
        if record is None and round >= file.about["removed"]:
            raise torn(file.path, f"the cohort of round {round} is missing")
        return None if record is None else cohorts.whole(record)

    def open_cohort(self, round: int | None) -> Cohort:
        """The cohort of a round without feedback; an error if it is missing."""
        cohort = None if round is None else self.cohort(round)
        if cohort is None:
            raise torn(self.usable().path, f"the cohort of round {round} is missing")
        return cohort

    def with_moments(self, cohort: Cohort) -> Cohort:
        """A cohort with its second moments, if its procedure draws clients independently."""
        procedure = self.sampler.procedure
        by_name = {**PROCEDURES, procedure.name: procedure}
        name = switches.procedure_of(self.usable().about, cohort.round)
        return cohorts.with_moments(cohort, by_name.get(name))

    # Events

    def do(self, kind: str, round: int | None, record: EventRecord, checked: bool = False) -> Any:
        """Do an event to the sampler and append it to the file, or do neither.

        After an error that may have left the two apart, the recorder stops.

        Args:
            kind: The kind of the event.
            round: The round that it belongs to, if that is known before.
            record: The arguments of the call.
            checked: Whether the arguments were checked before. Then an error means that the sampler
                is half changed.
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
        """Stop after an error.

        Args:
            harmless: Kinds of errors that leave sampler and file as they were.
        """
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
        """Do an event to the sampler, and count the seconds that it takes."""
        started = time.perf_counter()
        try:
            return self._kinds[kind](self, round, record)
        finally:
            self.spent += time.perf_counter() - started

    def replay(self, event: Event) -> None:
        """Do a recorded event again, which an earlier process did."""
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

    def drawn_again(self, record: EventRecord, conditions: Conditions) -> Cohort:
        """The cohort of a recorded draw. A recorded cohort is a fact and does not change.

        Drawing it again gives its probabilities in full precision. Where the rule has changed
        since, the cohort is taken as it is recorded.

        Args:
            record: The record of the draw.
            conditions: The conditions that the draw was given.
        """
        state = self.sampler.state
        unknown = record["ids"][(record["ids"] < 0) | (record["ids"] >= len(self.sampler))]
        if len(unknown):
            raise ValueError(f"there is no client {unknown[0]}")
        fact = cohorts.lengthened(record, self._begun_weights, round=state.rounds.round)
        # Draw by today's rule, in full precision.
        try:
            draw = self._drawn_by_rule(record, conditions)
        except (TypeError, ValueError):  # today's rule would not draw it at all
            self._note(fact)
            draw = state.drawing.drawn(fact, fact.budget, fact.requested, conditions)
            draw = draw._replace(excluded=None)
        state.check_in.close()
        # Open the round with that draw if it agrees with the record, else with the record.
        same = cohorts.alike(draw.cohort, fact, cohorts.DRAWN)
        cohort = state.drawing.open(draw if same else draw._replace(cohort=fact))
        if same and cohorts.alike(cohort, fact, cohorts.CONDITIONS):
            return cohort
        # Where the two differ, the recorded conditions hold too.
        self._note(fact)
        recorded = replace(cohort, **{name: getattr(fact, name) for name in cohorts.CONDITIONS})
        state.rounds.keep(recorded)
        return recorded

    def _drawn_by_rule(self, record: EventRecord, conditions: Conditions) -> Draw:
        """The draw that today's rule makes in a recorded round."""
        state = self.sampler.state
        if "checked in" in record:
            return state.check_in.gathered(record["checked in"])
        state.check_in.refuse("draw")
        return state.drawing.draw(conditions)

    def _note(self, fact: Cohort) -> None:
        """Remember the first round of the present policy that it would now draw differently."""
        if self._changed is None and fact.round >= self.since:
            self._changed = fact.round

    @property
    def since(self) -> int:
        """The first round that the present policy draws."""
        return switches.since(self.usable().about)

    # Snapshots

    @property
    def keep(self) -> int | None:
        """The number of last rounds whose details are kept; None means all."""
        keep: int | None = self.usable().about["keep"]
        return keep

    def _due(self) -> bool:
        """Whether it is time for a snapshot."""
        about, last = self.usable().about, self.usable().last
        if about["snapshot_every"] is not None:
            # A round has two events, its draw and its feedback.
            return bool(last - about["snapshot"] >= 2 * about["snapshot_every"])
        return self.spent >= max(REPLAY, self.snapshot_cost / SHARE)

    def snapshot(self, event: tuple[str, EventRecord] | None = None, **about: Any) -> None:
        """Write the state of the sampler to the file, and remove rounds that `keep` does not cover.

        Args:
            event: Kind and record of an event that is appended with it. The state contains its
                effect already.
            about: Entries of the file's description that change.
        """
        started, file, round = time.perf_counter(), self.usable(), self.sampler.round
        arrays, removed = {"now": self.sampler.packed()}, file.about["removed"]
        if self.keep is not None and round - self.keep > removed:
            removed = round - self.keep
            arrays["removed"] = {"participation": self._participation_before(removed)}
        open_cohorts = {at: cohorts.exact(cohort) for at, cohort in self.recent.items()}
        file.snapshot(arrays, open_cohorts, event, removed=removed, **about)
        self.recent.clear()
        self.spent, self.snapshot_cost = 0.0, time.perf_counter() - started

    def _participation_before(self, end: int) -> NDArray[np.uint32]:
        """The number of draws of each client in the rounds before `end`, removed ones included."""
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
        """Write to this file from now on, under this lock.

        If the present kvib or policy draws or learns differently, that is recorded and logged
        first.

        Args:
            file: The file, open for writing.
            held: The lock on it.
        """
        self.file, self._held = file, held
        if self._changed is None and not self._relearns:
            return
        upgrade = Upgrade(__version__, self._changed, self._relearns)
        entry = upgrade._asdict()
        with file.reading():
            self.snapshot(("upgrade", entry), upgrades=[*file.about.get("upgrades", []), entry])
        _LOG.warning("%s: %s", file.path, upgrade)
        self._changed, self._relearns = None, False

    def usable(self) -> JournalFile:
        """The file; an error if the recorder has stopped or belongs to another process."""
        if self._stopped:
            raise OSError(self._refusal())
        if os.getpid() != self._process:
            raise OSError(
                f"{self.file.path} was opened by process {self._process}, this is its child "
                f"{os.getpid()}; draw and update where it was opened"
            )
        return self.file

    def _refusal(self) -> str:
        """The message of a recorder that has stopped."""
        return (
            f"the sampler {self.file.path} has stopped, {self._stopped}. What it did before is "
            "safe; open it again: kvib.journalled(path)"
        )

    def stop(self, why: str) -> None:
        """Close the file and release its lock for good.

        Args:
            why: The reason, which later calls name in their error.
        """
        if not self._stopped:
            self._stopped = why
            self.file.close()
            if self._held is not None:
                self._held.release()

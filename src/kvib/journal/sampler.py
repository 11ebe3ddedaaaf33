"""A sampler whose every round is durable, and that continues where a dead process stopped."""

from __future__ import annotations  # so that help() shows names, not what they stand for

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvib.clients.check_in import Admission
from kvib.clients.population import listed
from kvib.cohort import Cohort, Guarantee, checked_cohort, cohort_norms
from kvib.estimators.estimate import unbiased
from kvib.estimators.streaming import Coefficients, Ended, Estimation
from kvib.journal import agreement, cohorts
from kvib.journal.layout import GIVE_UP, Answered
from kvib.journal.learning import taught
from kvib.journal.recorder import Recorder
from kvib.journal.records import EventRecord
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler import switching
from kvib.sampler.open_rounds import ANSWERED
from kvib.sampler.readable import ReadableSampler
from kvib.sampler.sampler import Sampler
from kvib.sampler.switching import Learned, NewGuard
from kvib.types import FloatArray, IntArray, Key

_LARGEST = float(np.finfo(np.float32).max)


class Journalled(ReadableSampler):
    """A sampler that lives in a file; made by `journalled`.

    It has the methods of `Sampler`. Each call that changes anything is an event: done, written and
    durable before the call returns. If an event cannot be written the sampler stops, since it would
    know more than its file.

    Args:
        recorder: the sampler and its file.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.sampler.state)
        self.recorder = recorder
        """The sampler and its file, to look at."""

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, in {self.recorder.file.path}>"

    def __enter__(self) -> Journalled:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, so that it can be opened elsewhere. Nothing is lost without it."""
        with self.state.lock:
            self.recorder.stop("it was closed")

    def draw(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> Cohort:
        """Draw the clients of the next round; durable before the cohort is returned.

        The arguments are those of `Sampler.draw`.
        """
        given: EventRecord = {}
        if absent is not None:
            given["given absent"] = np.asarray(absent)
        if available is not None:
            given["given available"] = np.asarray(available)
        if budget is not None:
            given["given budget"] = float(budget)
        if norms is not None:
            given["given norms"] = _single(np.asarray(norms, dtype=np.float64))
        cohort: Cohort = self.recorder.do("draw", None, given)
        return cohort

    def admit(self, key: Key) -> Admission:
        """Whether the client that asks takes part in the current round; see `Sampler.admit`.

        That the round is open is durable before the first client is admitted.
        """
        with self.state.lock:
            self.recorder.usable()
            self.ids([key])  # an unknown client opens no check-in
            if not self.state.check_in.is_open:
                self.recorder.do("check in", None, {})
            return self.state.check_in.admit(key)

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """End a round of check-ins; see `Sampler.gather`. The cohort is durable."""
        cohort: Cohort = self.recorder.do("draw", None, {"checked in": listed(keys)})
        return cohort

    def join(
        self,
        weights: ArrayLike,
        keys: Sequence[Key] | Key | None = None,
        cost: ArrayLike | None = None,
    ) -> IntArray:
        """Let clients come, or come back with their history; see `Sampler.join`. Durable."""
        record: EventRecord = {"weights": np.atleast_1d(np.asarray(weights, np.float64))}
        if keys is not None:
            record["keys"] = listed(keys)
        if cost is not None:
            record["cost"] = np.atleast_1d(np.asarray(cost, np.float64))
        ids: IntArray = self.recorder.do("join", None, record)
        return ids

    def leave(self, keys: Any) -> None:
        """Let clients go; see `Sampler.leave`. Durable before it returns."""
        self.recorder.do("leave", None, {"keys": listed(keys)})

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Change the weights of clients; see `Sampler.reweigh`. Durable before it returns."""
        new = np.atleast_1d(np.asarray(weights, np.float64))
        self.recorder.do("reweigh", None, {"keys": listed(keys), "weights": new})

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms of a cohort, in single precision; durable before it returns.

        The arguments are those of `Sampler.update`. The same once more is ignored, so that a server
        may repeat what it is unsure of.
        """
        with self.state.lock:
            values = _single(cohort_norms(cohort, norms))
            if not self._has(cohort, values):
                self.state.check_in.refuse("update")
                self.state.learning.warn(cohort, values.astype(np.float64))
                self.recorder.do("update", cohort.round, {"norms": values}, checked=True)

    def give_up(self, cohort: Cohort) -> None:
        """Close a round that was lost; see `Sampler.give_up`. Durable before it returns."""
        with self.state.lock:
            self.recorder.usable()
            self._check(checked_cohort(cohort))
            self.recorder.do(GIVE_UP, cohort.round, {}, checked=True)

    def step(
        self,
        cohort: Cohort,
        updates: Any,
        coefficients: Coefficients = unbiased,
        like: Any = None,
    ) -> Any:
        """The estimated step; learns from the round, and keeps its variance with it.

        The arguments are those of `Sampler.step`.
        """
        learning, end = self.state.learning, self._end
        return learning.step(cohort, updates, coefficients, like, end, spread=True)

    def begin(
        self, cohort: Cohort, coefficients: Coefficients = unbiased, *, spread: bool = False
    ) -> Estimation:
        """The step in parts; see `Sampler.begin`. With `spread` the variance is kept."""
        return self.state.learning.begin(cohort, coefficients, self._end, spread=spread)

    def _end(self, ended: Ended) -> Guarantee:
        """Learn from a round that `begin` began, durably, and say what came of it."""
        cohort = ended.cohort
        with self.state.lock:
            values = _single(cohort_norms(cohort, ended.norms))
            self._check(cohort)
            self.state.check_in.refuse("finish")
            sketched = ended.sketches.astype(np.float32)
            record = {"norms": values, "sketches": sketched, "usual": ended.step_length}
            if not math.isnan(ended.variance):
                record["variance"] = float(ended.variance)
            self.recorder.do("finish", cohort.round, record, checked=True)
            return self.state.learning.judge(ended)

    def switch(
        self,
        policy: Policy[Any],
        procedure: Procedure | None = None,
        guard: NewGuard = "keep",
    ) -> Learned:
        """Draw by another policy, which learns from all past rounds whose details are kept.

        The arguments are those of `Sampler.switch`. The switch is durable before it returns, as a
        whole or not at all.
        """
        with self.state.lock:
            file = self.recorder.usable()
            self.state.check_in.refuse("switch")
            way = switching.chosen(self.state, policy, procedure, guard)
            if way is None:
                return Learned(0, 0)
            learner, learned = taught(self.state, file, self.recorder.begun_weights, way)
            about = agreement.switched(file.about, way, self.round, learned)
            with self.recorder.or_stop():
                switching.take_over(self.state, way, learner)
                self.recorder.snapshot(("switch", about["switches"][-1]), **about)
            return learned

    def outstanding(self) -> list[Cohort]:
        """Cohorts neither updated nor given up, the oldest first, to finish after a restart.

        Second moments come back for independent draws only.
        """
        recorder = self.recorder
        with self.state.lock:
            recorder.usable()
            found = [recorder.cohort(int(round)) for round in self.state.rounds.outstanding()]
            return [recorder.with_moments(cohort) for cohort in found if cohort is not None]

    def _has(self, cohort: Cohort, values: NDArray[np.float32]) -> bool:
        """Whether the file has exactly this feedback; an error if it has another."""
        rounds, at = self.state.rounds, cohort.round
        file = self.recorder.usable()
        ours = cohort.token == rounds.token and 0 <= at < self.round
        if not (ours and rounds.updated[at] == ANSWERED):
            self._check(cohort)
            return False
        if file.row(Answered, at).norms != cohorts.digest(values):
            raise ValueError(
                f"the cohort of round {at} was updated before, with other norms; the first ones "
                "count, leave it at that"
            )
        return True

    def _check(self, cohort: Cohort) -> None:
        """Refuse a cohort that is not one of this journal's open rounds, as drawn."""
        self.recorder.usable()
        self.state.rounds.check(cohort)
        known = self.recorder.cohort(cohort.round)
        if known is None:
            raise ValueError(
                f"round {cohort.round} was given up: this journal keeps {self.recorder.keep} "
                "rounds; open it with a larger keep=… if answers take longer"
            )
        if not np.array_equal(known.ids, cohort.ids):
            raise ValueError(
                f"this is not the cohort that was drawn in round {cohort.round}; give it as drawn, "
                "with NaN where there was no answer"
            )


AnySampler = Sampler | Journalled
"""A sampler, in memory or in a journal."""


def _single(norms: FloatArray) -> NDArray[np.float32]:
    """Norms in the precision of the file, so that replaying is exact."""
    if (norms > _LARGEST).any():
        raise ValueError(
            f"norm {norms[norms > _LARGEST].max():g} is beyond single precision ({_LARGEST:g}), "
            "which a journal keeps; report NaN for a client that failed or diverged"
        )
    single = norms.astype(np.float32)
    single[np.isnan(single)] = np.nan  # one NaN, not many: they are compared by their bytes
    return single

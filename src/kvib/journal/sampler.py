"""A sampler whose rounds are durable, and which continues where an earlier process stopped."""

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
"""The largest norm that a journal can hold."""


class Journalled(ReadableSampler):
    """A sampler that lives in a file. `journalled` makes it.

    It has the methods of `Sampler`. Each call that changes the sampler is an event, which is done,
    written and durable before the call returns. If an event cannot be written, the sampler stops:
    it would know more than its file.

    Args:
        recorder: The sampler and its file.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.KVib(), [10, 20, 30, 40], budget=2) as sampler:
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, [1.0] * len(cohort))
        ...     cohort = sampler.draw()
        >>> with kvib.journalled(path) as sampler:          # another process, say
        ...     [open_cohort] = sampler.outstanding()
        ...     print(sampler.round, open_cohort.ids.tolist() == cohort.ids.tolist())
        2 True
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.sampler.state)
        self.recorder = recorder
        """The sampler and its file. They are for reading."""

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, in {self.recorder.file.path}>"

    def __enter__(self) -> Journalled:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file, so that another process can open it. Nothing is lost without it."""
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
        """Draw the clients of the next round. The draw is durable before the cohort is returned.

        Args:
            available: Clients that can be drawn: one boolean per client, or a list or set of ids.
                None means all. An empty list gives an empty cohort.
            budget: The budget of this round instead of the sampler's, at most the number available.
            norms: ‖g‖ of all clients, for policies that must know them (Optimal, AOCS).
            absent: Clients that cannot be drawn: a list or set of ids. A short list keeps rounds
                fast.
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
        """Say whether the client that asks takes part in the current round, and its coefficient.

        Every client tosses its own coin, made of (seed, round, key), so that the answer is the same
        however often it asks. That the round is open is durable before the first client is
        admitted. `gather` ends the round. See `Sampler.admit`.

        Args:
            key: The key of the client.
        """
        with self.state.lock:
            self.recorder.usable()
            self.ids([key])  # an unknown client opens no check-in
            if not self.state.check_in.is_open:
                self.recorder.do("check in", None, {})
            return self.state.check_in.admit(key)

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """End a round of check-ins. The cohort is durable before it is returned.

        The cohort holds the clients that were admitted, also those that then do not answer. See
        `Sampler.gather`.

        Args:
            keys: Keys of the clients that asked and were admitted.
        """
        cohort: Cohort = self.recorder.do("draw", None, {"checked in": listed(keys)})
        return cohort

    def join(
        self,
        weights: ArrayLike,
        keys: Sequence[Key] | Key | None = None,
        cost: ArrayLike | None = None,
    ) -> IntArray:
        """Let clients join, or return with their history, and return their ids.

        The change is durable before the call returns.

        Args:
            weights: The weight of each client, in the units of the weights at the beginning.
            keys: The key of each client, where clients have keys.
            cost: The cost of drawing each client, where drawing has costs.
        """
        record: EventRecord = {"weights": np.atleast_1d(np.asarray(weights, np.float64))}
        if keys is not None:
            record["keys"] = listed(keys)
        if cost is not None:
            record["cost"] = np.atleast_1d(np.asarray(cost, np.float64))
        ids: IntArray = self.recorder.do("join", None, record)
        return ids

    def leave(self, keys: Any) -> None:
        """Let clients leave, with their share of the objective.

        Their history is kept for a return. The change is durable before the call returns.

        Args:
            keys: Keys of the clients, or their ids where clients have no keys.
        """
        self.recorder.do("leave", None, {"keys": listed(keys)})

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Change the weights of clients. The change is durable before the call returns.

        Args:
            keys: Keys of the clients, or their ids where clients have no keys.
            weights: The new weight of each client, in the units of the weights at the beginning.
        """
        new = np.atleast_1d(np.asarray(weights, np.float64))
        self.recorder.do("reweigh", None, {"keys": listed(keys), "weights": new})

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates, in single precision.

        The feedback is durable before the call returns. An identical repeat is ignored, so that a
        server may repeat a call when it is not sure that the call arrived. Other norms for the same
        round are an error.

        Args:
            cohort: The cohort, as drawn by this sampler. Cohorts can be updated in any order.
            norms: Norms in the order of `cohort.ids`, NaN where a client did not answer. Or a
                mapping from client id to norm, without the clients that did not answer.
        """
        with self.state.lock:
            values = _single(cohort_norms(cohort, norms))
            if not self._has(cohort, values):
                self.state.check_in.refuse("update")
                self.state.learning.warn(cohort, values.astype(np.float64))
                self.recorder.do("update", cohort.round, {"norms": values}, checked=True)

    def give_up(self, cohort: Cohort) -> None:
        """Close a round that was lost, without learning from it: neither norms nor answer rates.

        That the round is closed is durable before the call returns.

        Args:
            cohort: The cohort of the round, as drawn by this sampler.
        """
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
        """Return the estimated step of a round, and learn from the round.

        The feedback is durable before the call returns. The estimated variance of the step is
        written to the file with it.

        Args:
            cohort: The cohort, as drawn by this sampler.
            updates: One update per client in the order of `cohort.ids`: arrays or tensors of one
                shape (or stacked along the first axis), None where a client did not answer. All
                must be real and finite. A guard leaves out those that are not finite.
            coefficients: `unbiased` or `self_normalised`.
            like: An object of the form of the model. With it a round without answers gives a step
                of that form too.
        """
        learning, end = self.state.learning, self._end
        return learning.step(cohort, updates, coefficients, like, end, spread=True)

    def begin(
        self, cohort: Cohort, coefficients: Coefficients = unbiased, *, spread: bool = False
    ) -> Estimation:
        """Begin a step whose updates come in parts, since they do not fit into memory together.

        Ending the estimation (`Estimation.finish`) learns from the round, durably.

        Args:
            cohort: The cohort, as drawn by this sampler.
            coefficients: `unbiased` or `self_normalised`.
            spread: Whether to estimate the variance on the way, which takes one more sum. It is
                then written to the file.
        """
        return self.state.learning.begin(cohort, coefficients, self._end, spread=spread)

    def _end(self, ended: Ended) -> Guarantee:
        """Learn from a round that `begin` began, durably, and return its guarantee."""
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
        """Draw by another policy, which first learns from all past rounds whose details are kept.

        The switch is durable before the call returns, as a whole or not at all. The result counts
        the past rounds that taught the policy, and those with feedback that were removed.
        Outstanding cohorts stay valid.

        Args:
            policy: The new policy.
            procedure: The new procedure. By default it is the new policy's own if the old policy's
                own was in use. If another was in use, that one stays.
            guard: The new guard, or None for no guard. By default the guard stays.
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
        """Return the cohorts that were neither updated nor given up, the oldest first.

        A server finishes them after a restart. They have second moments only where draws are
        independent.
        """
        recorder = self.recorder
        with self.state.lock:
            recorder.usable()
            found = [recorder.cohort(int(round)) for round in self.state.rounds.outstanding()]
            return [recorder.with_moments(cohort) for cohort in found if cohort is not None]

    def _has(self, cohort: Cohort, values: NDArray[np.float32]) -> bool:
        """Whether the file has exactly this feedback; an error if it has other feedback."""
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
    """Norms in the precision of the file, so that a replay is exact."""
    if (norms > _LARGEST).any():
        raise ValueError(
            f"norm {norms[norms > _LARGEST].max():g} is beyond single precision ({_LARGEST:g}), "
            "which a journal keeps; report NaN for a client that failed or diverged"
        )
    single = norms.astype(np.float32)
    single[np.isnan(single)] = np.nan  # one NaN for all: feedback is compared by its bytes
    return single

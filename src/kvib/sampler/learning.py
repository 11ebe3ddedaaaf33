"""What a sampler does with the answers of a round: it estimates the step, and learns."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvib.checks import warn
from kvib.cohort import Cohort, Guarantee, checked_cohort
from kvib.estimators import tensors
from kvib.estimators.estimate import unbiased
from kvib.estimators.guard import Guard
from kvib.estimators.streaming import (
    Coefficients,
    Context,
    Ended,
    Estimation,
    answers,
    as_rows,
)
from kvib.estimators.variance import Spread
from kvib.sampler.parts import Parts
from kvib.types import BoolArray, FloatArray

End = Callable[[Ended], Guarantee]
"""Learns from a round whose updates have all arrived; returns the guarantee of its estimate."""


class Learning:
    """The part that estimates the step of a round, and lets all other parts learn from it.

    Args:
        parts: The parts of the sampler.
        guard: The bound on what one client can add to a step, if there is one.
    """

    def __init__(self, parts: Parts, guard: Guard | None) -> None:
        self._parts = parts
        self._warned_of_silence = False
        self.guard = guard
        self.cut = 0.0
        """What the guard cut off in the last round: a bound on its bias."""
        self.guarantee: Guarantee = parts.rates.guarantee
        """The guarantee of the last round's estimate, now that it is known who answered."""

    def step(
        self,
        cohort: Cohort,
        updates: Any,
        coefficients: Coefficients,
        like: Any,
        end: End,
        *,
        spread: bool = False,
    ) -> Any:
        """Estimate the step from updates that arrive together. See `Sampler.step`."""
        answered, arrived = answers(checked_cohort(cohort), updates)
        if answered.any():
            flat, shape = as_rows(arrived)
        estimation = self.begin(cohort, coefficients, end, answered=answered, spread=spread)
        if not answered.any():
            d = estimation.finish()  # what is remembered
            return d if like is None else tensors.formed(like, d)
        estimation.borrow(answered, flat)
        return estimation.finish().reshape(shape)

    def begin(
        self,
        cohort: Cohort,
        coefficients: Coefficients,
        end: End,
        *,
        answered: BoolArray | None = None,
        spread: bool = False,
    ) -> Estimation:
        """Begin an estimation that takes updates part by part.

        Args:
            cohort: The cohort as drawn.
            coefficients: `unbiased` or `self_normalised`.
            end: The function to call when all updates have arrived.
            answered: Which clients answer, [m], where it is known before.
            spread: Whether to estimate the variance on the way.
        """
        parts = self._parts
        if parts.memory is not None and coefficients is not unbiased:
            raise ValueError("a difference estimator is for coefficients=kvib.unbiased only")
        context = Context(
            guard=self.guard,
            typical_step=parts.step_length.value,
            memory=parts.memory,
            sketch=parts.sketches.size,
            names=parts.population.keys,
            silence=self.warn_of_silence,
            end=end,
        )
        with parts.lock:  # the end of other rounds changes what is remembered
            parts.rounds.check(checked_cohort(cohort))
            watching = Spread(cohort) if spread else None
            estimation = Estimation(context, cohort, coefficients, answered, watching)
        if coefficients is not unbiased:
            estimation.guarantee = "biased"
        return estimation

    def learn(self, cohort: Cohort, norms: FloatArray) -> None:
        """Learn from the norms of a cohort, NaN where a client was silent, and close the round."""
        parts, answered = self._parts, ~np.isnan(norms)
        if answered.any():
            answers = cohort.take(answered)
            with parts.eligible.changing(answers.ids):
                parts.learner.learn(answers, parts.population.raw[answers.ids] * norms[answered])
        self.guarantee = "biased" if parts.rates.lost(cohort, answered) else cohort.guarantee
        parts.rates.observe_answers(cohort.ids, answered)
        parts.rounds.close(cohort)

    def finish(self, ended: Ended) -> None:
        """Learn from a round whose updates were seen: norms, sketches, and updates to remember."""
        cohort, norms = ended.cohort, ended.norms
        self._parts.rounds.check(cohort)
        self.learn(cohort, norms)
        answered = ~np.isnan(norms)
        self._parts.sketches.keep(cohort.take(answered), ended.sketches[answered])
        if self.guard is not None:
            self._parts.step_length.learn(ended.step_length)
        if self._parts.memory is not None:
            for part, updates in ended.kept:
                self._parts.memory.keep(part, updates)
            self._parts.memory.end_round()

    def judge(self, ended: Ended) -> Guarantee:
        """Keep what was cut in a round that `finish` learned from, and return its guarantee."""
        self.cut = ended.cut
        if ended.biased:
            self.guarantee = "biased"
        return self.guarantee

    def warn(self, cohort: Cohort, norms: FloatArray) -> None:
        """Warn of options that norms alone cannot serve, and of silent clients."""
        answered = ~np.isnan(norms)
        if answered.any():
            self._warn_of_norms_only()
        self.warn_of_silence(cohort, answered)

    def _warn_of_norms_only(self) -> None:
        """Warn of options of the sampler that cannot work without the updates themselves."""
        idle = {
            "guard": self.guard is not None,
            "sketch": self._parts.sketches.size > 0,
            "estimator": self._parts.memory is not None,
        }
        if any(idle.values()):
            names = " and ".join(name for name, is_idle in idle.items() if is_idle)
            warn(
                f"{names} of this sampler see nothing in update(norms); call step(cohort, updates) "
                "instead of estimate and update, or make the sampler without"
            )

    def warn_of_silence(self, cohort: Cohort, answered: BoolArray) -> None:
        """Warn once where a client is silent whose answer was certain."""
        silent = self._parts.rates.lost(cohort, answered)
        if silent and not self._warned_of_silence:
            warn(
                f"{silent} of {len(cohort)} clients of round {cohort.round} did not answer, but "
                "their response probability is 1: the estimate is too small on average; give "
                "Sampler(response=…) the probability of an answer, or EstimatedRate() to learn it. "
                "This is said once; sampler.guarantee says it of every round"
            )
            self._warned_of_silence = True

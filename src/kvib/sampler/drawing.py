"""The cohort of a round: who can be drawn, with what probability, and who was."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import all_norms, available_ids
from kvib.cohort import Cohort
from kvib.randomness import generator
from kvib.sampler.eligible import Design
from kvib.sampler.learner import Learner
from kvib.sampler.parts import Parts
from kvib.types import BoolArray, FloatArray, IntArray

_NONE = np.empty(0, np.int64)


class Conditions(NamedTuple):
    """What a draw is given; the arguments of `Sampler.draw`."""

    available: ArrayLike | None = None
    budget: float | None = None
    norms: ArrayLike | None = None
    absent: ArrayLike | None = None


NOTHING = Conditions()


class Draw(NamedTuple):
    """A cohort that was drawn, before its round is opened. Nothing has changed yet."""

    cohort: Cohort
    budget: float
    """Σ E[count]: what was requested, or less where few can be drawn."""
    requested: float
    excluded: IntArray | None = None
    """Clients that the estimate does not stand for; None where no estimator asks."""
    present: BoolArray | None = None
    """Which clients were available, where their rates are learned from it, [N]."""


class Drawing:
    """Draws the next round, then opens it.

    Args:
        parts: what the sampler knows.
        seed: with the round number it decides every draw.
    """

    def __init__(self, parts: Parts, seed: int) -> None:
        self._parts = parts
        self.seed = seed
        self.generator = generator
        """Makes the generator of a draw from (seed, round, purpose)."""

    def draw(self, given: Conditions) -> Draw:
        """A cohort for the next round."""
        absent = self._absent(given)
        with self._parts.eligible.without(absent):
            design = self.design(given)
            drawn = design.draw(self.generator(self.seed, self._parts.rounds.round, "draw"))
        return self.drawn(drawn, design.budget, design.requested, given)

    def drawn(
        self, cohort: Cohort, budget: float, requested: float, given: Conditions = NOTHING
    ) -> Draw:
        """A cohort as one of the next round, whoever drew it.

        Args:
            cohort: who was drawn.
            budget: Σ E[count].
            requested: the budget that was asked for.
            given: what the draw was given.
        """
        absent = self._absent(given)
        excluded = present = None
        if self._parts.memory is not None:
            excluded = self._excluded(given.available, absent)
        if not self._parts.rates.availability_known:
            present = np.zeros(self._parts.population.count, dtype=np.bool_)
            present[available_ids(given.available, len(present))] = True
            present[absent] = False
        return Draw(cohort, budget, requested, excluded, present)

    def open(self, draw: Draw) -> Cohort:
        """The drawn cohort as that of the next round, which begins now."""
        if draw.present is not None:
            here = self._parts.population.here()
            self._parts.rates.observe_presence(here, draw.present[here])
        ids = draw.cohort.ids
        cohort = self._parts.rounds.open(
            draw.cohort,
            answer_probability=self._parts.rates.at(ids),
            availability=self._parts.rates.available(ids),
            budget=draw.budget,
            requested=draw.requested,
            guarantee=self._parts.rates.guarantee,
            excluded=draw.excluded,
        )
        if self._parts.cool_down.rounds:
            self._parts.eligible.remove(self._parts.cool_down.add(cohort.ids, cohort.round))
            self._parts.eligible.insert(self._parts.cool_down.released(self._parts.rounds.round))
        return cohort

    def probabilities(self, given: Conditions) -> FloatArray:
        """Expected counts of all clients, [N]."""
        N = self._parts.population.count
        if given.absent is not None:  # as a list: to look must not move clients in the index
            there = np.setdiff1d(available_ids(given.available, N), self._absent(given))
            given = given._replace(available=there)
        return self.design(given).expected(np.arange(N))

    def design(self, given: Conditions) -> Design:
        """Expected counts of the coming round, and the way to draw by them."""
        self._parts.rates.must_be_listed(given.available)
        if given.available is None and given.norms is None:
            return self.unlisted(given.budget)
        parts, N = self._parts, self._parts.population.count
        requested, learner = parts.prices.requested(given.budget, N), self._informed(given.norms)
        ids = parts.eligible.eligible(available_ids(given.available, N))
        return parts.eligible.among(ids, parts.rounds.round, requested, learner)

    def unlisted(self, budget: float | None = None) -> Design:
        """Expected counts of the coming round where no list says who is there."""
        requested = self._parts.prices.requested(budget, self._parts.population.count)
        self._informed(None)  # or refuse
        return self._parts.eligible.design(self._parts.rounds.round, requested)

    def _informed(self, norms: ArrayLike | None) -> Learner:
        """What to draw with: a learner that knows all norms, if the policy wants them."""
        policy, N = self._parts.learner.policy, self._parts.population.count
        if norms is None:
            if policy.needs_norms:
                raise ValueError(
                    f"{type(policy).__name__} must know every client's norm before it draws; "
                    "call draw(norms=…) with all of them"
                )
            return self._parts.learner
        ids, rates = np.arange(N), self._parts.rates
        pi = self._parts.population.raw[ids] * all_norms(norms, N)
        return self._parts.learner.informed(pi, rates.at(ids), rates.available(ids))

    def _absent(self, given: Conditions) -> IntArray:
        """Clients that are said to be absent, ascending."""
        if given.absent is None:
            return _NONE
        return available_ids(given.absent, self._parts.population.count, "absent")

    def _excluded(self, available: ArrayLike | None, absent: IntArray) -> IntArray:
        """Clients that the draw does not stand for, which memory knows something of too."""
        if not self._parts.rates.always:  # then it stands for those who are away too
            return self._parts.cool_down.ids
        N, out = self._parts.population.count, np.union1d(self._parts.cool_down.ids, absent)
        if available is None:
            return out
        there = np.setdiff1d(available_ids(available, N), out)
        return np.setdiff1d(np.arange(N), there)

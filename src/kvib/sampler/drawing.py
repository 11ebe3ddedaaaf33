"""The draw of a round: who can be drawn, with what probability, and who was drawn."""

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

_NO_CLIENTS = np.empty(0, np.int64)


class Conditions(NamedTuple):
    """The arguments of `Sampler.draw`."""

    available: ArrayLike | None = None
    budget: float | None = None
    norms: ArrayLike | None = None
    absent: ArrayLike | None = None


_NO_CONDITIONS = Conditions()


class Draw(NamedTuple):
    """A cohort that was drawn, before its round is opened. The sampler has not changed yet."""

    cohort: Cohort
    budget: float
    """Σ E[count]: the requested budget, or less where few clients can be drawn."""
    requested: float
    """The budget that was requested: clients, costs or answers."""
    excluded: IntArray | None = None
    """Clients that the estimate does not stand for. None where no estimator needs them."""
    present: BoolArray | None = None
    """Which clients were available, [N]. None where availability is not learned."""


class Drawing:
    """The part that draws the next round, then opens it.

    Args:
        parts: The parts of the sampler.
        seed: The seed, which decides every draw together with the round number.
    """

    def __init__(self, parts: Parts, seed: int) -> None:
        self._parts = parts
        self.seed = seed
        self.generator = generator
        """The function that makes the generator of a draw from (seed, round, purpose)."""

    def draw(self, conditions: Conditions) -> Draw:
        """Draw the cohort of the next round, without opening it."""
        absent = self._absent(conditions)
        with self._parts.eligible.without(absent):
            design = self.design(conditions)
            drawn = design.draw(self.generator(self.seed, self._parts.rounds.round, "draw"))
        return self.drawn(drawn, design.budget, design.requested, conditions)

    def drawn(
        self,
        cohort: Cohort,
        budget: float,
        requested: float,
        conditions: Conditions = _NO_CONDITIONS,
    ) -> Draw:
        """A given cohort as the draw of the next round.

        Args:
            cohort: The clients that were drawn: by `draw`, by a check-in, or in a journal.
            budget: Σ E[count].
            requested: The budget that was requested.
            conditions: The arguments of the draw.
        """
        absent = self._absent(conditions)
        excluded = present = None
        if self._parts.memory is not None:
            excluded = self._excluded(conditions.available, absent)
        if not self._parts.rates.availability_known:
            present = np.zeros(self._parts.population.count, dtype=np.bool_)
            present[available_ids(conditions.available, len(present))] = True
            present[absent] = False
        return Draw(cohort, budget, requested, excluded, present)

    def open(self, draw: Draw) -> Cohort:
        """Open the next round with a draw, and return its cohort."""
        if draw.present is not None:
            here = self._parts.population.here()  # departed clients teach no availability
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
        if self._parts.cool_down.rounds:  # these clients wait now, others no longer do
            self._parts.eligible.remove(self._parts.cool_down.add(cohort.ids, cohort.round))
            self._parts.eligible.insert(self._parts.cool_down.released(self._parts.rounds.round))
        return cohort

    def probabilities(self, conditions: Conditions) -> FloatArray:
        """Expected counts of all clients in the coming round, [N]."""
        N = self._parts.population.count
        if conditions.absent is not None:
            # As a list of the available: a look must not move clients in the index.
            present = np.setdiff1d(available_ids(conditions.available, N), self._absent(conditions))
            conditions = conditions._replace(available=present)
        return self.design(conditions).expected(np.arange(N))

    def design(self, conditions: Conditions) -> Design:
        """The design of the coming round: expected counts, and the way to draw by them."""
        self._parts.rates.must_be_listed(conditions.available)
        if conditions.available is None and conditions.norms is None:
            return self.unlisted(conditions.budget)
        parts, N = self._parts, self._parts.population.count
        requested = parts.prices.requested(conditions.budget, N)
        learner = self._informed(conditions.norms)
        ids = parts.eligible.eligible(available_ids(conditions.available, N))
        return parts.eligible.among(ids, parts.rounds.round, requested, learner)

    def unlisted(self, budget: float | None = None) -> Design:
        """The design of the coming round where no list of available clients is given."""
        requested = self._parts.prices.requested(budget, self._parts.population.count)
        self._informed(None)  # raises where the policy must know all norms
        return self._parts.eligible.design(self._parts.rounds.round, requested)

    def _informed(self, norms: ArrayLike | None) -> Learner:
        """The learner to draw with: one that knows all norms, if they are given."""
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

    def _absent(self, conditions: Conditions) -> IntArray:
        """The clients that the conditions list as absent, ascending."""
        if conditions.absent is None:
            return _NO_CLIENTS
        return available_ids(conditions.absent, self._parts.population.count, "absent")

    def _excluded(self, available: ArrayLike | None, absent: IntArray) -> IntArray:
        """Clients that the draw does not stand for, so that memory must not stand for them."""
        if not self._parts.rates.always:  # then it stands for absent clients too
            return self._parts.cool_down.ids
        excluded = np.union1d(self._parts.cool_down.ids, absent)
        if available is None:
            return excluded
        N = self._parts.population.count
        present = np.setdiff1d(available_ids(available, N), excluded)
        return np.setdiff1d(np.arange(N), present)

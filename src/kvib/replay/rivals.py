"""Rivals, which could have drawn the logged rounds instead: policies, and perfect knowledge."""

from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvib.cohort import Cohort
from kvib.estimators.variance import norm_part
from kvib.policies import Policy
from kvib.replay.members import Members
from kvib.types import FloatArray, IntArray
from kvib.waterfill import waterfill

RECENT = 8
"""Rounds that the value ν of the budget is learned from: enough answers, little of the trend."""


_SMALLEST = 1e-300
"""The smallest probability, which keeps 1/p finite."""


class Offer(NamedTuple):
    """The clients that a round could draw."""

    ids: IntArray
    """Their ids, ascending."""
    prices: FloatArray | None
    """Price of drawing each client; None means 1 each."""
    budget: float
    """The logged budget: a number of clients, or a sum of prices."""

    def at(self, ids: IntArray) -> IntArray:
        """Places of these clients in `ids`."""
        return np.searchsorted(self.ids, ids)

    def affordable(self, budget: float) -> float:
        """The budget, or the price of all of these clients if that is less."""
        return min(budget, len(self.ids) if self.prices is None else float(self.prices.sum()))


class Rival(Protocol):
    """A rule that would have drawn with other probabilities, and learns from the log."""

    def variance_terms(
        self, answers: Cohort, pi: FloatArray, offer: Offer, budget: float
    ) -> tuple[FloatArray, float]:
        """(y [m], y₀) such that y₀ + Σy over all clients is its variance in this round.

        Args:
            answers: The part of the logged cohort that answered.
            pi: λ‖g‖ of these clients, [m].
            offer: The clients that the round could draw.
            budget: The budget of the rival in this round.
        """

    def learn(self, answers: Cohort, norms: FloatArray) -> None:
        """Learn from the answers of a round, before `variance_terms` of any round drawn later."""


class Follower:
    """A policy that learns from cohorts that it did not draw.

    Args:
        policy: The policy.
        members: The clients at the first round.
    """

    def __init__(self, policy: Policy[Any], members: Members) -> None:
        if policy.needs_norms:
            raise ValueError(
                f"{type(policy).__name__} must know every client's norm before it draws, and a log "
                "has those of the drawn; kvib.plan estimates what perfect knowledge would give"
            )
        self._members = members
        self.learner = members.learner(policy)
        """The policy and what it has learned."""

    def variance_terms(
        self, answers: Cohort, pi: FloatArray, offer: Offer, budget: float
    ) -> tuple[FloatArray, float]:
        """y = π²(1/(q·p′) − 1)."""
        weights, cap = self._members.share(offer.ids), self.learner.cap
        p = self.learner.expected(offer.ids, answers.round, budget, weights, offer.prices)
        return norm_part(pi, answers.answer_probability, p[offer.at(answers.ids)], cap), 0.0

    def learn(self, answers: Cohort, norms: FloatArray) -> None:
        """Learn as `Sampler.update` does, with the weights at the time of the feedback."""
        if len(answers):
            self.learner.learn(answers, self._members.weight(answers.ids) * norms)


class Perfect:
    """A lower bound on the least variance that any probabilities can have.

    With a value ν on the budget, V* = min_p Σπ²(1/(q·p) − 1) under Σ c·p ≤ K (prices c) is at
    least Σ_i min_p {π_i²(1/(q_i·p) − 1) + ν·c_i·p} − ν·K, whatever ν is. The best ν gives equality.
    A ν from earlier rounds keeps the estimate unbiased, and a ν that is a little off costs little.

    Args:
        members: The clients and their prices.
    """

    def __init__(self, members: Members) -> None:
        self._members, self._cap = members, members.setting.cap
        self._recent: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=RECENT)

    def variance_terms(
        self, answers: Cohort, pi: FloatArray, offer: Offer, budget: float
    ) -> tuple[FloatArray, float]:
        """π²(1/(q·p) − 1) + ν·c·p at its minimum p = min(cap, π/√(q·ν·c)), and −ν·K."""
        value = self._value(budget)
        if value == 0:
            return norm_part(
                pi, answers.answer_probability, np.full(len(pi), self._cap), self._cap
            ), 0.0
        price = value * self._price(answers.ids)
        # A client with norm 0 has its minimum at p → 0, where ν·c·p → 0. Any small p > 0 gives it.
        p = np.clip(pi / np.sqrt(answers.answer_probability * price), _SMALLEST, self._cap)
        return norm_part(pi, answers.answer_probability, p, self._cap) + price * p, -value * budget

    def learn(self, answers: Cohort, norms: FloatArray) -> None:
        """Keep what ν depends on: π/√(q·c) of every answer, and c·count/(q·expected).

        The sum of the latter estimates Σ c over all clients.
        """
        pi, price = answers.weight * norms, self._price(answers.ids)
        weight = price * answers.count / answers.expected_answers
        self._recent.append((pi / np.sqrt(answers.answer_probability * price), weight))

    def _price(self, ids: IntArray) -> FloatArray:
        """Prices of these clients, [m]."""
        prices = self._members.prices(ids)
        return np.ones(len(ids)) if prices is None else prices

    def _value(self, budget: float) -> float:
        """The ν at which Σ c·p would have been the budget; 0 where the budget draws all clients."""
        if not self._recent:
            return 0.0
        phi, weight = (np.concatenate(part) for part in zip(*self._recent, strict=True))
        phi, weight = phi[phi > 0], weight[phi > 0]
        if not len(phi):
            return 0.0
        total = budget * len(self._recent)
        if total >= weight.sum() * self._cap:
            return 0.0
        p = waterfill(phi * np.sqrt(weight), total, cap=self._cap, cost=weight)
        scarce = p < self._cap
        return float((phi[scarce] / p[scarce]).min() ** 2) if scarce.any() else 0.0

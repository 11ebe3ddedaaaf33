"""How many clients a round needs: variance against budget, from rounds that were logged."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.intervals import Estimate
from kvib.logged import Logged
from kvib.members import Members
from kvib.policies import Forecast, Policy
from kvib.procedures import Procedure, independent
from kvib.replay import Follower, Terms, check_level, covers, opened, terms_of
from kvib.tally import Offer, Rival, Row, norm_part
from kvib.waterfill import waterfill

RECENT = 8
"""Rounds from which the price of a client is learned: enough answers, little of the trend."""


class Curve(NamedTuple):
    """Variance per round at each budget, [B] each, with intervals."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


class Plan(NamedTuple):
    """What more or fewer clients per round would do; intervals of probability `level`."""

    today: Estimate
    """Variance of the logged rounds."""
    budget: float
    """Their mean budget."""
    enough: Estimate
    """The budget with which `policy` has today's variance; inf where no budget here suffices, and
    the smallest where even that does."""
    budgets: FloatArray
    logging: Curve
    """The policy that drew the rounds."""
    policy: Curve
    """The other one."""
    perfect: Curve
    """What no policy can fall below."""
    names: tuple[str, str]
    """Of the two policies."""
    level: float
    rounds: int
    covers: str
    """Which part of the variance norms can tell."""
    warnings: tuple[str, ...]
    """Why these figures may be wrong."""

    def __str__(self) -> str:
        logging, policy = self.names
        told = [
            f"{self.rounds} rounds, intervals of {self.level:.0%}, {self.covers}",
            f"today: variance {self.today} with a budget of {self.budget:g} per round",
            f"{policy} has the same with {self.enough}",
            f"{'budget':>10} {logging:>12} {policy:>12} {'no less than':>12}",
        ]
        curves = np.array([self.logging.value, self.policy.value, self.perfect.value]).T
        for K, (*known, least) in zip(self.budgets, curves.tolist(), strict=True):
            # estimated too: above a policy's it says nothing
            cells = [f"{v:.3g}" for v in known] + [f"{least:.3g}" if least <= min(known) else "–"]
            told.append(f"{K:>10.4g}" + "".join(f" {cell:>12}" for cell in cells))
        return "\n".join([*told, *(f"warning: {warning}" for warning in self.warnings)])


class Perfect:
    """The least variance that any probabilities can have, from below.

    With a value ν on the budget, V* = min_p Σπ²(1/(q·p) − 1) under Σ c·p ≤ K (prices c) is at
    least Σ_i min_p {π_i²(1/(q_i·p) − 1) + ν·c_i·p} − ν·K, whatever ν; the best ν gives equality. A
    ν from earlier rounds keeps the estimate unbiased, and being a little off costs little.

    Args:
        members: the clients, and what drawing them takes from the budget.
    """

    def __init__(self, members: Members) -> None:
        self._members, self._cap = members, members.setting.cap
        self._recent: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=RECENT)

    def costs(
        self, answers: Cohort, pi: FloatArray, offer: Offer, budget: float
    ) -> tuple[FloatArray, float]:
        """π²(1/(q·p) − 1) + ν·c·p at its minimum, p = min(cap, π/√(q·ν·c)); and −ν·K."""
        value = self._value(budget)
        if value == 0:
            return norm_part(pi, answers.response, np.full(len(pi), self._cap), self._cap), 0.0
        price = value * self._price(answers.ids)
        # A norm of 0 needs no client: any p > 0 gives its cost, ν·c·p → 0.
        p = np.clip(pi / np.sqrt(answers.response * price), 1e-300, self._cap)
        return norm_part(pi, answers.response, p, self._cap) + price * p, -value * budget

    def learn(self, answers: Cohort, norms: FloatArray) -> None:
        """Keep what ν depends on."""
        pi, price = answers.weight * norms, self._price(answers.ids)
        weight = price * answers.count / answers.expected_answers
        self._recent.append((pi / np.sqrt(answers.response * price), weight))

    def _price(self, ids: IntArray) -> FloatArray:
        prices = self._members.prices(ids)
        return np.ones(len(ids)) if prices is None else prices

    def _value(self, budget: float) -> float:
        """ν at which Σ c·p would have been the budget; 0 where there is enough for all."""
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


def plan(
    rounds: Iterable[Logged],
    weights: ArrayLike,
    logging: Policy[Any],
    policy: Policy[Any] | None = None,
    *,
    budgets: ArrayLike | None = None,
    procedure: Procedure = independent,
    since: int = 0,
    level: float = 0.9,
    variables: ArrayLike | None = None,
    prices: ArrayLike | None = None,
    usual: float | None = None,
    most: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Variance against budget under two policies, and how much of it the better one needs.

    Every point is a `replay` of its policy with that budget, as `sampler.draw(budget=…)` would use
    it. The budget that keeps today's variance is where the ratio to it is 1; its interval holds
    the budgets at which the interval of the ratio holds 1.

    Args:
        rounds: as for `replay`.
        weights: likewise.
        logging: the policy that drew them.
        policy: the other one; by default `kvib.Forecast()`.
        budgets: to try, ascending; by default from that of a few clients to that of all.
        procedure: with which the rounds were drawn.
        since: number of the first round to measure; earlier ones only teach.
        level: probability of the intervals.
        variables: as the sampler was given.
        prices: as for `replay`.
        usual: as for `replay`.
        most: as for `replay`; the largest budget to try by default.
        progress: called with the number of rounds read so far.
    """
    check_level(level)
    policy = Forecast() if policy is None else policy
    first, everything = opened(rounds)
    terms = terms_of(first, weights, procedure, variables, prices, usual, most)
    members, tried = terms.members, _tried(budgets, terms)
    rivals: list[tuple[Rival, list[float | None]]] = [
        (Follower(logging, members), tried.tolist()),
        (Follower(policy, members), tried.tolist()),
        (Perfect(members), tried.tolist()),
    ]
    tally = terms.tally(everything, rivals, since, progress)
    logged, (ours, others, least) = tally.rows(level)
    names = type(logging).__name__, type(policy).__name__
    return Plan(
        today=logged.variance,
        budget=tally.budget,
        enough=_enough(tried, others),
        budgets=tried,
        logging=_curve(ours),
        policy=_curve(others),
        perfect=_curve(least),
        names=names,
        level=level,
        rounds=len(tally),
        covers=covers(procedure),
        warnings=tally.warnings({"as logged": logged, names[1]: others[0]}),
    )


def grid(today: float, most: float, one: float = 1.0) -> FloatArray:
    """Budgets to try, ascending: finer below today's, which is one of them.

    Args:
        today: the budget of a round.
        most: what drawing all clients takes.
        one: what drawing one client takes.
    """
    today = min(today, most)
    least = min(today, max(one, today / 16))
    fewer, more = np.geomspace(least, today, 13), np.geomspace(today, most, 13)
    return np.unique(np.concatenate([fewer[:-1], [today], more[1:-1], [most]]))


def _tried(budgets: ArrayLike | None, terms: Terms) -> FloatArray:
    if budgets is None:
        return grid(terms.budget, terms.most, terms.members.most / len(terms.members))
    given = np.array([terms.checked(K) for K in np.ravel(np.asarray(budgets))])
    if len(given) < 2 or (np.diff(given) <= 0).any():
        raise ValueError(f"budgets {given.tolist()[:10]} do not ascend; give two or more that do")
    return given


def _curve(rows: Sequence[Row]) -> Curve:
    value, low, high = np.array([row.variance for row in rows]).T
    return Curve(value, low, high)


def _enough(grid: FloatArray, rows: Sequence[Row]) -> Estimate:
    value, low, high = np.array([row.ratio for row in rows]).T
    return Estimate(_crossing(grid, value), _crossing(grid, low), _crossing(grid, high))


def _crossing(grid: FloatArray, ratio: FloatArray) -> float:
    """The first budget at which the ratio is 1 or less, between those tried."""
    under = np.flatnonzero(ratio <= 1)
    if len(under) == 0:
        return math.inf
    k = int(under[0])
    if k == 0:
        return float(grid[0])
    # Variance falls about as 1/K − 1/N does: straight in 1/K.
    above, below = 1 / grid[k - 1], 1 / grid[k]
    if math.isinf(ratio[k - 1]):
        return float(grid[k])
    share = (ratio[k - 1] - 1) / (ratio[k - 1] - ratio[k])
    return float(1 / (above + share * (below - above)))

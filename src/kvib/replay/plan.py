"""How many clients a round needs: variance against budget, from rounds that were logged."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.policies import Forecast, Policy
from kvib.replay.earlier import takes_terms
from kvib.replay.intervals import Interval, check_level
from kvib.replay.logged import Logged
from kvib.replay.measurements import Row
from kvib.replay.reading import Reading
from kvib.replay.rivals import Follower, Perfect, Rival
from kvib.replay.terms import Log, Terms, covers
from kvib.types import FloatArray


class Curve(NamedTuple):
    """Variance per round at each budget, [B] each, with intervals."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


class Plan(NamedTuple):
    """What more or fewer clients per round would do; intervals of probability `level`."""

    today: Interval
    """Variance of the logged rounds."""
    budget: float
    """Their mean budget."""
    enough: Interval
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
    """Names of the two policies."""
    level: float
    rounds: int
    covers: str
    """Which part of the variance norms can tell."""
    warnings: tuple[str, ...]
    """Why these figures may be wrong."""

    def __str__(self) -> str:
        logging, policy = self.names
        lines = [
            f"{self.rounds} rounds, intervals of {self.level:.0%}, {self.covers}",
            f"today: variance {self.today} with a budget of {self.budget:g} per round",
            f"{policy} has the same with {self.enough}",
            f"{'budget':>10} {logging:>12} {policy:>12} {'no less than':>12}",
        ]
        curves = np.array([self.logging.value, self.policy.value, self.perfect.value]).T
        for K, (*known, least) in zip(self.budgets, curves.tolist(), strict=True):
            # The bound is estimated too: above a policy's variance it says nothing.
            cells = [f"{v:.3g}" for v in known] + [f"{least:.3g}" if least <= min(known) else "–"]
            lines.append(f"{K:>10.4g}" + "".join(f" {cell:>12}" for cell in cells))
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


@takes_terms(now="plan(rounds, policy")
def plan(
    log: Log | Iterable[Logged],
    policy: Policy[Any] | None = None,
    terms: Terms | None = None,
    *,
    budgets: ArrayLike | None = None,
    since: int = 0,
    level: float = 0.9,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Variance against budget under two policies, and how much of it the better one needs.

    Every point is a `replay` of its policy with that budget, as `sampler.draw(budget=…)` would use
    it. The budget that keeps today's variance is where the ratio to it is 1; its interval holds
    the budgets at which the interval of the ratio holds 1.

    Args:
        log: a journal or rounds, as for `replay`.
        policy: to compare with the one that drew the rounds; by default `kvib.Forecast()`.
        terms: under which the rounds were drawn; a journal knows its own. Their `policy` is the one
            that drew the rounds.
        budgets: to try, ascending; by default from that of a few clients to that of all.
        since: number of the first round to measure; earlier ones only teach.
        level: probability of the intervals.
        progress: called with the number of rounds read so far.
    """
    check_level(level)
    policy = Forecast() if policy is None else policy
    reading = Reading(log, terms)
    logging, tried = _logging(reading.terms), _tried(budgets, reading)
    measurements = reading.measurements(_rivals(reading, logging, policy, tried), since, progress)
    logged, (ours, others, least) = measurements.rows(level)
    names = type(logging).__name__, type(policy).__name__
    return Plan(
        today=logged.variance,
        budget=measurements.budget,
        enough=_enough(tried, others),
        budgets=tried,
        logging=_curve(ours),
        policy=_curve(others),
        perfect=_curve(least),
        names=names,
        level=level,
        rounds=len(measurements),
        covers=covers(reading.terms.procedure),
        warnings=measurements.warnings({"as logged": logged, names[1]: others[0]}),
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


def _logging(terms: Terms) -> Policy[Any]:
    if terms.policy is None:
        raise ValueError(
            "the terms do not say which policy drew the rounds; write kvib.replay.Terms(weights, "
            "policy=…)"
        )
    return terms.policy


def _tried(budgets: ArrayLike | None, reading: Reading) -> FloatArray:
    terms, members = reading.terms, reading.members
    if budgets is None:
        return grid(reading.budget, terms.most, members.most / len(members))
    given = np.array([terms.checked(K) for K in np.ravel(np.asarray(budgets))])
    if len(given) < 2 or (np.diff(given) <= 0).any():
        raise ValueError(f"budgets {given.tolist()[:10]} do not ascend; give two or more that do")
    return given


def _rivals(
    reading: Reading, logging: Policy[Any], policy: Policy[Any], tried: FloatArray
) -> list[tuple[Rival, list[float | None]]]:
    members = reading.members
    rivals = (Follower(logging, members), Follower(policy, members), Perfect(members))
    return [(rival, tried.tolist()) for rival in rivals]


def _curve(rows: Sequence[Row]) -> Curve:
    value, low, high = np.array([row.variance for row in rows]).T
    return Curve(value, low, high)


def _enough(grid: FloatArray, rows: Sequence[Row]) -> Interval:
    value, low, high = np.array([row.ratio for row in rows]).T
    return Interval(crossing(grid, value), crossing(grid, low), crossing(grid, high))


def crossing(grid: FloatArray, ratio: FloatArray) -> float:
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

"""How few clients per round suffice: variance against budget, from logged rounds."""

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

_POINTS = 13
"""Budgets from the smallest to today's, and from today's to the largest."""
_SMALLEST_PART = 16
"""The smallest budget to try is today's divided by this, or that of one client if it is more."""


class Curve(NamedTuple):
    """A curve that shows the variance per round at each budget, with intervals.

    It is that of a policy, or of the bound `Plan.perfect`. Its arrays have one entry for each of
    `Plan.budgets`.

    Examples:
        >>> import numpy as np
        >>> from kvib.replay import Curve
        >>> curve = Curve(value=np.array([4.0, 1.0]), low=np.array([3.0, 0.8]),
        ...               high=np.array([5.5, 1.4]))
        >>> bool(curve.high[1] < curve.low[0])              # the second budget is clearly better
        True
    """

    value: FloatArray
    """The estimated variance, [B]."""
    low: FloatArray
    """The lower end of its interval, [B]."""
    high: FloatArray
    """The upper end of its interval, [B]."""


class Plan(NamedTuple):
    """The result of `plan`: it shows what more or fewer clients per round would do.

    Printed, it is a table of the variance at each budget.

    Examples:
        >>> import numpy as np, kvib
        >>> from kvib.replay import Logged, Terms
        >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), [1, 2, 3, 4], budget=2), []
        >>> for _ in range(5):
        ...     cohort = sampler.draw()
        ...     rounds.append(Logged(cohort, np.ones(len(cohort))))
        >>> terms = Terms([1, 2, 3, 4], policy=kvib.Uniform())
        >>> ahead = kvib.plan.plan(rounds, kvib.BySize(), terms, budgets=[1, 2, 3])
        >>> ahead.names, ahead.budget, ahead.budgets
        (('Uniform', 'BySize'), 2.0, array([1., 2., 3.]))
    """

    today: Interval
    """Variance of the logged rounds."""
    budget: float
    """Mean budget of the logged rounds."""
    enough: Interval
    """The budget with which `policy` has today's variance; inf where no budget here suffices, and
    the smallest where even that does."""
    budgets: FloatArray
    """The budgets that were tried, ascending, [B]."""
    logging: Curve
    """The curve of the policy that drew the rounds."""
    policy: Curve
    """The curve of the policy that is compared with it."""
    perfect: Curve
    """The curve that no policy can fall below."""
    names: tuple[str, str]
    """Names of the two policies: the one that drew the rounds, and the compared one."""
    level: float
    """Probability of the intervals."""
    rounds: int
    """Number of measured rounds."""
    covers: str
    """The part of the variance that norms can tell, in words."""
    warnings: tuple[str, ...]
    """Reasons why these figures may be wrong; empty if none was found."""

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
    """How few clients per round suffice: compare variance against budget under two policies.

    Every point is a `replay` of its policy with that budget, as `sampler.draw(budget=…)` would use
    it. The budget that keeps today's variance is where the ratio to it is 1. Its interval holds
    the budgets at which the interval of the ratio holds 1.

    Args:
        log: A journal or rounds, as for `replay`.
        policy: The policy to compare with the one that drew the rounds. By default it is
            `kvib.Forecast()`.
        terms: The terms under which the rounds were drawn. A journal knows its own. Their `policy`
            is the one that drew the rounds.
        budgets: The budgets to try, ascending. By default they go from that of a few clients to
            that of all.
        since: The number of the first round to measure. Earlier rounds only teach the policies.
        level: The probability of the intervals.
        progress: A function that is called with the number of rounds read so far.

    Examples:
        >>> import os, tempfile
        >>> import numpy as np, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> rng, sizes = np.random.default_rng(0), np.geomspace(1, 100, 50)
        >>> with kvib.journalled(path, kvib.Uniform(), sizes, 10, kvib.independent) as sampler:
        ...     for _ in range(60):
        ...         cohort = sampler.draw()
        ...         sampler.update(cohort, rng.lognormal(0, 0.3, len(cohort)))
        >>> ahead = kvib.plan.plan(kvib.journal.read(path), kvib.BySize())
        >>> bool(ahead.enough.high < ahead.budget)          # fewer than today's 10 clients suffice
        True
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
    """Make a list of budgets to try, ascending. It is finer below today's budget, which is in it.

    Args:
        today: The present budget of a round.
        most: The budget that draws all clients.
        one: The budget that draws one client.

    Examples:
        >>> from kvib.replay import grid
        >>> budgets = grid(today=16, most=100)
        >>> len(budgets), bool(16 in budgets)
        (25, True)
        >>> float(budgets[0]), float(budgets[-1])
        (1.0, 100.0)
    """
    today = min(today, most)
    least = min(today, max(one, today / _SMALLEST_PART))
    fewer, more = np.geomspace(least, today, _POINTS), np.geomspace(today, most, _POINTS)
    return np.unique(np.concatenate([fewer[:-1], [today], more[1:-1], [most]]))


def _logging(terms: Terms) -> Policy[Any]:
    """The policy that drew the rounds."""
    if terms.policy is None:
        raise ValueError(
            "the terms do not say which policy drew the rounds; write kvib.replay.Terms(weights, "
            "policy=…)"
        )
    return terms.policy


def _tried(budgets: ArrayLike | None, reading: Reading) -> FloatArray:
    """The budgets to try, checked; by default a grid around the sampler's own."""
    terms, members = reading.terms, reading.members
    if budgets is None:
        return grid(reading.budget, terms.most, members.most / len(members))
    tried = np.array([terms.checked(K) for K in np.ravel(np.asarray(budgets))])
    if len(tried) < 2 or (np.diff(tried) <= 0).any():
        raise ValueError(f"budgets {tried.tolist()[:10]} do not ascend; give two or more that do")
    return tried


def _rivals(
    reading: Reading, logging: Policy[Any], policy: Policy[Any], tried: FloatArray
) -> list[tuple[Rival, list[float | None]]]:
    """Both policies and the lower bound, each with all budgets."""
    members = reading.members
    rivals = (Follower(logging, members), Follower(policy, members), Perfect(members))
    return [(rival, tried.tolist()) for rival in rivals]


def _curve(rows: Sequence[Row]) -> Curve:
    """The variances of a rival's rows, one for each budget."""
    value, low, high = np.array([row.variance for row in rows]).T
    return Curve(value, low, high)


def _enough(grid: FloatArray, rows: Sequence[Row]) -> Interval:
    """The budget at which the ratio to the logged variance is 1."""
    value, low, high = np.array([row.ratio for row in rows]).T
    return Interval(crossing(grid, value), crossing(grid, low), crossing(grid, high))


def crossing(grid: FloatArray, ratio: FloatArray) -> float:
    """Find the first budget at which the ratio is 1 or less, between those tried.

    Args:
        grid: The budgets that were tried, ascending.
        ratio: The ratio of the variance to today's at each budget.

    Examples:
        >>> import numpy as np
        >>> from kvib.replay.plan import crossing
        >>> crossing(np.array([10.0, 20.0, 40.0]), np.array([3.0, 1.0, 0.5]))
        20.0
        >>> crossing(np.array([10.0, 20.0]), np.array([3.0, 2.0]))      # none suffices
        inf
    """
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

"""From rounds that were logged: what another policy's variance would have been in them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import (
    SMALLEST_FEEDBACK,
    checked_budget,
    checked_variables,
    checked_weights,
    cohort_norms,
)
from kvib.cohort import Cohort, FloatArray
from kvib.policies import Policy, Setting
from kvib.procedures import Procedure, independent

FEW = 10.0
"""Effective answers below which single clients decide the estimate."""
SURE = 4.0
"""Standard errors, where a warning shall not be a false alarm."""


class LoggedRound(Protocol):
    """One round of the past."""

    @property
    def cohort(self) -> Cohort:
        """Who was drawn, and with which probabilities."""

    @property
    def norms(self) -> FloatArray:
        """‖g‖ in the order of `cohort.ids`, NaN where there was no answer."""

    @property
    def heard(self) -> bool:
        """Whether feedback ever arrived."""


class Estimate(NamedTuple):
    """A value and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


class Row(NamedTuple):
    """One policy in the logged rounds."""

    variance: Estimate
    """Mean over the rounds."""
    ratio: Estimate
    """To the logged variance, from the same answers: below 1 is a gain."""
    effective: float
    """How many equally important answers the estimate is worth, (Σc)²/Σc²."""
    per_round: FloatArray
    """The estimate of every measured round, [T]; single ones are noisy."""


class Tally(NamedTuple):
    """What one pass over the rounds has summed."""

    logged: FloatArray
    """Estimated variance of every measured round, [T]."""
    others: FloatArray
    """The same of each rival at each budget, [C, T]."""
    squares: FloatArray
    """Σc² of the contributions c of single answers, [C + 1], the logged first."""
    reached: FloatArray
    """Σ count/(q·expected) / N of every measured round, [T]: 1 on average if all can be drawn."""
    budget: float
    """Mean budget of the measured rounds."""
    unheard: int
    """Rounds without feedback, left out."""
    silent: int
    """Missing answers of clients that were said to answer always."""
    partly: bool
    """Whether clients were said to be available at times only."""

    def row(self, others: FloatArray, squares: float, level: float) -> Row:
        """The rival whose rounds are given."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        effective = float(others.sum() ** 2 / squares) if squares > 0 else 0.0
        alone, paired = np.ones_like(others), self.logged
        return Row(_ratio(others, alone, z), _ratio(others, paired, z), effective, others)

    def rows(self, level: float) -> list[Row]:
        """The logged policy, then all rivals."""
        everybody = chain([self.logged], self.others)
        return [self.row(y, s, level) for y, s in zip(everybody, self.squares, strict=True)]

    def warnings(self, rows: Mapping[str, Row]) -> tuple[str, ...]:
        """Why these figures may be wrong."""
        told = [
            f"{label}: the estimate hangs on about {row.effective:.0f} answers, so single clients "
            "decide it: log more rounds, or by a policy that draws everybody now and then"
            for label, row in rows.items()
            if 0 < row.effective < FEW
        ]
        reached = _ratio(self.reached, np.ones_like(self.reached), SURE)
        if reached.high < 1:
            told.append(
                f"the log stands for {reached.value:.0%} of the clients only: the others could not "
                "be drawn, or so rarely that they never were; what they would add is missing"
            )
        if self.partly:
            told.append(
                "clients were available at times, and nobody logged when: other policies are "
                "replayed as if all could be drawn, which makes their variance too large"
            )
        if self.silent:
            told.append(
                f"{self.silent} answers of clients with response probability 1 are missing: all "
                "variances are too small; give the sampler response="
            )
        return tuple(told)


class Replay(NamedTuple):
    """Variances of policies in the same past rounds; intervals of probability `level`."""

    logged: Row
    """As the rounds were drawn."""
    rows: dict[str, Row]
    level: float
    rounds: int
    """How many were measured."""
    unheard: int
    """How many without feedback were left out."""
    covers: str
    """Which part of the variance norms can tell."""
    warnings: tuple[str, ...]
    """Why these figures may be wrong; empty if nothing speaks against them."""

    def __str__(self) -> str:
        width = max(map(len, self.rows), default=0)
        told = [
            f"{self.rounds} rounds, intervals of {self.level:.0%}, {self.covers}",
            f"as logged: variance {self.logged.variance} per round",
            *(f"{k:>{width}}: {r.ratio} times, {r.variance}" for k, r in self.rows.items()),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(told)


class Rival(Protocol):
    """Something that would have drawn otherwise, and learns from what was logged."""

    def costs(self, answers: Cohort, pi: FloatArray, budget: float) -> tuple[FloatArray, float]:
        """(y [m], y₀) such that y₀ + Σy over all clients is its variance in this round."""

    def learn(self, answers: Cohort, pi: FloatArray) -> None:
        """Of those who answered; called in every round that was heard, after `costs`."""


class Follower:
    """A policy that learns from cohorts which it did not draw."""

    def __init__(self, policy: Policy[Any], setting: Setting) -> None:
        if policy.needs_norms:
            raise ValueError(
                f"{type(policy).__name__} must know every client's norm before it draws, and a log "
                "has those of the drawn; kvib.plan estimates what perfect knowledge would give"
            )
        self._policy, self._setting = policy, setting
        self._ids = np.arange(len(setting.weights))
        self._state = policy.start(setting)

    def costs(self, answers: Cohort, pi: FloatArray, budget: float) -> tuple[FloatArray, float]:
        """y = π²(1/(q·p′) − 1)."""
        K, cap, weights = min(budget, len(self._ids)), self._setting.cap, self._setting.weights
        p = self._policy.expected(self._state, self._ids, answers.round, K, cap, weights=weights)
        return norm_part(pi, answers.response, p[answers.ids], cap), 0.0

    def learn(self, answers: Cohort, pi: FloatArray) -> None:
        """As `Sampler.update` does."""
        if len(answers):
            feedback = pi / np.sqrt(answers.response * answers.availability)
            feedback = np.where(feedback < SMALLEST_FEEDBACK, 0.0, feedback)
            self._state = self._policy.observe(self._state, answers, feedback)


def replay(
    rounds: Iterable[LoggedRound],
    weights: ArrayLike,
    policies: Mapping[str, Policy[Any]],
    *,
    budget: float | None = None,
    procedure: Procedure = independent,
    since: int = 0,
    level: float = 0.9,
    variables: ArrayLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """How much lower would other policies' variance have been in rounds of the past?

    Each policy learns from the logged cohorts, so that its p′ of a round depends on earlier rounds
    alone. Then V̂ = Σ_{i heard} count_i/(q_i·expected_i) · π_i²(1/(q_i·p′_i) − 1) has mean
    V′ = Σ_i π_i²(1/(q_i·p′_i) − 1), the variance of independent draws with p′. For the policy that
    drew them V̂ is each round's own estimate of its variance (`kvib.estimated_variance`).

    With replacement it is Σπ²((1/e′ + 1)/q − 1), which leaves out what no policy changes (−‖D‖²/K).
    For a fixed size it is the variance that independent draws with the same probabilities have.

    Args:
        rounds: in the order of their draws, from the first that the policies shall learn from.
        weights: λ of every client, as the sampler was given.
        policies: what to call each, and the policy.
        budget: clients per round, as in `sampler.draw(budget=…)`; by default as logged.
        procedure: with which the rounds were drawn, and the others would have been.
        since: number of the first round to measure; earlier ones only teach.
        level: probability of the intervals.
        variables: as the sampler was given.
        progress: called with the number of rounds read so far.

    >>> import numpy as np, kvib
    >>> from kvib.replay import replay
    >>> from types import SimpleNamespace as Logged
    >>> rng, sizes = np.random.default_rng(0), np.geomspace(1, 100, 50)
    >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), sizes, budget=10), []
    >>> for _ in range(60):
    ...     cohort = sampler.draw()
    ...     norms = rng.lognormal(0, 0.3, len(cohort))
    ...     sampler.update(cohort, norms)
    ...     rounds.append(Logged(cohort=cohort, norms=norms, heard=True))
    >>> told = replay(rounds, sizes, {"by size": kvib.BySize()}, procedure=sampler.procedure)
    >>> told.rows["by size"].ratio.high < 0.6                       # a gain, beyond doubt
    True
    """
    check_level(level)
    first, everything = opened(rounds)
    setting = setting_of(first, weights, procedure, variables)
    given = None if budget is None else checked_budget(budget, len(setting.weights))
    rivals = [(Follower(policy, setting), [given]) for policy in policies.values()]
    tally = tallied(everything, setting, rivals, since, progress)
    logged, *others = tally.rows(level)
    rows = dict(zip(policies, others, strict=True))
    warnings = tally.warnings({"as logged": logged, **rows})
    return Replay(
        logged, rows, level, len(tally.logged), tally.unheard, covers(procedure), warnings
    )


def opened(rounds: Iterable[LoggedRound]) -> tuple[LoggedRound, Iterator[LoggedRound]]:
    """The first round, and all of them."""
    rest = iter(rounds)
    first = next(rest, None)
    if first is None:
        raise ValueError("no rounds to replay; log some first")
    return first, chain([first], rest)


def setting_of(
    first: LoggedRound, weights: ArrayLike, procedure: Procedure, variables: ArrayLike | None
) -> Setting:
    """What a policy would have known before this round."""
    w = checked_weights(weights)
    asked = first.cohort.requested
    budget = first.cohort.budget if math.isnan(asked) else asked
    return Setting(w, budget, procedure.cap, checked_variables(variables, len(w)))


def check_level(level: float) -> None:
    """Refuse what is not a probability."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not a probability between 0 and 1")


def covers(procedure: Procedure) -> str:
    """Which part of the variance norms can tell."""
    two = np.full(2, 0.5)
    if procedure.pairs is not None and procedure.pairs(two, np.arange(2)).uncorrelated:
        return "all of the variance"
    if procedure.cap > 1:
        return "the variance but for a part that no policy changes (‖D‖²/K less)"
    return "the variance of independent draws with the same probabilities"


def norm_part(pi: FloatArray, reach: FloatArray, expected: FloatArray, cap: float) -> FloatArray:
    """What each client adds to the variance, as far as norms can tell.

    π²(1/(q·p) − 1). Counts above 1 and D = Σλg add π²/q and take ‖D‖²/K, and for q < 1 at most
    π²(1/q − 1)/K; the first is here.
    """
    repeated = 1.0 if cap > 1 else 0.0
    return np.asarray(pi**2 * ((1 / expected + repeated) / reach - 1))


def tallied(
    rounds: Iterable[LoggedRound],
    setting: Setting,
    rivals: Sequence[tuple[Rival, Sequence[float | None]]],
    since: int,
    progress: Callable[[int], None] | None,
) -> Tally:
    """One pass: every rival at each of its budgets (None: as logged) in every round since `since`.

    A round that was not heard is left out. An empty cohort was, whether or not anybody said so:
    nothing was to be heard, and leaving out the empty would favour the large.
    """
    entries = 1 + sum(len(budgets) for _, budgets in rivals)
    values: list[list[float]] = []
    squares, N = np.zeros(entries), len(setting.weights)
    reached, spent, unheard, silent, partly = [], [], 0, 0, False
    for k, (cohort, norms, heard) in enumerate(map(_parts, rounds)):
        _check(cohort, N)
        if len(cohort) and not heard:
            unheard += cohort.round >= since
        elif cohort.budget > 0:
            answered = ~np.isnan(cohort_norms(cohort, norms))
            answers = cohort.take(answered)
            pi = answers.weight * norms[answered]
            if cohort.round >= since:
                weight = answers.count / answers.expected_answers
                costs = list(_costs(answers, pi, setting.cap, cohort.budget, rivals))
                values.append([float(weight @ y) + y0 for y, y0 in costs])
                squares += [float(((weight * y) ** 2).sum()) for y, _ in costs]
                reached.append(float(weight.sum()) / N)
                spent.append(cohort.budget)
                certain = cohort.response == cohort.availability
                silent += int(np.count_nonzero(~answered & certain))
                partly |= bool((cohort.availability < 1).any())
            for rival, _ in rivals:
                rival.learn(answers, pi)
        if progress is not None:
            progress(k + 1)
    if len(values) < 2:
        raise ValueError(
            f"{len(values)} rounds with feedback since round {since}: give at least 2, and some "
            "dozens for an interval that tells something"
        )
    table = np.array(values).T
    return Tally(
        table[0],
        table[1:],
        squares,
        np.array(reached),
        float(np.mean(spent)),
        unheard,
        silent,
        partly,
    )


def _parts(logged: LoggedRound) -> tuple[Cohort, FloatArray, bool]:
    return logged.cohort, np.asarray(logged.norms, dtype=np.float64), logged.heard


def _check(cohort: Cohort, clients: int) -> None:
    if cohort.guarantee == "biased":
        raise ValueError("a selector's cohort has no inclusion probabilities: nothing to replay")
    if len(cohort) and cohort.ids[-1] >= clients:
        raise ValueError(
            f"client {cohort.ids[-1]} was drawn in round {cohort.round}, but there are weights of "
            f"{clients} clients; give those of all who ever took part"
        )


def _costs(
    answers: Cohort,
    pi: FloatArray,
    cap: float,
    logged: float,
    rivals: Sequence[tuple[Rival, Sequence[float | None]]],
) -> Iterator[tuple[FloatArray, float]]:
    yield norm_part(pi, answers.response, answers.expected, cap), 0.0
    for rival, budgets in rivals:
        for budget in budgets:
            yield rival.costs(answers, pi, logged if budget is None else budget)


def _ratio(top: FloatArray, bottom: FloatArray, z: float) -> Estimate:
    """Σtop/Σbottom over rounds, and all ρ for which Σ(top − ρ·bottom) may be 0 by chance.

    Rounds are weighed by their spread, which trends make too large, not too small. What a skewed
    law has not shown yet is accounted for as Fay and Feuer (1997) do for rates: by one more round
    like the most extreme one. The coverage is in docs/replay.md.
    """
    if bottom.sum() <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    value = max(0.0, float(top.sum() / bottom.sum()))

    def too_high(rho: float) -> bool:
        return _below_zero(top - rho * bottom, z)

    def too_low(rho: float) -> bool:
        return _below_zero(rho * bottom - top, z)

    low = _between(value, 0.0, too_low) if too_low(0.0) else 0.0
    if not _below_zero(-bottom, z):  # the bottom itself may be 0
        return Estimate(value, low, math.inf)
    far = 2 * value + float(np.ptp(top) / bottom.mean())
    while far > value and not too_high(far):
        far *= 2
    return Estimate(value, low, _between(value, far, too_high))


def _below_zero(d: FloatArray, z: float) -> bool:
    """Whether E[Σd] < 0, even if one more round like the largest had come."""
    T, total = len(d), float(d.sum())
    off = d - total / T
    most = float(off.max())
    return total + most + z * math.sqrt(T / (T - 1) * float(off @ off) + most**2) < 0


def _between(inside: float, outside: float, refuted: Callable[[float], bool]) -> float:
    """Where refutation begins, by bisection."""
    for _ in range(40):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if refuted(middle) else (middle, outside)
    return inside

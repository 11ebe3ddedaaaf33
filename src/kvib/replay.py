"""From rounds that were logged: what another policy's variance would have been in them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import checked_budget, checked_cost, checked_variables, checked_weights
from kvib.cohort import Cohort, FloatArray
from kvib.logged import Logged
from kvib.members import Members
from kvib.policies import Policy
from kvib.procedures import Procedure, independent
from kvib.tally import Offer, Rival, Row, Tally, norm_part


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


class Follower:
    """A policy that learns from cohorts which it did not draw."""

    def __init__(self, policy: Policy[Any], members: Members) -> None:
        if policy.needs_norms:
            raise ValueError(
                f"{type(policy).__name__} must know every client's norm before it draws, and a log "
                "has those of the drawn; kvib.plan estimates what perfect knowledge would give"
            )
        self._members, self._learner = members, members.learner(policy)

    def costs(
        self, answers: Cohort, pi: FloatArray, offer: Offer, budget: float
    ) -> tuple[FloatArray, float]:
        """y = π²(1/(q·p′) − 1)."""
        weights, cap = self._members.share(offer.ids), self._learner.cap
        p = self._learner.expected(offer.ids, answers.round, budget, weights, offer.prices)
        return norm_part(pi, answers.response, p[offer.at(answers.ids)], cap), 0.0

    def learn(self, answers: Cohort, norms: FloatArray) -> None:
        """As `Sampler.update` does, with the weights that clients have when the feedback comes."""
        if len(answers):
            self._learner.learn(answers, self._members.weight(answers.ids) * norms)


class Terms(NamedTuple):
    """What the rounds are replayed under."""

    members: Members
    """The clients, as of the first round."""
    budget: float
    """That the sampler was made for, in units of the prices."""
    most: float
    """The budget that would draw all clients when there are most of them."""

    def checked(self, budget: float) -> float:
        """A budget that these clients can provide."""
        if self.members.prices(self.members.here) is None:
            return checked_budget(budget, int(self.most))
        return checked_budget(budget, math.inf, np.array([self.most]))

    def tally(
        self,
        rounds: Iterable[Logged],
        rivals: Sequence[tuple[Rival, Sequence[float | None]]],
        since: int,
        progress: Callable[[int], None] | None,
    ) -> Tally:
        """One pass over the rounds."""
        tally = Tally(rivals, self.members, since)
        for k, logged in enumerate(rounds):
            tally.add(logged)
            if progress is not None:
                progress(k + 1)
        return tally


def replay(
    rounds: Iterable[Logged],
    weights: ArrayLike,
    policies: Mapping[str, Policy[Any]],
    *,
    budget: float | None = None,
    procedure: Procedure = independent,
    since: int = 0,
    level: float = 0.9,
    variables: ArrayLike | None = None,
    prices: ArrayLike | None = None,
    usual: float | None = None,
    most: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """How much lower would other policies' variance have been in rounds of the past?

    Each policy learns from the logged cohorts, so that its p′ of a round depends on earlier rounds
    alone. Then V̂ = Σ_{i heard} count_i/(q_i·expected_i) · π_i²(1/(q_i·p′_i) − 1) has mean
    V′ = Σ_i π_i²(1/(q_i·p′_i) − 1), the variance of independent draws with p′, over those who could
    be drawn. For the policy that drew them V̂ is each round's own estimate of its variance
    (`kvib.estimated_variance`).

    With replacement it is Σπ²((1/e′ + 1)/q − 1), which leaves out what no policy changes (−‖D‖²/K).
    For a fixed size it is the variance that independent draws with the same probabilities have.

    Where clients come, go or change their weights between rounds (`Logged.changes`), each round is
    replayed with the clients and the λ of its time, and policies hear of the changes.

    Args:
        rounds: in the order of their draws, from the first that the policies shall learn from.
        weights: λ of every client at the beginning, as the sampler was given.
        policies: what to call each, and the policy.
        budget: per round, as in `sampler.draw(budget=…)`; by default as logged.
        procedure: with which the rounds were drawn, and the others would have been.
        since: number of the first round to measure; earlier ones only teach.
        level: probability of the intervals.
        variables: as the sampler was given.
        prices: what drawing each client takes from the budget, where that is in costs or in
            answers; one by default.
        usual: the budget that the sampler was made for; by default that of the first round.
        most: the largest budget that clients could ever spend; by default those at the beginning.
        progress: called with the number of rounds read so far.

    Examples:
        >>> import numpy as np, kvib
        >>> from kvib.replay import replay
        >>> from kvib.journal import Logged
        >>> rng, sizes = np.random.default_rng(0), np.geomspace(1, 100, 50)
        >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), sizes, budget=10), []
        >>> for _ in range(60):
        ...     cohort = sampler.draw()
        ...     norms = rng.lognormal(0, 0.3, len(cohort))
        ...     sampler.update(cohort, norms)
        ...     rounds.append(Logged(cohort, norms))
        >>> told = replay(rounds, sizes, {"by size": kvib.BySize()}, procedure=sampler.procedure)
        >>> told.rows["by size"].ratio.high < 0.6                       # a gain, beyond doubt
        True
    """
    check_level(level)
    first, everything = opened(rounds)
    terms = terms_of(first, weights, procedure, variables, prices, usual, most)
    given = None if budget is None else terms.checked(budget)
    rivals = [(Follower(policy, terms.members), [given]) for policy in policies.values()]
    tally = terms.tally(everything, rivals, since, progress)
    logged, others = tally.rows(level)
    rows = {label: row for label, [row] in zip(policies, others, strict=True)}
    return Replay(
        logged=logged,
        rows=rows,
        level=level,
        rounds=len(tally),
        unheard=tally.unheard,
        covers=covers(procedure),
        warnings=tally.warnings({"as logged": logged, **rows}),
    )


def opened(rounds: Iterable[Logged]) -> tuple[Logged, Iterator[Logged]]:
    """The first round, and all of them."""
    rest = iter(rounds)
    first = next(rest, None)
    if first is None:
        raise ValueError("no rounds to replay; log some first")
    return first, chain([first], rest)


def terms_of(
    first: Logged,
    weights: ArrayLike,
    procedure: Procedure,
    variables: ArrayLike | None,
    prices: ArrayLike | None,
    usual: float | None,
    most: float | None,
) -> Terms:
    """What the rounds are replayed under, checked."""
    w = checked_weights(weights)
    price = checked_cost(prices, len(w))
    asked = first.cohort.requested if usual is None else usual
    asked = first.cohort.budget if math.isnan(asked) else asked
    clients = asked if price is None else asked / float(price.mean())
    known = checked_variables(variables, len(w))
    members = Members(w, price, clients, procedure.cap, known)
    return Terms(members, asked, members.most if most is None else most)


def check_level(level: float) -> None:
    """Refuse what is not a probability."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not a probability between 0 and 1")


def covers(procedure: Procedure) -> str:
    """Which part of the variance norms can tell."""
    if procedure.uncorrelated:
        return "all of the variance"
    if procedure.cap > 1:
        return "the variance but for a part that no policy changes (‖D‖²/K less)"
    return "the variance of independent draws with the same probabilities"

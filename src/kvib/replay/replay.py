"""The variance that other policies would have had in logged rounds."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kvib.checks import earlier_names, short
from kvib.policies import Policy
from kvib.replay.earlier import takes_terms
from kvib.replay.intervals import check_level
from kvib.replay.logged import Logged
from kvib.replay.measurements import Row
from kvib.replay.reading import Reading
from kvib.replay.rivals import Follower
from kvib.replay.terms import Log, Terms, covers


@earlier_names({"unheard": "unanswered"})
class Replay(NamedTuple):
    """The result of `replay`: it compares the variances of policies in the same past rounds.

    Printed, it is a line for each policy with its ratio to the logged variance, and the warnings.

    Examples:
        >>> import numpy as np, kvib
        >>> from kvib.replay import Logged, Terms, replay
        >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), [1, 2, 3, 4], budget=2), []
        >>> for _ in range(5):
        ...     cohort = sampler.draw()
        ...     rounds.append(Logged(cohort, np.ones(len(cohort))))
        >>> found = replay(rounds, {"by size": kvib.BySize()}, Terms([1, 2, 3, 4]))
        >>> found.rounds, found.level, list(found.rows), found.covers
        (5, 0.9, ['by size'], 'all of the variance')
    """

    logged: Row
    """The row of the rounds as they were drawn."""
    rows: dict[str, Row]
    """The row of each policy, by its label."""
    level: float
    """Probability of the intervals."""
    rounds: int
    """Number of measured rounds."""
    unanswered: int
    """Number of rounds that were left out, since no feedback came."""
    covers: str
    """The part of the variance that norms can tell, in words."""
    warnings: tuple[str, ...]
    """Reasons why these figures may be wrong; empty if none was found."""

    def __str__(self) -> str:
        width = max(map(len, self.rows), default=0)
        lines = [
            f"{self.rounds} rounds, intervals of {self.level:.0%}, {self.covers}",
            f"as logged: variance {self.logged.variance} per round",
            *(f"{k:>{width}}: {r.ratio} times, {r.variance}" for k, r in self.rows.items()),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


@takes_terms(now="replay(rounds, policies")
def replay(
    log: Log | Iterable[Logged],
    policies: Mapping[str, Policy[Any]],
    terms: Terms | None = None,
    *,
    budget: float | None = None,
    since: int = 0,
    level: float = 0.9,
    progress: Callable[[int], None] | None = None,
) -> Replay:
    """How much lower would the variance of other policies have been in past rounds?

    A log of past rounds is enough to answer this: no training is repeated. Each policy learns from
    the logged cohorts, so that its p′ of a round depends on earlier rounds alone. Then

    V̂ = Σ_{i answered} count_i/(q_i·expected_i) · π_i²(1/(q_i·p′_i) − 1)

    has mean V′ = Σ_i π_i²(1/(q_i·p′_i) − 1), the variance of independent draws with p′, over the
    clients that could be drawn. For the policy that drew the rounds, V̂ is each round's own estimate
    of its variance (`kvib.estimated_variance`).

    With replacement it is Σπ²((1/e′ + 1)/q − 1), which leaves out what no policy changes (−‖D‖²/K).
    For a fixed size it is the variance that independent draws with the same probabilities have.

    Where clients join, leave or change their weights between rounds (`Logged.changes`), each round
    is replayed with the clients and the λ of its time, and policies are given the changes.

    Args:
        log: A journal, `kvib.journal.read(path)`. Or rounds in the order of their draws, from the
            first that the policies shall learn from.
        policies: The policies, each with a label.
        terms: The terms under which the rounds were drawn. A journal knows its own.
        budget: The budget per round, as in `sampler.draw(budget=…)`. By default it is that of each
            logged round.
        since: The number of the first round to measure. Earlier rounds only teach the policies.
        level: The probability of the intervals.
        progress: A function that is called with the number of rounds read so far.

    Examples:
        >>> import numpy as np, kvib
        >>> from kvib.replay import Logged, Terms, replay
        >>> rng, sizes = np.random.default_rng(0), np.geomspace(1, 100, 50)
        >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), sizes, budget=10), []
        >>> for _ in range(60):
        ...     cohort = sampler.draw()
        ...     norms = rng.lognormal(0, 0.3, len(cohort))
        ...     sampler.update(cohort, norms)
        ...     rounds.append(Logged(cohort, norms))
        >>> terms = Terms(sizes, procedure=sampler.procedure)
        >>> found = replay(rounds, {"by size": kvib.BySize()}, terms)
        >>> found.rows["by size"].ratio.high < 0.6                      # a gain, beyond doubt
        True
    """
    check_level(level)
    if not isinstance(policies, Mapping):
        raise ValueError(
            f"policies {short(policies)} have no labels; write {{'Forecast': kvib.Forecast()}}"
        )
    reading = Reading(log, terms)
    every_round = None if budget is None else reading.terms.checked(budget)
    rivals = [(Follower(policy, reading.members), [every_round]) for policy in policies.values()]
    measurements = reading.measurements(rivals, since, progress)
    logged, others = measurements.rows(level)
    rows = {label: row for label, [row] in zip(policies, others, strict=True)}
    return Replay(
        logged=logged,
        rows=rows,
        level=level,
        rounds=len(measurements),
        unanswered=measurements.unanswered,
        covers=covers(reading.terms.procedure),
        warnings=measurements.warnings({"as logged": logged, **rows}),
    )

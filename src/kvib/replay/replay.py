"""From rounds that were logged: what another policy's variance would have been in them."""

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
    """Variances of policies in the same past rounds; intervals of probability `level`."""

    logged: Row
    """As the rounds were drawn."""
    rows: dict[str, Row]
    """Each policy, by its label."""
    level: float
    rounds: int
    """Number of measured rounds."""
    unanswered: int
    """Number of rounds that were left out, since no feedback came."""
    covers: str
    """Which part of the variance norms can tell."""
    warnings: tuple[str, ...]
    """Why these figures may be wrong; empty if nothing speaks against them."""

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
        log: a journal, `kvib.journal.read(path)`; or rounds in the order of their draws, from the
            first that the policies shall learn from.
        policies: the policies, each with a label.
        terms: under which the rounds were drawn; a journal knows its own.
        budget: per round, as in `sampler.draw(budget=…)`; by default as logged.
        since: number of the first round to measure; earlier ones only teach.
        level: probability of the intervals.
        progress: called with the number of rounds read so far.

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
    given = None if budget is None else reading.terms.checked(budget)
    rivals = [(Follower(policy, reading.members), [given]) for policy in policies.values()]
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

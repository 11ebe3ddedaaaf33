"""Which lever is yours: whom to draw, how to draw, or what to remember."""

import math
from typing import NamedTuple

import numpy as np

from kvib.analysis import metrics
from kvib.procedures import balanced
from kvib.randomness import generator
from kvib.sampler.sampler import Sampler
from kvib.types import FloatArray
from kvib.waterfill import waterfill

_LEVERS = {
    "policy": "probabilities that follow norms (kvib.Forecast)",
    "procedure": "a fixed size (kvib.pivotal)",
    "balanced": "draws balanced on sketches (kvib.balanced)",
    "memory": "remembered updates (estimator=kvib.Difference())",
}


DRAWS = 50
"""Of the Monte Carlo that tells what balanced draws leave, to about a tenth."""
NOTHING = 0.95
"""Left by a lever that is hardly worth it."""


class Diagnosis(NamedTuple):
    """Variances that each lever would leave, as shares of what there is without it; 1: no gain."""

    policy: float
    """Best probabilities instead of equal ones."""
    size: float
    """p ∝ λ instead of equal ones: what the server knows without learning."""
    procedure: float
    """A fixed size instead of independent draws, with the best probabilities; NaN where no
    sketches are kept."""
    balanced: float
    """Draws balanced on sketches of last updates instead of independent ones; NaN likewise."""
    memory: float
    """Differences to each client's last update, over the last ten rounds or so, when many clients
    may not have had one yet; NaN likewise."""
    returning: float
    """The same among clients that came back: what memory would leave once everybody was seen, if
    updates stay as alike over the longer gaps. NaN until somebody came back."""
    seen: float
    """Share of the clients whose sketches these figures rest on; NaN where none are kept."""

    def __str__(self) -> str:
        basis = "forecasts" if math.isnan(self.seen) else f"{self.seen:.0%} of the clients"
        lines = [f"from {basis}, variance left by each lever:"]
        for field, what in _LEVERS.items():
            value = getattr(self, field)
            lines.append(f"  {what}: {self._unknown() if math.isnan(value) else f'{value:.2f}'}")
        if not math.isnan(self.returning):
            lines[-1] += f" so far, {self.returning:.2f} of clients that came back"
        known = [field for field in _LEVERS if not math.isnan(getattr(self, field))]
        best = min(known, key=lambda field: float(getattr(self, field)))
        gains = getattr(self, best) < NOTHING
        lines.append(f"  most to gain: {_LEVERS[best] if gains else 'nothing much by any of them'}")
        return "\n".join(lines)

    def _unknown(self) -> str:
        """Why, and the way out."""
        if math.isnan(self.seen):
            return "unknown: give the sampler sketch=32 and use step()"
        return "unknown while so few were seen, or nobody is drawn by chance"


def diagnose(sampler: Sampler) -> Diagnosis:
    """How much each lever would gain in this federation, from what the sampler has seen.

    Norms are the policy's forecasts, directions the sketches of last updates; clients that were
    never seen are taken to point apart as those do that were. Of as many clients as the sampler
    draws on average, whatever they cost. Needs a sampler with `kvib.Forecast()` after a few rounds.

    Examples:
        >>> import numpy as np, kvib
        >>> rng = np.random.default_rng(0)
        >>> sampler = kvib.recommended(weights=rng.lognormal(0, 2, 50), budget=5)
        >>> for _ in range(20):
        ...     cohort = sampler.draw()
        ...     step = sampler.step(cohort, rng.normal(size=(len(cohort), 40)))
        >>> kvib.diagnose(sampler).policy < 0.5         # sizes differ: choose whom to draw
        True
    """
    here, sketches = sampler.state.population.here(), sampler.state.sketches
    norms, weights = sampler.forecast().median[here], sampler.weights[here]
    if np.isnan(norms).any():
        raise ValueError("nothing was seen yet; diagnose after a few rounds")
    N = len(here)
    K = min(float(sampler.probabilities(available=here).sum()), N)
    pi = weights * norms
    best = waterfill(pi, K, floor=1e-6 * K / N)
    uniform = metrics.variance(np.full(N, K / N), pi).value
    policy = size = 1.0
    if uniform > 0:
        policy = metrics.variance(best, pi).value / uniform
        size = metrics.variance(waterfill(weights, K), pi).value / uniform
    fixed = alike = math.nan
    if sketches.size:
        fixed = _fixed_size(best, pi, sketches.rows[here])
        alike = _balanced(best, pi, weights, sketches.rows[here])
    return Diagnosis(
        policy=policy,
        size=size,
        procedure=fixed,
        balanced=alike,
        memory=_left(sketches.remembered),
        returning=_left(sketches.resemblance),
        seen=len(sketches.seen) / N if sketches.size else math.nan,
    )


def _left(explained: float) -> float:
    return math.nan if math.isnan(explained) else 1 - explained


def _fixed_size(p: FloatArray, pi: FloatArray, directions: FloatArray) -> float:
    """Variance of a draw of fixed size, as a share of that of independent draws.

    Deville's approximation (1999), Σ c‖ζ − ζ̄‖²/(1 − Σw²) with c = p(1−p), ζ = λg/p, and ζ̄ the mean
    with weights w = c/Σc, over Σ c‖ζ‖². Of the directions it needs ‖Σ cζ‖² only: lengths are known,
    and all pairs get the mean cosine of those that were seen.

    Args:
        p: inclusion probabilities, [N].
        pi: λ‖g‖, [N].
        directions: of g, [N, size]; NaN where a client was never seen.
    """
    pull = pi * (1 - p)  # ‖cζ‖
    own, pairs = (pull**2).sum(), pull.sum() ** 2 - (pull**2).sum()
    seen = (pull > 0) & (np.linalg.norm(directions, axis=1) > 0)
    pointing = directions[seen] / np.linalg.norm(directions[seen], axis=1, keepdims=True)
    some = pull[seen]
    among = some.sum() ** 2 - (some**2).sum()
    if own == 0:
        return 1.0  # everybody is drawn
    if among <= 0:
        return math.nan
    cosine = (np.square(some @ pointing).sum() - (some**2).sum()) / among
    c = p * (1 - p)
    apart = (pi**2 * (1 - p) / p).sum()
    common = max(own + cosine * pairs, 0.0) / (c.sum() * apart)
    return float((1 - min(common, 1.0)) / (1 - (c**2).sum() / c.sum() ** 2))


def _balanced(p: FloatArray, pi: FloatArray, weights: FloatArray, directions: FloatArray) -> float:
    """Variance of draws balanced on last updates, as a share of that of independent ones.

    Draws are balanced on one half of each sketch and judged by the other: of other parameters, so
    that it shares with the first what clients have in common and not the chance of one update.
    Clients that were never seen point as some do that were.
    """
    lengths = np.linalg.norm(directions, axis=1)
    seen, rng = np.flatnonzero(lengths > 0), generator(len(pi), 0, "diagnosis")
    apart = pi**2 * (1 - p) / p
    if apart.sum() == 0:
        return 1.0  # everybody is drawn
    if len(seen) < 2 or directions.shape[1] < 2:
        return math.nan
    like = np.where(lengths > 0, np.arange(len(pi)), seen[rng.integers(len(seen), size=len(pi))])
    g = pi[:, None] * directions[like] / lengths[like, None]
    balancing, judging = np.column_stack([weights, g[:, ::2]]), g[:, 1::2]
    alone = (np.square(judging).sum(axis=1) * (1 - p) / p).sum()
    errors = []
    for _ in range(DRAWS):
        count = balanced.draw(p, rng, balancing)
        errors.append(np.square((count / p - 1) @ judging).sum())
    return float(np.mean(errors) / alone)

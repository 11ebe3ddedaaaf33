"""Which option lowers the variance most: whom to draw, how to draw, or what to remember."""

import math
from typing import NamedTuple

import numpy as np

from kvib.analysis import metrics
from kvib.procedures import balanced
from kvib.randomness import generator
from kvib.sampler.sampler import Sampler
from kvib.types import FloatArray
from kvib.waterfill import waterfill

_OPTIONS = {
    "policy": "probabilities that follow norms (kvib.Forecast)",
    "procedure": "a fixed size (kvib.pivotal)",
    "balanced": "draws balanced on sketches (kvib.balanced)",
    "memory": "remembered updates (estimator=kvib.Difference())",
}
"""The options by their field of a `Diagnosis`, in words."""
DRAWS = 50
"""Draws of the Monte Carlo that tells what balanced draws leave, to about a tenth."""
LEAST = 1e-6
"""The least of the best probabilities, as a share of K/N: it keeps all of them positive."""
HARDLY_WORTH_IT = 0.95
"""The share of the variance that is left by an option that is hardly worth it."""


class Diagnosis(NamedTuple):
    """The share of the variance that each option would leave, where 1 means no gain.

    Each share is the variance with the option over the variance without it. Print it to read which
    option gains most.

    Examples:
        >>> import kvib
        >>> others = dict(returning=float("nan"), seen=0.6)
        >>> diagnosis = kvib.Diagnosis(0.15, 0.2, procedure=0.9, balanced=0.7, memory=0.8, **others)
        >>> print(diagnosis)
        from 60% of the clients, variance left by each option:
          probabilities that follow norms (kvib.Forecast): 0.15
          a fixed size (kvib.pivotal): 0.90
          draws balanced on sketches (kvib.balanced): 0.70
          remembered updates (estimator=kvib.Difference()): 0.80
          most to gain: probabilities that follow norms (kvib.Forecast)
    """

    policy: float
    """The share that the best probabilities leave, compared with equal ones."""
    size: float
    """The share that p ∝ λ leaves, compared with equal probabilities: the server knows λ without
    learning."""
    procedure: float
    """The share that a fixed size leaves, compared with independent draws, both with the best
    probabilities. NaN where no sketches are kept."""
    balanced: float
    """The share that draws balanced on sketches of last updates leave, compared with independent
    draws. NaN where no sketches are kept."""
    memory: float
    """The share that differences to each client's last update leave, over the last ten rounds or
    so, when many clients may not have had a last update yet. NaN where no sketches are kept."""
    returning: float
    """The share that these differences leave among clients that returned. Memory would leave it
    once every client was seen, if updates stay as alike over the longer gaps. NaN until a client
    returned."""
    seen: float
    """The share of the clients whose sketches these figures rest on. NaN where none are kept."""

    def __str__(self) -> str:
        basis = "forecasts" if math.isnan(self.seen) else f"{self.seen:.0%} of the clients"
        lines = [f"from {basis}, variance left by each option:"]
        for field, name in _OPTIONS.items():
            value = getattr(self, field)
            lines.append(f"  {name}: {self._unknown() if math.isnan(value) else f'{value:.2f}'}")
        if not math.isnan(self.returning):
            lines[-1] += f" so far, {self.returning:.2f} of clients that came back"
        known = [field for field in _OPTIONS if not math.isnan(getattr(self, field))]
        best = min(known, key=lambda field: float(getattr(self, field)))
        gains = getattr(self, best) < HARDLY_WORTH_IT
        lines.append(
            f"  most to gain: {_OPTIONS[best] if gains else 'nothing much by any of them'}"
        )
        return "\n".join(lines)

    def _unknown(self) -> str:
        """Why a share is unknown, and what to do about it."""
        if math.isnan(self.seen):
            return "unknown: give the sampler sketch=32 and use step()"
        return "unknown while so few clients were seen, or no client is drawn by chance"


def diagnose(sampler: Sampler) -> Diagnosis:
    """Estimate how much each option would gain in this federation, from what the sampler has seen.

    Norms are the policy's forecasts, and directions are the sketches of last updates. Clients that
    were never seen are assumed to point apart as the seen clients do. The figures hold for cohorts
    of the size that the sampler draws on average, whatever clients cost. The sampler needs
    `kvib.Forecast()` and a few rounds.

    Args:
        sampler: The sampler to diagnose. It does not change.

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
    best = waterfill(pi, K, floor=LEAST * K / N)
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
    """The share of the variance that is not explained."""
    return math.nan if math.isnan(explained) else 1 - explained


def _fixed_size(p: FloatArray, pi: FloatArray, directions: FloatArray) -> float:
    """Variance of a draw of fixed size, as a share of that of independent draws.

    Deville's approximation (1999), Σ c‖ζ − ζ̄‖²/(1 − Σw²) with c = p(1−p), ζ = λg/p, and ζ̄ the mean
    with weights w = c/Σc, over Σ c‖ζ‖². It needs ‖Σ cζ‖² and no more of the directions. Lengths are
    known, and all pairs get the mean cosine of the pairs that were seen.

    Args:
        p: Inclusion probabilities, [N].
        pi: The feedback λ‖g‖, [N].
        directions: The directions of g, [N, size]. NaN where a client was never seen.
    """
    pull = pi * (1 - p)  # ‖cζ‖
    own, pairs = (pull**2).sum(), pull.sum() ** 2 - (pull**2).sum()
    seen = (pull > 0) & (np.linalg.norm(directions, axis=1) > 0)
    pointing = directions[seen] / np.linalg.norm(directions[seen], axis=1, keepdims=True)
    some = pull[seen]
    among = some.sum() ** 2 - (some**2).sum()
    if own == 0:
        return 1.0  # every client is drawn
    if among <= 0:
        return math.nan
    cosine = (np.square(some @ pointing).sum() - (some**2).sum()) / among
    c = p * (1 - p)
    apart = (pi**2 * (1 - p) / p).sum()
    common = max(own + cosine * pairs, 0.0) / (c.sum() * apart)
    return float((1 - min(common, 1.0)) / (1 - (c**2).sum() / c.sum() ** 2))


def _balanced(p: FloatArray, pi: FloatArray, weights: FloatArray, directions: FloatArray) -> float:
    """Variance of draws balanced on last updates, as a share of that of independent ones.

    Draws are balanced on one half of each sketch and judged by the other half, which is of other
    parameters. The halves share what clients have in common, and not the chance of one update.
    Clients that were never seen get the directions of clients that were, chosen at random.

    Args:
        p: Inclusion probabilities, [N].
        pi: The feedback λ‖g‖, [N].
        weights: λ, [N].
        directions: The directions of g, [N, size]. NaN where a client was never seen.
    """
    lengths = np.linalg.norm(directions, axis=1)
    seen, rng = np.flatnonzero(lengths > 0), generator(len(pi), 0, "diagnosis")
    apart = pi**2 * (1 - p) / p
    if apart.sum() == 0:
        return 1.0  # every client is drawn
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

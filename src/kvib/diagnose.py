"""Which lever is yours: whom to draw, how to draw, or what to remember."""

import math
from typing import NamedTuple

import numpy as np

from kvib import metrics
from kvib.cohort import FloatArray
from kvib.procedures import independent, pivotal
from kvib.randomness import generator
from kvib.sampler import Sampler
from kvib.waterfill import waterfill


class Diagnosis(NamedTuple):
    """Variances that each lever would leave, as shares of what there is without it; 1: no gain."""

    policy: float
    """Best probabilities instead of equal ones."""
    size: float
    """p ∝ λ instead of equal ones: what the server knows without learning."""
    procedure: float
    """A fixed size (pivotal) instead of independent draws, with the best probabilities; NaN where
    no sketches are kept."""
    memory: float
    """Differences to each client's last update; NaN likewise."""
    seen: float
    """Share of the clients whose sketches these figures rest on; NaN where none are kept."""

    def __str__(self) -> str:
        names = {
            "policy": "probabilities that follow norms (kvib.Forecast)",
            "procedure": "a fixed size (kvib.pivotal, kvib.balanced)",
            "memory": "remembered updates (estimator=kvib.Difference())",
        }
        basis = "forecasts" if math.isnan(self.seen) else f"{self.seen:.0%} of the clients"
        lines = [f"from {basis}, variance left by each lever:"]
        for field, what in names.items():
            value = getattr(self, field)
            shown = "unknown: give the sampler sketch=32 and use step()"
            lines.append(f"  {what}: {shown if math.isnan(value) else f'{value:.2f}'}")
        known = [field for field in names if not math.isnan(getattr(self, field))]
        best = min(known, key=lambda field: float(getattr(self, field)))
        lines.append(f"  most to gain: {names[best]}")
        return "\n".join(lines)


def diagnose(sampler: Sampler) -> Diagnosis:
    """How much each lever would gain in this federation, from what the sampler has seen.

    Norms are the policy's forecasts, directions the sketches of last updates. Needs a sampler with
    `kvib.Forecast()` after a few rounds.

    >>> import numpy as np, kvib
    >>> rng = np.random.default_rng(0)
    >>> sampler = kvib.recommended(weights=rng.lognormal(0, 2, 50), budget=5)
    >>> for _ in range(20):
    ...     cohort = sampler.draw()
    ...     step = sampler.step(cohort, rng.normal(size=(len(cohort), 40)))
    >>> kvib.diagnose(sampler).policy < 0.5         # sizes differ: choose whom to draw
    True
    """
    norms = sampler.forecast().median
    if np.isnan(norms).any():
        raise ValueError("nothing was seen yet; diagnose after a few rounds")
    N, K, weights = len(sampler), sampler.budget, sampler.weights
    pi = weights * norms
    best = waterfill(pi, K, floor=1e-6 * K / N)
    equal, by_size = np.full(N, K / N), waterfill(weights, K)
    uniform = metrics.variance(equal, pi).value
    procedure, seen = math.nan, sampler.sketches.seen
    if len(seen):
        gram = _gram(sampler.sketches.filled(np.arange(N), weights), pi)
        rng = generator(sampler.seed, sampler.round, "diagnosis")
        apart = metrics.variance(best, procedure=independent, gram=gram).value
        fixed = metrics.variance(best, procedure=pivotal, gram=gram, draws=400, rng=rng).value
        procedure = fixed / apart if apart > 0 else 1.0
    return Diagnosis(
        policy=metrics.variance(best, pi).value / uniform if uniform > 0 else 1.0,
        size=metrics.variance(by_size, pi).value / uniform if uniform > 0 else 1.0,
        procedure=procedure,
        memory=1 - sampler.sketches.resemblance,
        seen=len(seen) / N if sampler.sketches.size else math.nan,
    )


def _gram(directions: FloatArray, pi: FloatArray) -> FloatArray:
    """Inner products of λg: directions from sketches, lengths from forecasts."""
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    scaled = pi[:, None] * directions / np.where(lengths > 0, lengths, 1.0)
    return np.asarray(scaled @ scaled.T)

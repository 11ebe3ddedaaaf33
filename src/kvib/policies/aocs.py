"""The oracle's probabilities, computed from secure sums alone."""

from dataclasses import dataclass

import numpy as np

from kvib.policies.optimal import Optimal
from kvib.types import FloatArray


@dataclass(frozen=True)
class AOCS(Optimal):
    """Draw almost as the oracle does, where the server sees only sums over clients.

    Each client computes its own probability from sums over all clients, which secure aggregation
    can provide. All clients must train first, as for `Optimal`.

    p = min(1, Kπ/Σπ), and then up to `steps` times p ← min(1, C·p) for the I clients below 1, which
    share what is missing: C = (K − N + I)/P, where P is their Σp. It stops at C ≤ 1. Σp may stay a
    little below K, by design. The estimate is unbiased all the same.

    Args:
        steps: The largest number of corrections by C.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.AOCS(steps=0), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> sampler.probabilities(norms=[1, 2, 4, 8]).round(3)
        array([0.133, 0.267, 0.533, 1.   ])
        >>> sampler = kvib.Sampler(kvib.AOCS(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> sampler.probabilities(norms=[1, 2, 4, 8]).round(3)
        array([0.143, 0.286, 0.571, 1.   ])

    References:
        Chen, Horváth and Richtárik, "Optimal client sampling for federated learning", 2020, Alg. 2.
    """

    steps: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int | np.integer) or self.steps < 0:
            raise ValueError(f"steps={self.steps!r} is not a whole number ≥ 0")

    def solve(
        self, scores: FloatArray, budget: float, floor: float, cap: float, cost: FloatArray | None
    ) -> FloatArray:
        """Repeat p ← min(1, C·p), and return the expected counts, [m]."""
        if cost is not None:
            raise ValueError("AOCS counts clients, not their costs; use Optimal")
        relative = scores / scores.max()
        p: FloatArray = np.minimum(cap, budget * relative / relative.sum())
        for _ in range(self.steps):
            below = p < cap
            P, at_cap = p[below].sum(), len(p) - np.count_nonzero(below)
            if P == 0 or at_cap == 0:
                break
            C = (budget - at_cap * cap) / P
            if C <= 1:
                break
            p[below] = np.minimum(cap, C * p[below])
        return p

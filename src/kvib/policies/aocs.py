"""The oracle's probabilities from secure sums alone."""

from dataclasses import dataclass

import numpy as np

from kvib.policies.optimal import Optimal
from kvib.types import FloatArray


@dataclass(frozen=True)
class AOCS(Optimal):
    """Approximates the oracle so that the server sees only sums over clients.

    p = min(1, Kπ/Σπ); then, up to `steps` times, the I clients below 1 share what is missing:
    C = (K − N + I)/P with P their Σp, p ← min(1, C·p), until C ≤ 1. Σp may stay a little below K,
    by design: the estimate is unbiased all the same.

    Chen, Horváth and Richtárik, "Optimal client sampling for federated learning", 2020, Alg. 2.
    """

    steps: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int | np.integer) or self.steps < 0:
            raise ValueError(f"steps={self.steps!r} is not a whole number ≥ 0")

    def solve(
        self, scores: FloatArray, budget: float, floor: float, cap: float, cost: FloatArray | None
    ) -> FloatArray:
        """Iterate min(1, C·p)."""
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

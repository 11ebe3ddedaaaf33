"""Independent draws: the independent sampling procedure (ISP) of the paper."""

import numpy as np

from kvib.cohort import Pairs
from kvib.procedures.procedure import Indexed, Procedure
from kvib.types import FloatArray, IntArray


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    """The result of one coin per client, [N]."""
    return (rng.random(len(p)) < p).astype(np.int64)


def _pairs(p: FloatArray, at: IntArray) -> Pairs:
    """E[n_i n_j] = p_i p_j, and Cov(n_i, n)/p_i = 1 − p_i."""
    return Pairs(ratio=1.0, size=1 - p[at])


def _by_index(index: Indexed, rng: np.random.Generator) -> IntArray:
    """The ids of the drawn clients, found by the index."""
    return index.tossed(rng)


independent = Procedure("independent", _counts, _pairs, by_index=_by_index)
"""Every client tosses its own coin.

The size of the cohort varies around the budget and may be 0. Then the estimate is 0 and the model
stays as it is: drawing again until a client is drawn would bias the estimate.

P(i and j drawn) = p_i p_j, so the variance Σ(1−p_i)λ_i²‖g_i‖²/p_i depends on norms alone.

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> rng = np.random.default_rng(0)
    >>> [len(kvib.independent([0.5, 0.5, 0.5, 0.25, 0.25], rng)) for _ in range(5)]
    [3, 0, 2, 1, 2]

References:
    Zeng et al., "Enhanced Federated Optimization" (ISP). Survey sampling calls it Poisson
    sampling (Hájek 1964).
"""

"""Uniform sampling without replacement, which most servers use today."""

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.procedures.procedure import Procedure, random_size, size_moments
from kvib.types import FloatArray, IntArray

_EQUAL = 1e-12
"""Probabilities whose relative difference is at most this are equal except for rounding."""


def _check_equal(p: FloatArray) -> None:
    """Refuse probabilities that differ."""
    if np.ptp(p) > _EQUAL * p[0]:
        raise ValueError(
            f"without_replacement gives every client the same probability, not {p.min():g} to "
            f"{p.max():g}; pivotal draws a fixed number with any probabilities"
        )


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    """1 for the drawn clients, 0 for the others, [N]."""
    _check_equal(p)
    counts = np.zeros(len(p), dtype=np.int64)
    counts[rng.choice(len(p), size=random_size(p, rng), replace=False)] = 1
    return counts


def _pairs(p: FloatArray, at: IntArray) -> Pairs:
    """P(i and j drawn) = E[n(n−1)]/(N(N−1)), and Cov(n_i, n) = Var(n)/N."""
    _check_equal(p)
    N = len(p)
    K, falling, variance = size_moments(p)
    ratio = falling / (N * (N - 1)) / (K / N) ** 2 if N > 1 else 1.0
    return (Pairs if ratio > 0 else Incomplete)(ratio, np.full(len(at), variance / K))


without_replacement = Procedure("without_replacement", _counts, _pairs)
"""K different clients are drawn, all equally likely.

Every set of K clients has the same probability. The procedure works for equal probabilities only,
and refuses others. A fractional K gives ⌊K⌋ or ⌈K⌉ clients, K on average.

p_i = K/N and P(i and j drawn) = K(K−1)/(N(N−1)), for a whole K.

Args:
    expected: The probability K/N of every client, [N].
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> kvib.without_replacement([0.5, 0.5, 0.5, 0.5], np.random.default_rng(0)).ids
    array([2, 3])

References:
    Simple random sampling; Yates and Grundy (1953) estimate its variance.
"""

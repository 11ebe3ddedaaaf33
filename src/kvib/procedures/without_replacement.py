"""Uniform sampling without replacement, what most servers do today."""

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.procedures.procedure import Procedure, random_size, size_moments
from kvib.types import FloatArray, IntArray


def _check_equal(p: FloatArray) -> None:
    if np.ptp(p) > 1e-12 * p[0]:
        raise ValueError(
            f"without_replacement gives every client the same probability, not {p.min():g} to "
            f"{p.max():g}; pivotal draws a fixed number with any probabilities"
        )


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    _check_equal(p)
    counts = np.zeros(len(p), dtype=np.int64)
    counts[rng.choice(len(p), size=random_size(p, rng), replace=False)] = 1
    return counts


def _pairs(p: FloatArray, at: IntArray) -> Pairs:
    _check_equal(p)
    N = len(p)
    K, falling, variance = size_moments(p)  # P(i, j) = E[n(n−1)] / (N(N−1))
    ratio = falling / (N * (N - 1)) / (K / N) ** 2 if N > 1 else 1.0
    return (Pairs if ratio > 0 else Incomplete)(ratio, np.full(len(at), variance / K))


without_replacement = Procedure("without_replacement", _counts, _pairs)
"""K different clients, all equally likely. For equal probabilities only."""

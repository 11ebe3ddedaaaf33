"""The random sampling procedure (RSP) as the paper's formulas and all published code have it."""

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.procedures.procedure import Procedure, random_size, size_moments
from kvib.types import FloatArray, IntArray


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    return rng.multinomial(random_size(expected, rng), expected / expected.sum())


def _pairs(expected: FloatArray, at: IntArray) -> Pairs:
    K, falling, variance = size_moments(expected)  # E[n_i n_j] = E[n(n−1)] q_i q_j
    kind = Pairs if falling > 0 or np.count_nonzero(expected) < 2 else Incomplete
    return kind(falling / K**2, np.full(len(at), variance / K))


with_replacement = Procedure("with_replacement", _counts, _pairs, cap=np.inf)
"""K draws from q = expected / K; a client may come twice. A fractional K makes ⌊K⌋ or ⌈K⌉ draws."""

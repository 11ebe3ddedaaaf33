"""Draws with replacement: the random sampling procedure (RSP) of the paper's formulas.

All published code has the same form.
"""

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.procedures.procedure import Procedure, random_size, size_moments
from kvib.types import FloatArray, IntArray


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    """How often each client comes up in the draws of a round, [N]."""
    return rng.multinomial(random_size(expected, rng), expected / expected.sum())


def _pairs(expected: FloatArray, at: IntArray) -> Pairs:
    """E[n_i n_j] = E[n(n−1)] u_i u_j and Cov(n_i, n) = u_i Var(n), with u = expected/K."""
    K, falling, variance = size_moments(expected)
    # With a single draw no two clients are ever drawn together.
    kind = Pairs if falling > 0 or np.count_nonzero(expected) < 2 else Incomplete
    return kind(falling / K**2, np.full(len(at), variance / K))


with_replacement = Procedure("with_replacement", _counts, _pairs, cap=np.inf)
"""K draws, one after another, in which a client may come up more than once.

The draws of a round are independent of each other and follow the same probabilities. A fractional
K makes ⌊K⌋ or ⌈K⌉ draws, K on average.

Each draw takes client i with probability u_i = expected_i/K, so that E[count_i] = expected_i. The
variance is (Σλ_i²‖g_i‖²/u_i − ‖D‖²)/K with D = Σλ_i g_i, for a whole K.

Args:
    expected: The expected count of every client, [N]. It may exceed 1. The sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> cohort = kvib.with_replacement([1.5, 0.5, 0.5, 0.5], np.random.default_rng(0))
    >>> cohort.ids, cohort.count
    (array([0, 3]), array([2, 1]))

References:
    Hansen and Hurwitz 1943.
"""

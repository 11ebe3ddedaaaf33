"""Systematic sampling (Madow 1949): equal steps along a line of clients."""

import numpy as np

from kvib.procedures.procedure import Indexed, Procedure, whole_and_part
from kvib.types import FloatArray, IntArray


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    """Counts after a walk along the clients in random order, [N]."""
    order = np.flatnonzero((p > 0) & (p < 1))
    return _along(p, order[rng.permutation(len(order))] if len(order) else order, rng)


def _in_order(p: FloatArray, rng: np.random.Generator) -> IntArray:
    """Counts after a walk along the clients in the order of their ids, [N]."""
    return _along(p, np.flatnonzero((p > 0) & (p < 1)), rng)


def _along(p: FloatArray, order: IntArray, rng: np.random.Generator) -> IntArray:
    """Counts after equal steps from a random start along the clients in this order, [N]."""
    counts = (p >= 1).astype(np.int64)
    if len(order) == 0:
        return counts
    total = sum(whole_and_part(float(p[order].sum()), len(order)))
    # Client k owns the interval (ends[k−1], ends[k]]. A running sum drifts where `sum` does not,
    # so it is kept in long doubles and ends at the sum.
    ends = np.minimum(np.cumsum(p[order], dtype=np.longdouble), total).astype(np.float64)
    ends[-1] = total
    start = rng.random()
    # the number of points start, start + 1, start + 2, … below each end
    points = np.floor(ends) + (start < ends - np.floor(ends))
    counts[order] = np.minimum(np.diff(points, prepend=0), 1)
    return counts


def _by_index(index: Indexed, rng: np.random.Generator) -> IntArray:
    """The ids of the clients drawn by equal steps in the order of ids, found by the index."""

    def points(total: float) -> FloatArray:
        """Points at equal distances on a line of this length."""
        whole, part = whole_and_part(total, len(index))
        start = rng.random()
        steps = np.arange(whole + int(start < part), dtype=np.float64)
        return np.asarray((start + steps) * (total / (whole + part)))

    return np.unique(index.at(points))


systematic = Procedure("systematic", _counts)
"""Exactly K clients with the given probabilities, by one random start and equal steps.

The clients lie side by side on a line in random order, each as long as its probability. In this
order a single random number decides the draw: the cohort is the clients at equally spaced points of
the line. A fractional K gives ⌊K⌋ or ⌈K⌉ clients.

Client k is drawn if one of the points u, u + 1, u + 2, … lies within its part of the line, from
p_1 + … + p_{k−1} to p_1 + … + p_k. The start u is uniform on [0, 1).

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> kvib.systematic([0.5, 0.5, 0.5, 0.25, 0.25], np.random.default_rng(0)).ids
    array([0, 2])

References:
    Madow 1949.
"""

ordered = Procedure("ordered", _in_order, by_index=_by_index)
"""Exactly K clients, by equal steps along the clients in the order of their ids.

The procedure sorts and shuffles nothing, so it draws from a hundred million clients too. Clients
with neighbouring ids are hardly ever drawn together. Ids should therefore carry no information
about the clients, or put similar clients side by side. In the second case a cohort's own estimate
of its variance, which is made for random orders, is too large. A fractional K gives ⌊K⌋ or ⌈K⌉
clients.

Client k is drawn if one of the points u, u + 1, u + 2, … lies within its part of the line, from
p_1 + … + p_{k−1} to p_1 + … + p_k. The start u is uniform on [0, 1).

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> kvib.ordered([0.5, 0.5, 0.5, 0.5], np.random.default_rng(0)).ids
    array([1, 3])

References:
    Madow 1949.
"""

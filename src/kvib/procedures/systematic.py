"""Systematic sampling (Madow 1949)."""

import numpy as np

from kvib.procedures.procedure import Indexed, Procedure, whole_and_part
from kvib.types import FloatArray, IntArray


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    order = np.flatnonzero((p > 0) & (p < 1))
    return _along(p, order[rng.permutation(len(order))] if len(order) else order, rng)


def _in_order(p: FloatArray, rng: np.random.Generator) -> IntArray:
    return _along(p, np.flatnonzero((p > 0) & (p < 1)), rng)


def _along(p: FloatArray, order: IntArray, rng: np.random.Generator) -> IntArray:
    """Equal steps from a random start along the clients in this order."""
    counts = (p >= 1).astype(np.int64)
    if len(order) == 0:
        return counts
    total = sum(whole_and_part(float(p[order].sum()), len(order)))
    # Client k owns the interval (ends[k−1], ends[k]]. A running sum drifts where `sum` does not.
    ends = np.minimum(np.cumsum(p[order], dtype=np.longdouble), total).astype(np.float64)
    ends[-1] = total
    start = rng.random()
    # the points start, start + 1, start + 2, … below each end
    points = np.floor(ends) + (start < ends - np.floor(ends))
    counts[order] = np.minimum(np.diff(points, prepend=0), 1)
    return counts


def _by_index(index: Indexed, rng: np.random.Generator) -> IntArray:
    """Equal steps from a random start along the clients as they are numbered."""

    def points(total: float) -> FloatArray:
        whole, part = whole_and_part(total, len(index))
        start = rng.random()
        steps = np.arange(whole + int(start < part), dtype=np.float64)
        return np.asarray((start + steps) * (total / (whole + part)))

    return np.unique(index.at(points))


systematic = Procedure("systematic", _counts)
"""Exactly K clients (⌊K⌋ or ⌈K⌉) with the given probabilities, by one random start and equal
steps along the clients in random order."""

ordered = Procedure("ordered", _in_order, by_index=_by_index)
"""The same along the clients as they are numbered: exactly K clients, also of a hundred million,
since nobody is put in order. Clients with neighbouring ids are hardly ever drawn together, so ids
should say nothing of the clients, or put similar ones side by side; then a cohort's own estimate of
its variance, which is made for random orders, is too large."""

"""Systematic sampling (Madow 1949), in random order."""

import numpy as np

from kvib.cohort import FloatArray, IntArray
from kvib.procedures.procedure import Procedure, whole_and_part


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    counts = (p >= 1).astype(np.int64)
    order = np.flatnonzero((p > 0) & (p < 1))
    if len(order) == 0:
        return counts
    order = order[rng.permutation(len(order))]
    total = sum(whole_and_part(float(p[order].sum()), len(order)))
    # Client k owns the interval (ends[k−1], ends[k]]. A running sum drifts where `sum` does not.
    ends = np.minimum(np.cumsum(p[order], dtype=np.longdouble), total).astype(np.float64)
    ends[-1] = total
    start = rng.random()
    # the points start, start + 1, start + 2, … below each end
    points = np.floor(ends) + (start < ends - np.floor(ends))
    counts[order] = np.minimum(np.diff(points, prepend=0), 1)
    return counts


systematic = Procedure("systematic", _counts)
"""Exactly K clients (⌊K⌋ or ⌈K⌉) with the given probabilities, by one random start and equal
steps along the clients in random order."""

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
    ends = np.cumsum(p[order])  # client k owns the interval (ends[k−1], ends[k]]
    ends[-1] = sum(whole_and_part(float(ends[-1]), len(order)))
    start = rng.random()
    # the points start, start + 1, start + 2, … below each end
    points = np.floor(ends) + (start < ends - np.floor(ends))
    counts[order] = np.minimum(np.diff(points, prepend=0), 1)
    return counts


systematic = Procedure("systematic", _counts)
"""Exactly K clients (⌊K⌋ or ⌈K⌉) with the given probabilities, by one random start and equal
steps along the clients in random order."""

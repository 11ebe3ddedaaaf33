"""The pivotal method of Deville and Tillé (1998), in random order."""

from collections.abc import Callable

import numpy as np

from kvib import compiled
from kvib.cohort import FloatArray, IntArray
from kvib.procedures.procedure import Procedure, whole_and_part


def _duels(p: FloatArray, order: IntArray, rng: np.random.Generator) -> tuple[int, float]:
    """Let clients duel one after another until each p is 0 or 1; returns who is left, and its p.

    Two clients with a + b < 1 play for all of it, else one gets 1 and the other a + b − 1. Either
    way both keep their mean, and Σp never changes.
    """
    left, a = order[0], p[order[0]]
    for k in range(1, len(order)):
        i = order[k]
        b = p[i]
        total = a + b
        if total < 1:
            p[left], p[i] = 0.0, 0.0
            if rng.random() < b / total:
                left = i
            a = total
        else:
            if rng.random() < (1 - b) / (2 - total):
                p[left] = 1.0
                left = i
            else:
                p[i] = 1.0
            a = total - 1
    return left, a


def duel(
    expected: FloatArray, rng: np.random.Generator, order: Callable[[IntArray], IntArray]
) -> IntArray:
    """Counts after duels in the given order of those who are neither in nor out."""
    p = expected.copy()
    undecided = np.flatnonzero((p > 0) & (p < 1))
    if len(undecided):
        sequence = order(undecided)
        whole, part = whole_and_part(float(p[sequence].sum()), len(sequence))
        left, _ = compiled.run(_duels, p, sequence, rng=rng)
        # What remains is the fractional part of Σp. Taken from the sum itself, a whole budget
        # gives a whole cohort in spite of the rounding of a million duels.
        p[left] = 0.0
        missing = whole - int(p[sequence].sum())
        p[left] = missing if part == 0 else missing + (rng.random() < part)
    return p.astype(np.int64)


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    return duel(expected, rng, lambda at: at[rng.permutation(len(at))])


pivotal = Procedure("pivotal", _counts)
"""Exactly K clients (⌊K⌋ or ⌈K⌉) with the given probabilities, by duels in random order."""

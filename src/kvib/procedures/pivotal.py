"""The pivotal method of Deville and Tillé (1998), in random order."""

from collections.abc import Callable

import numpy as np

from kvib.compiled import kernel
from kvib.procedures.procedure import Procedure, rounding, whole_and_part
from kvib.types import FloatArray, IntArray

PLAYS_FOR_ALL, LEAVES_NOTHING = 1.0, -1.0
"""What a duel is when a + b is 1 but for rounding: one of the two kinds, with a random number that
says the opposite. Both keep the means. Every budget that is whole ends in such a duel, so the last
digit of a sum must not choose: it is another one on another machine."""


@kernel
def _duels(
    p: FloatArray, order: IntArray, one: float, rng: np.random.Generator
) -> tuple[int, float]:
    """Let clients duel one after another until each p is 0 or 1; returns who is left, and its p.

    Two clients with a + b < 1 play for all of it, else one gets 1 and the other a + b − 1. Either
    way both keep their mean, and Σp never changes. `one` is 1 and a little more or less than any
    rounding, so that nothing but p decides which of the two it is.
    """
    left, a = order[0], p[order[0]]
    for k in range(1, len(order)):
        i = order[k]
        b = p[i]
        total = a + b
        if total < one:
            p[left], p[i] = 0.0, 0.0
            if rng.random() < b / total:
                left = i
            a = min(total, 1.0)
        else:
            if rng.random() < (1 - b) / (2 - total):
                p[left] = 1.0
                left = i
            else:
                p[i] = 1.0
            a = max(total - 1, 0.0)
    return left, a


def duel(
    expected: FloatArray,
    rng: np.random.Generator,
    order: Callable[[IntArray], IntArray],
    tie: float,
) -> IntArray:
    """Counts after duels of those who are neither in nor out.

    Args:
        expected: probabilities, [N].
        rng: the source of all randomness.
        order: puts the undecided clients in the order of their duels.
        tie: `PLAYS_FOR_ALL` or `LEAVES_NOTHING`.
    """
    p = expected.copy()
    undecided = np.flatnonzero((p > 0) & (p < 1))
    if len(undecided):
        sequence = order(undecided)
        total = float(p[sequence].sum())
        whole, part = whole_and_part(total, len(sequence))
        # half of what `whole_and_part` forgives: a duel that is no tie to it is none here
        one = 1.0 + tie * rounding(total, len(sequence)) / 2
        left, _ = _duels(p, sequence, one, rng)
        # What remains is the fractional part of Σp. Taken from the sum itself, a whole budget
        # gives a whole cohort in spite of the rounding of a million duels.
        p[left] = 0.0
        missing = whole - int(p[sequence].sum())
        p[left] = missing if part == 0 else missing + (rng.random() < part)
    return p.astype(np.int64)


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    return duel(expected, rng, lambda at: at[rng.permutation(len(at))], LEAVES_NOTHING)


pivotal = Procedure("pivotal", _counts)
"""Exactly K clients (⌊K⌋ or ⌈K⌉) with the given probabilities, by duels in random order."""

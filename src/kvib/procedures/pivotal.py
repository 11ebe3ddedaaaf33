"""The pivotal method of Deville and Tillé (1998): clients duel until every one is in or out."""

from collections.abc import Callable

import numpy as np

from kvib.compiled import kernel
from kvib.procedures.procedure import Procedure, rounding, whole_and_part
from kvib.types import FloatArray, IntArray

PLAYS_FOR_ALL, LEAVES_NOTHING = 1.0, -1.0
"""The two ways to treat a tie, a duel in which a + b is 1 except for rounding.

With `PLAYS_FOR_ALL` one client gets a + b and the other 0. With `LEAVES_NOTHING` one gets 1 and
the other a + b − 1. Both keep the means, but the same random number can name different winners.
Every whole budget ends in a tie. The last digit of a sum differs between machines, so it must not
decide between the two.
"""


@kernel
def _duels(
    p: FloatArray, order: IntArray, one: float, rng: np.random.Generator
) -> tuple[int, float]:
    """Let clients duel one after another until every p but one is 0 or 1.

    A client with probability a meets a client with probability b. If a + b < 1, one of them gets
    a + b and the other 0. Otherwise one gets 1 and the other a + b − 1. Either way both keep their
    mean, and Σp never changes. `one` differs from 1 by a little more than rounding, so that
    rounding never decides which of the two rules holds. Returns the undecided client and its
    probability.
    """
    undecided, a = order[0], p[order[0]]
    for k in range(1, len(order)):
        i = order[k]
        b = p[i]
        total = a + b
        if total < one:  # the loser is out, the winner goes on with a + b
            p[undecided], p[i] = 0.0, 0.0
            if rng.random() < b / total:
                undecided = i
            a = min(total, 1.0)
        else:  # the winner is in, the loser goes on with a + b − 1
            if rng.random() < (1 - b) / (2 - total):
                p[undecided] = 1.0
                undecided = i
            else:
                p[i] = 1.0
            a = max(total - 1, 0.0)
    return undecided, a


def duel(
    expected: FloatArray,
    rng: np.random.Generator,
    order: Callable[[IntArray], IntArray],
    tie: float,
) -> IntArray:
    """The count of every client, 0 or 1, after duels of the clients with 0 < p < 1, [N].

    Args:
        expected: The probabilities of all clients, [N].
        rng: The source of all randomness.
        order: A function that sorts the ids of the undecided clients into the order of their duels.
        tie: How a tie is treated: `PLAYS_FOR_ALL` or `LEAVES_NOTHING`.
    """
    p = expected.copy()
    undecided = np.flatnonzero((p > 0) & (p < 1))
    if len(undecided):
        sequence = order(undecided)
        total = float(p[sequence].sum())
        whole, part = whole_and_part(total, len(sequence))
        # Half of the rounding that `whole_and_part` forgives: what it does not take for a tie is
        # not treated as a tie here either.
        one = 1.0 + tie * rounding(total, len(sequence)) / 2
        last, _ = _duels(p, sequence, one, rng)
        # The last client keeps the fractional part of Σp. It is taken from the sum itself, so that
        # a whole budget gives exactly K clients in spite of the rounding of a million duels.
        p[last] = 0.0
        missing = whole - int(p[sequence].sum())
        p[last] = missing if part == 0 else missing + (rng.random() < part)
    return p.astype(np.int64)


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    """Counts after duels in random order, [N]."""
    return duel(expected, rng, lambda at: at[rng.permutation(len(at))], LEAVES_NOTHING)


pivotal = Procedure("pivotal", _counts)
"""Exactly K clients with the given probabilities, by duels in random order.

A duel of two undecided clients decides one of them, who is then in or out. The other one meets the
next client. A fractional K gives ⌊K⌋ or ⌈K⌉ clients.

A duel of probabilities a and b ends with (a + b, 0) or (0, a + b) if a + b < 1, and with
(1, a + b − 1) or (a + b − 1, 1) otherwise. Its odds keep E[p_i], and Σp stays K throughout.

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> kvib.pivotal([0.5, 0.5, 0.5, 0.25, 0.25], np.random.default_rng(0)).ids
    array([1, 3])

References:
    Deville and Tillé 1998.
"""

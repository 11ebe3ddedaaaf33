"""Conditional Poisson sampling (Hájek 1964; Chen, Dempster and Liu 1994), exact."""

from typing import NamedTuple

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.compiled import kernel
from kvib.procedures.procedure import Procedure, whole_and_part
from kvib.types import FloatArray, IntArray

_LARGEST_TABLE = 2**27  # entries: one gigabyte


class _Design(NamedTuple):
    """The part of the draw that is random: coins with probabilities b, given that k come up heads.

    Given Σ b_i coins = k, the odds of the coins decide everything; b is chosen so that client i is
    in with probability p_i. A fractional Σp gets one more coin, a client who is nobody.
    """

    at: IntArray
    """Clients with 0 < p < 1, [n]."""
    p: FloatArray
    """Their probabilities, [n], then nobody's if Σp is fractional."""
    k: int


def _design(expected: FloatArray) -> _Design:
    at = np.flatnonzero((expected > 0) & (expected < 1))
    p = expected[at]
    whole, part = whole_and_part(float(p.sum()), len(p))
    if part:
        p = np.append(p, 1 - part)
    k = whole + (part > 0)
    if len(p) * k > _LARGEST_TABLE:
        raise ValueError(
            f"conditional Poisson needs a table of {len(p)} × {k} numbers, too many; "
            "pivotal and systematic draw with the same probabilities in linear time"
        )
    return _Design(at, p, k)


@kernel
def _heads(b: FloatArray, k: int) -> FloatArray:
    """P(j heads among coins 0 … i−1), [n+1, k+1]: sums of positive terms, exact to rounding."""
    table = np.zeros((len(b) + 1, k + 1))
    table[0, 0] = 1.0
    for i in range(len(b)):
        table[i + 1] = table[i] * (1 - b[i])
        table[i + 1, 1:] += table[i, :-1] * b[i]
    return table


@kernel
def _without(before: FloatArray, after: FloatArray) -> tuple[FloatArray, FloatArray]:
    """P(k heads) and P(k−1 heads) among all coins but i, for every i, [n]."""
    n = len(before) - 1
    full, less = np.zeros(n), np.zeros(n)
    for i in range(n):
        others = after[n - 1 - i][::-1]  # k − j heads from coins i+1 … n−1
        full[i] = (before[i] * others).sum()
        less[i] = (before[i, :-1] * others[1:]).sum()
    return full, less


def _leave_one_out(b: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    return _without(_heads(b, k), _heads(b[::-1].copy(), k))


def _working(p: FloatArray, k: int) -> FloatArray:
    """Coins b for which a client is in with probability p, given k heads.

    p/(1−p) = b/(1−b) · P(k−1 others)/P(k others) is solved for the log-odds x of the coins. The
    plain iteration x ← G(x) oscillates when one client dominates; Anderson's acceleration (1965)
    extrapolates from the last few steps.
    """
    if k in (0, len(p)):  # probabilities within rounding of 0 or 1
        return np.full(len(p), float(k > 0))
    logit = np.log(p) - np.log1p(-p)
    x = logit
    steps: list[FloatArray] = []
    residuals: list[FloatArray] = []
    for _ in range(500):
        full, less = _leave_one_out(1 / (1 + np.exp(-x)), k)
        residual = logit + np.log(full) - np.log(less) - x
        residual -= residual.mean()  # only differences of log-odds matter
        if np.abs(residual).max() <= 1e-13 * (1 + np.abs(x).max()):
            break
        step = residual / 2
        if residuals:
            change = np.stack([residual - r for r in residuals], axis=1)
            mix = np.linalg.lstsq(change, residual, rcond=1e-12)[0]
            moved = np.stack([x - y for y in steps], axis=1)
            step = (residual - change @ mix) / 2 - moved @ mix
        steps, residuals = [*steps[-4:], x], [*residuals[-4:], residual]
        x = x + step
    coins: FloatArray = 1 / (1 + np.exp(-x))
    return coins


@kernel
def _toss(b: FloatArray, after: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
    """Toss the coins in turn, each given how many heads are still to come."""
    n = len(b)
    heads = np.zeros(n, dtype=np.int64)
    for i in range(n):
        if k == 0:
            break
        others = after[n - 1 - i]
        yes, no = b[i] * others[k - 1], (1 - b[i]) * others[k]
        if no == 0.0 or rng.random() < yes / (yes + no):
            heads[i] = 1
            k -= 1
    return heads


def _counts(expected: FloatArray, rng: np.random.Generator) -> IntArray:
    counts = (expected >= 1).astype(np.int64)
    at, p, k = _design(expected)
    if len(at):
        b = _working(p, k)
        after = _heads(b[::-1].copy(), k)
        counts[at] = _toss(b, after, k, rng)[: len(at)]
    return counts


def _pairs(expected: FloatArray, at: IntArray) -> Pairs:
    clients, p, k = _design(expected)
    ratio, size = np.ones((len(at), len(at))), np.zeros(len(at))
    if len(clients) == 0:
        return Pairs(ratio, size)
    b = _working(p, k)
    where = np.full(len(expected), -1)
    where[clients] = np.arange(len(clients))
    inside = np.flatnonzero(where[at] >= 0)  # the rest is always or never in: independent of all
    place = where[at[inside]]
    for row, i in zip(inside, place, strict=True):
        given = np.insert(_inclusion(np.delete(b, i), k - 1), i, 1.0)  # P(j in | i in)
        ratio[row, inside] = given[place] / p[place]
        ratio[row, row] = 1.0
        if len(p) > len(clients):  # the size is k, or k − 1 when nobody is drawn
            size[row] = p[-1] - given[-1]
    return (Pairs if k > 1 or len(clients) < 2 else Incomplete)(ratio, size)


def _inclusion(b: FloatArray, k: int) -> FloatArray:
    if k == 0:
        return np.zeros(len(b))
    full, less = _leave_one_out(b, k)
    return b * less / (b * less + (1 - b) * full)


conditional_poisson = Procedure("conditional_poisson", _counts, _pairs)
"""Independent coins given that exactly K come up (⌊K⌋ or ⌈K⌉), the fixed-size design of maximal
entropy. Its joint probabilities are known, so its variance is too. O(NK) time and memory."""

"""Conditional Poisson sampling (Hájek 1964; Chen, Dempster and Liu 1994), computed exactly.

Every client has a coin, and the coins are tossed under the condition that exactly k show heads. The
coins' own probabilities b differ from the probabilities p of being drawn under that condition, so b
is solved for first.
"""

from typing import NamedTuple

import numpy as np

from kvib.cohort import Incomplete, Pairs
from kvib.compiled import kernel
from kvib.procedures.procedure import Procedure, whole_and_part
from kvib.types import FloatArray, IntArray

_LARGEST_TABLE = 2**27
"""Numbers in the largest table that is made: one gigabyte in double precision."""
_ITERATIONS = 500
"""Steps after which the solver for b stops, converged or not."""
_TOLERANCE = 1e-13
"""Residual of the log-odds x of b at which the solver stops, in units of 1 + max|x|."""
_PAST_STEPS = 5
"""Past steps from which Anderson's acceleration extrapolates."""


class _Design(NamedTuple):
    """The random part of the draw: n coins, of which exactly k show heads.

    A fractional Σp gets one more coin, for a client that does not exist. When it
    shows heads, k − 1 of the clients in `at` are drawn, and k otherwise.
    """

    at: IntArray
    """Clients with 0 < p < 1, [n]."""
    p: FloatArray
    """Their probabilities, [n], then that of the extra coin if Σp is fractional."""
    k: int
    """The number of heads."""


def _design(expected: FloatArray) -> _Design:
    """The coins of the clients that are neither certain nor impossible."""
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
    """P(j heads among coins 0 … i−1), [n+1, k+1].

    All terms of the sums are positive, so the table is exact to rounding.
    """
    table = np.zeros((len(b) + 1, k + 1))
    table[0, 0] = 1.0
    for i in range(len(b)):
        table[i + 1] = table[i] * (1 - b[i])
        table[i + 1, 1:] += table[i, :-1] * b[i]
    return table


@kernel
def _joined(before: FloatArray, after: FloatArray) -> tuple[FloatArray, FloatArray]:
    """P(k heads) and P(k−1 heads) among all coins but i, for every i, [n].

    `before` is the table of the coins from the first on, `after` the table from the last on.
    """
    n = len(before) - 1
    full, less = np.zeros(n), np.zeros(n)
    for i in range(n):
        others = after[n - 1 - i][::-1]  # k − j heads from coins i+1 … n−1
        full[i] = (before[i] * others).sum()
        less[i] = (before[i, :-1] * others[1:]).sum()
    return full, less


def _leave_one_out(b: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """P(k heads) and P(k−1 heads) among all coins but i, for every i, [n]."""
    return _joined(_heads(b, k), _heads(b[::-1].copy(), k))


def _coins(p: FloatArray, k: int) -> FloatArray:
    """Probabilities b of coins that show heads with probabilities p, given k heads, [n].

    p/(1−p) = b/(1−b) · P(k−1 heads of others)/P(k heads of others) is solved for the log-odds x of
    b. The plain iteration x ← G(x) oscillates when one client dominates. Anderson's acceleration
    (1965) extrapolates from the last few steps.
    """
    if k in (0, len(p)):  # probabilities within rounding of 0 or 1
        return np.full(len(p), float(k > 0))
    logit = np.log(p) - np.log1p(-p)
    x = logit
    steps: list[FloatArray] = []
    residuals: list[FloatArray] = []
    for _ in range(_ITERATIONS):
        # the residual G(x) − x of the equation
        full, less = _leave_one_out(1 / (1 + np.exp(-x)), k)
        residual = logit + np.log(full) - np.log(less) - x
        residual -= residual.mean()  # only differences of log-odds matter
        if np.abs(residual).max() <= _TOLERANCE * (1 + np.abs(x).max()):
            break
        # half a plain step, or the mixture of past steps whose residual is least
        step = residual / 2
        if residuals:
            change = np.stack([residual - r for r in residuals], axis=1)
            mix = np.linalg.lstsq(change, residual, rcond=1e-12)[0]
            moved = np.stack([x - y for y in steps], axis=1)
            step = (residual - change @ mix) / 2 - moved @ mix
        kept = _PAST_STEPS - 1
        steps, residuals = [*steps[-kept:], x], [*residuals[-kept:], residual]
        x = x + step
    b: FloatArray = 1 / (1 + np.exp(-x))
    return b


@kernel
def _toss(b: FloatArray, after: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
    """Toss the coins one after another, each given the number k of heads still to come, [n]."""
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
    """1 for the drawn clients, 0 for the others, [N]."""
    counts = (expected >= 1).astype(np.int64)
    at, p, k = _design(expected)
    if len(at):
        b = _coins(p, k)
        after = _heads(b[::-1].copy(), k)
        counts[at] = _toss(b, after, k, rng)[: len(at)]
    return counts


def _pairs(expected: FloatArray, at: IntArray) -> Pairs:
    """Exact second moments of the clients at `at`, from P(j in | i in)."""
    clients, p, k = _design(expected)
    ratio, size = np.ones((len(at), len(at))), np.zeros(len(at))
    if len(clients) == 0:
        return Pairs(ratio, size)
    b = _coins(p, k)
    coin_of = np.full(len(expected), -1)
    coin_of[clients] = np.arange(len(clients))
    # Clients without a coin are always or never in, hence independent of all others.
    random = np.flatnonzero(coin_of[at] >= 0)
    coins = coin_of[at[random]]
    for row, i in zip(random, coins, strict=True):
        conditional = np.insert(_inclusion(np.delete(b, i), k - 1), i, 1.0)  # P(j in | i in)
        ratio[row, random] = conditional[coins] / p[coins]
        ratio[row, row] = 1.0
        if len(p) > len(clients):  # the size is k, or k − 1 when the extra coin shows heads
            size[row] = p[-1] - conditional[-1]
    return (Pairs if k > 1 or len(clients) < 2 else Incomplete)(ratio, size)


def _inclusion(b: FloatArray, k: int) -> FloatArray:
    """P(coin i shows heads), given k heads among coins with probabilities b, [n]."""
    if k == 0:
        return np.zeros(len(b))
    full, less = _leave_one_out(b, k)
    return b * less / (b * less + (1 - b) * full)


conditional_poisson = Procedure("conditional_poisson", _counts, _pairs)
"""Exactly K clients, by independent coins under the condition that K of them show heads.

It is the fixed-size design of maximal entropy. Its joint probabilities are known, so its variance
is known too. A draw takes O(NK) time and memory. A fractional K gives ⌊K⌋ or ⌈K⌉ clients.

p_i/(1−p_i) = b_i/(1−b_i) · P(k−1 heads of others)/P(k heads of others), solved for the coins b.

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.

Further arguments are those of `kvib.Procedure`.

Examples:
    >>> import numpy as np, kvib
    >>> cohort = kvib.conditional_poisson([0.5, 0.5, 0.5, 0.25, 0.25], np.random.default_rng(0))
    >>> cohort.ids
    array([1, 2])
    >>> cohort.pairs().ratio.round(2)          # P(i and j drawn)/(p_i p_j), off the diagonal
    array([[1.  , 0.71],
           [0.71, 1.  ]])

References:
    Hájek 1964; Chen, Dempster and Liu 1994.
"""

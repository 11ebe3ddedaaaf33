"""Exact measures of a sampler, from expected counts and all clients' updates: never from one draw.

Throughout, `feedback` is π = λ‖g‖ of all clients, [N], `expected` their expected counts, [N], and
`gram` the inner products of their λg, [N, N]. The comparator is the capped minimum, for all
procedures: with replacement K·q may exceed 1, so that a regret can be negative there.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.cohort import FloatArray
from kvib.procedures import Procedure, independent
from kvib.waterfill import waterfill


class Measurement(NamedTuple):
    """A value and its standard error, 0 where it is exact."""

    value: float
    error: float = 0.0


def variance(
    expected: ArrayLike,
    feedback: ArrayLike | None = None,
    procedure: Procedure = independent,
    *,
    total: float | None = None,
    gram: ArrayLike | None = None,
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
    variables: FloatArray | None = None,
) -> Measurement:
    """E‖d − D‖² of the unbiased estimate.

    Independent draws need `feedback` only; with replacement and uniform without, also
    `total` = ‖D‖²; conditional Poisson, the Gram matrix. Pivotal and systematic draws have no
    closed form: the Gram matrix and Monte Carlo over `draws` draws, with a standard error.

    Examples:
        >>> variance([0.25, 0.75, 1.0], [1, 3, 6])
        Measurement(value=6.0, error=0.0)
    """
    e = procedure.checked(expected)
    A = None if gram is None else np.asarray(gram, dtype=np.float64)
    if feedback is None and A is None:
        raise ValueError("give the feedback of all clients, or the Gram matrix of their updates")
    squared = np.diag(A) if A is not None else np.asarray(feedback, dtype=np.float64) ** 2  # π²
    if squared.shape != e.shape:
        raise ValueError(f"{len(e)} expected counts, but updates of {len(squared)} clients")
    if ((e == 0) & (squared > 0)).any():
        return Measurement(math.inf)
    if procedure.pairs is None:
        return _monte_carlo(e, _needed(A, procedure), procedure, draws, rng, variables)

    drawable = np.flatnonzero(e > 0)  # the others have π = 0
    e, squared = e[drawable], squared[drawable]
    ratio, size = procedure.pairs(e, np.arange(len(e)))
    own = float((size * squared / e).sum())
    if isinstance(ratio, float):
        if ratio == 1.0:
            return Measurement(own)
        D2 = total if total is not None else float(_needed(A, procedure).sum())
        # −½ΣΣ(a−1)e_i e_j‖ζ_i−ζ_j‖² with ζ = λg/e
        return Measurement(own - (ratio - 1) * (float(e.sum() * (squared / e).sum()) - D2))
    G = _needed(A, procedure)[np.ix_(drawable, drawable)]
    distance = np.outer(squared / e, e) - G  # e_i e_j (‖ζ_i‖² − ζ_i·ζ_j), summed over both orders
    return Measurement(own - float(((ratio - 1) * distance).sum()))


def joint(expected: ArrayLike, procedure: Procedure) -> FloatArray:
    """E[n_i n_j] of all pairs, [N, N]; its diagonal is E[n_i²].

    Examples:
        >>> from kvib import without_replacement
        >>> joint([0.5, 0.5, 0.5, 0.5], without_replacement)[0, :2].round(4)
        array([0.5   , 0.1667])
    """
    e = procedure.checked(expected)
    if procedure.pairs is None:
        raise ValueError(f"nobody knows the joint probabilities of {procedure!r} draws")
    ratio, size = procedure.pairs(e, np.arange(len(e)))
    together = ratio * np.outer(e, e)
    np.fill_diagonal(together, 0.0)
    # Cov(n_i, Σn) = E[n_i²] + Σ_{j≠i} E[n_i n_j] − e_i Σe
    return together + np.diag(size * e + e * e.sum() - together.sum(axis=1))


def _needed(gram: FloatArray | None, procedure: Procedure) -> FloatArray:
    if gram is None:
        raise ValueError(
            f"the variance of {procedure!r} draws depends on the directions of the updates; "
            "give gram=, the inner products of all λg"
        )
    return gram


def _monte_carlo(
    e: FloatArray,
    gram: FloatArray,
    procedure: Procedure,
    draws: int,
    rng: np.random.Generator | None,
    variables: FloatArray | None,
) -> Measurement:
    if rng is None:
        raise ValueError(f"the variance of {procedure!r} draws needs Monte Carlo; give rng=")
    inverse = np.divide(1.0, e, out=np.zeros_like(e), where=e > 0)
    errors = np.empty(draws)
    for k in range(draws):
        off = procedure.draw(e, rng, variables) * inverse - 1  # d − D = Σ off_i λ_i g_i
        errors[k] = off @ gram @ off
    return Measurement(float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(draws)))


def cost(expected: ArrayLike, feedback: ArrayLike) -> float:
    """ℓ(p) = Σπ²/p, what the policies minimise."""
    e, squared = np.asarray(expected, dtype=np.float64), np.asarray(feedback, dtype=np.float64) ** 2
    if ((e == 0) & (squared > 0)).any():
        return math.inf
    return float(np.divide(squared, e, out=np.zeros_like(squared), where=squared > 0).sum())


def optimal_probabilities(feedback: ArrayLike, budget: float) -> FloatArray:
    """p* = argmin ℓ(p) over Σp = K, p ≤ 1 (Lemma 2.2). Zero feedback shares what is left over."""
    pi = np.asarray(feedback, dtype=np.float64)
    positive = pi > 0
    if positive.sum() <= budget:
        left = len(pi) - positive.sum()
        rest = (budget - positive.sum()) / left if left else 0.0
        return np.where(positive, 1.0, rest)
    return waterfill(pi, budget)


def optimal_cost(feedback: ArrayLike, budget: float) -> float:
    """min ℓ(p)."""
    return cost(optimal_probabilities(feedback, budget), feedback)


def best_fixed(feedback: ArrayLike, budget: float) -> FloatArray:
    """The one p that would have been best in all rounds, [N], from π of every round, [T, N]."""
    history = _history(feedback)
    return optimal_probabilities(np.sqrt((history**2).sum(axis=0)), budget)


def dynamic_regret(expected: ArrayLike, feedback: ArrayLike, budget: float) -> float:
    """Σ_t ℓ_t(p^t) − Σ_t min_p ℓ_t(p), both arguments [T, N]."""
    history = _history(feedback)
    best = math.fsum(optimal_cost(pi, budget) for pi in history)
    return _spent(expected, history) - best


def static_regret(expected: ArrayLike, feedback: ArrayLike, budget: float) -> float:
    """Σ_t ℓ_t(p^t) − min_p Σ_t ℓ_t(p), both arguments [T, N]."""
    history = _history(feedback)
    fixed = best_fixed(history, budget)
    return _spent(expected, history) - math.fsum(cost(fixed, pi) for pi in history)


def hindsight_gap(feedback: ArrayLike, budget: float) -> float:
    """T_BFP = min_p Σ_t ℓ_t(p) − Σ_t min_p ℓ_t(p): dynamic regret minus static regret."""
    history = _history(feedback)
    fixed = best_fixed(history, budget)
    return math.fsum(cost(fixed, pi) - optimal_cost(pi, budget) for pi in history)


def _spent(expected: ArrayLike, history: FloatArray) -> float:
    rows = np.broadcast_to(np.asarray(expected, dtype=np.float64), history.shape)
    return math.fsum(cost(e, pi) for e, pi in zip(rows, history, strict=True))


def _history(feedback: ArrayLike) -> FloatArray:
    history = np.asarray(feedback, dtype=np.float64)
    if history.ndim != 2:
        raise ValueError(f"feedback has shape {history.shape}; give one row per round, [T, N]")
    return history


def quality(expected: ArrayLike, feedback: ArrayLike, budget: float) -> float:
    """Q = Σπ²|1/p − 1/p*|: the distance of the estimate from the optimal one on shared coins.

    The paper bounds Q by ℓ(p) − ℓ(p*), which fails for independent coins; with shared coins and
    orthogonal updates this is what E‖d − d*‖² is.
    """
    e, squared = np.asarray(expected, dtype=np.float64), np.asarray(feedback, dtype=np.float64) ** 2
    if ((e == 0) & (squared > 0)).any():
        return math.inf
    best = optimal_probabilities(feedback, budget)
    at = squared > 0
    return float((squared[at] * np.abs(1 / e[at] - 1 / best[at])).sum())


def optimal_factor(feedback: ArrayLike, budget: float) -> float:
    """α* = optimal variance / uniform variance, both of independent draws: the possible gain."""
    pi = np.asarray(feedback, dtype=np.float64)
    uniform = variance(np.full(len(pi), budget / len(pi)), pi).value
    return variance(optimal_probabilities(pi, budget), pi).value / uniform if uniform > 0 else 1.0

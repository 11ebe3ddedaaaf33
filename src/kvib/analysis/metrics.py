"""Exact measures of a sampler, from expected counts and all clients' updates: never from one draw.

Throughout, `feedback` is π = λ‖g‖ of all clients, [N], `expected` their expected counts, [N], and
`gram` the inner products of their λg, [N, N]. The comparator is the capped minimum, for all
procedures: with replacement K·u may exceed 1, so that a regret can be negative there.

`response` is the probability q that a client which was drawn answers, a number or [N]; the estimate
is divided by it. Silence leaves the cost Σπ²/(q·p) of the paper's appendix on stragglers, as if the
feedback were π/√q. Where clients are also away before the draw, each with probability 1 − a, give
the expected counts of those who are there and π/a for their feedback, and add `absence`: the mean
over who is there is the variance of the estimate that is divided by a too.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import renamed
from kvib.procedures import Procedure, independent
from kvib.types import FloatArray
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
    response: ArrayLike = 1.0,
) -> Measurement:
    """E‖d − D‖² of the unbiased estimate.

    Independent draws need `feedback` only; with replacement and uniform without, also
    `total` = ‖D‖²; conditional Poisson, the Gram matrix. Pivotal and systematic draws have no
    closed form: the Gram matrix and Monte Carlo over `draws` draws, with a standard error. Silence
    after the draw adds Σ E[n²]·(1 − q)/q·(π/e)², which norms tell whatever the procedure.

    Examples:
        >>> variance([0.25, 0.75, 1.0], [1, 3, 6])
        Measurement(value=6.0, error=0.0)
        >>> variance([0.25, 0.75, 1.0], [1, 3, 6], response=0.5)
        Measurement(value=58.0, error=0.0)
    """
    e = procedure.checked(expected)
    q = _answering(response, e.shape)
    A = None if gram is None else np.asarray(gram, dtype=np.float64)
    if feedback is None and A is None:
        raise ValueError("give the feedback of all clients, or the Gram matrix of their updates")
    squared = np.diag(A) if A is not None else np.asarray(feedback, dtype=np.float64) ** 2  # π²
    if squared.shape != e.shape:
        raise ValueError(f"{len(e)} expected counts, but updates of {len(squared)} clients")
    if ((e == 0) & (squared > 0)).any():
        return Measurement(math.inf)
    drawable = np.flatnonzero(e > 0)  # the others have π = 0
    e, q, squared = e[drawable], q[drawable], squared[drawable]
    silence = (1 - q) / q * squared / e**2  # of one that is drawn once
    if procedure.pairs is None:
        G = _needed(A, procedure)[np.ix_(drawable, drawable)]
        theirs = None if variables is None else variables[drawable]
        return _monte_carlo(e, G, silence, procedure, draws, rng, theirs)

    ratio, size = procedure.pairs(e, np.arange(len(e)))
    own = float((size * squared / e).sum() + (_squares(e, ratio, size) * silence).sum())
    if isinstance(ratio, float):
        if ratio == 1.0:
            return Measurement(own)
        D2 = total if total is not None else float(_needed(A, procedure).sum())
        # −½ΣΣ(a−1)e_i e_j‖ζ_i−ζ_j‖² with ζ = λg/e
        return Measurement(own - (ratio - 1) * (float(e.sum() * (squared / e).sum()) - D2))
    G = _needed(A, procedure)[np.ix_(drawable, drawable)]
    distance = np.outer(squared / e, e) - G  # e_i e_j (‖ζ_i‖² − ζ_i·ζ_j), summed over both orders
    return Measurement(own - float(((ratio - 1) * distance).sum()))


def absence(feedback: ArrayLike, availability: ArrayLike) -> float:
    """Σπ²·(1 − a)/a: what clients that come and go by themselves add to the variance.

    E‖Σ_there λg/a − D‖², where each client is there with its own probability a.

    >>> absence([1, 3, 6], 0.5)
    46.0
    """
    squared = np.asarray(feedback, dtype=np.float64) ** 2
    a = _answering(availability, squared.shape, "availability")
    return float(((1 - a) / a * squared).sum())


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
    np.fill_diagonal(together, _squares(e, ratio, size))
    return together


def _squares(e: FloatArray, ratio: float | FloatArray, size: FloatArray) -> FloatArray:
    """E[n_i²], [N], from Cov(n_i, Σn) = E[n_i²] + Σ_{j≠i} E[n_i n_j] − e_i Σe."""
    shared = isinstance(ratio, float)
    others = ratio * (e.sum() - e) if shared else ratio @ e - np.diag(ratio) * e
    return np.asarray(e * (size + e.sum() - others))


def _answering(rate: ArrayLike, shape: tuple[int, ...], name: str = "response") -> FloatArray:
    """The rate of every client, in the shape of their feedback."""
    q = np.asarray(rate, dtype=np.float64)
    if q.ndim > len(shape) or q.shape not in ((), shape[-1:], shape):
        raise ValueError(
            f"{name} has shape {q.shape} for {shape[-1]} clients; give a number, or one per client"
        )
    if not ((q > 0) & (q <= 1)).all():  # NaN fails too
        raise ValueError(f"{name} must be above 0 and at most 1, not {q.min()} to {q.max()}")
    return np.broadcast_to(q, shape)


def _felt(feedback: ArrayLike, response: ArrayLike) -> FloatArray:
    """π/√q: the feedback that would cost as much if all clients answered."""
    pi = np.asarray(feedback, dtype=np.float64)
    return pi / np.sqrt(_answering(response, pi.shape))


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
    silence: FloatArray,
    procedure: Procedure,
    draws: int,
    rng: np.random.Generator | None,
    variables: FloatArray | None,
) -> Measurement:
    if rng is None:
        raise ValueError(f"the variance of {procedure!r} draws needs Monte Carlo; give rng=")
    errors = np.empty(draws)
    for k in range(draws):
        n = procedure.draw(e, rng, variables)
        off = n / e - 1  # d − D = Σ off_i λ_i g_i, were all of them heard
        errors[k] = off @ gram @ off + n**2 @ silence
    return Measurement(float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(draws)))


def sampling_cost(expected: ArrayLike, feedback: ArrayLike, response: ArrayLike = 1.0) -> float:
    """ℓ(p) = Σπ²/(q·p), what the policies minimise."""
    e, squared = np.asarray(expected, dtype=np.float64), _felt(feedback, response) ** 2
    if ((e == 0) & (squared > 0)).any():
        return math.inf
    return float(np.divide(squared, e, out=np.zeros_like(squared), where=squared > 0).sum())


def optimal_probabilities(
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> FloatArray:
    """p* = argmin ℓ(p) over Σp = K, p ≤ 1 (Lemma 2.2). Zero feedback shares what is left over.

    Args:
        feedback: π.
        budget: K.
        response: q; who answers seldom is drawn more often, p* ∝ π/√q.
        price: what drawing each client takes from the budget, [N]: Σ price·p = K.

    >>> optimal_probabilities([1, 1], 1, response=[1.0, 0.25]).round(4)
    array([0.3333, 0.6667])
    """
    pi = _felt(feedback, response)
    c = np.ones(len(pi)) if price is None else np.asarray(price, dtype=np.float64)
    positive = pi > 0
    left = budget - c[positive].sum()
    if left >= 0:
        rest = c[~positive].sum()
        return np.where(positive, 1.0, min(left / rest, 1.0) if rest > 0 else 0.0)
    return waterfill(pi, budget, cost=None if price is None else c)


def optimal_sampling_cost(
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> float:
    """min ℓ(p)."""
    return sampling_cost(
        optimal_probabilities(feedback, budget, response, price), feedback, response
    )


def best_fixed(feedback: ArrayLike, budget: float, response: ArrayLike = 1.0) -> FloatArray:
    """The one p that would have been best in all rounds, [N], from π of every round, [T, N]."""
    history = _history(feedback, response)
    return optimal_probabilities(np.sqrt((history**2).sum(axis=0)), budget)


def dynamic_regret(
    expected: ArrayLike, feedback: ArrayLike, budget: float, response: ArrayLike = 1.0
) -> float:
    """Σ_t ℓ_t(p^t) − Σ_t min_p ℓ_t(p), both arguments [T, N]; `response` a number, [N] or [T, N].

    With the probability q of an answer it is the regret of the paper's appendix on stragglers.
    """
    history = _history(feedback, response)
    best = math.fsum(optimal_sampling_cost(pi, budget) for pi in history)
    return _spent(expected, history) - best


def static_regret(
    expected: ArrayLike, feedback: ArrayLike, budget: float, response: ArrayLike = 1.0
) -> float:
    """Σ_t ℓ_t(p^t) − min_p Σ_t ℓ_t(p), both arguments [T, N]."""
    history = _history(feedback, response)
    fixed = best_fixed(history, budget)
    return _spent(expected, history) - math.fsum(sampling_cost(fixed, pi) for pi in history)


def hindsight_gap(feedback: ArrayLike, budget: float, response: ArrayLike = 1.0) -> float:
    """T_BFP = min_p Σ_t ℓ_t(p) − Σ_t min_p ℓ_t(p): dynamic regret minus static regret."""
    history = _history(feedback, response)
    fixed = best_fixed(history, budget)
    return math.fsum(sampling_cost(fixed, pi) - optimal_sampling_cost(pi, budget) for pi in history)


def _spent(expected: ArrayLike, history: FloatArray) -> float:
    rows = np.broadcast_to(np.asarray(expected, dtype=np.float64), history.shape)
    return math.fsum(sampling_cost(e, pi) for e, pi in zip(rows, history, strict=True))


def _history(feedback: ArrayLike, response: ArrayLike) -> FloatArray:
    """π/√q of every round, [T, N]."""
    shape = np.shape(feedback)
    if len(shape) != 2:
        raise ValueError(f"feedback has shape {shape}; give one row per round, [T, N]")
    return _felt(feedback, response)


def quality(
    expected: ArrayLike,
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> float:
    """Q = Σπ²/q·|1/p − 1/p*|: the distance of the estimate from the optimal one on shared coins.

    The paper bounds Q by ℓ(p) − ℓ(p*), which fails for independent coins; with shared coins and
    orthogonal updates this is what E‖d − d*‖² is.
    """
    e, squared = np.asarray(expected, dtype=np.float64), _felt(feedback, response) ** 2
    if ((e == 0) & (squared > 0)).any():
        return math.inf
    best = optimal_probabilities(feedback, budget, response, price)
    at = squared > 0
    return float((squared[at] * np.abs(1 / e[at] - 1 / best[at])).sum())


def optimal_factor(
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> float:
    """α* = optimal variance / uniform variance, both of independent draws: the possible gain."""
    pi = np.asarray(feedback, dtype=np.float64)
    all_of_them = len(pi) if price is None else float(np.sum(price))
    equal = np.full(len(pi), min(budget / all_of_them, 1.0))
    uniform = variance(equal, pi, response=response).value
    best = optimal_probabilities(pi, budget, response, price)
    return variance(best, pi, response=response).value / uniform if uniform > 0 else 1.0


__getattr__ = renamed(__name__, {"cost": "sampling_cost", "optimal_cost": "optimal_sampling_cost"})

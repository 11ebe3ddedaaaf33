"""Exact measures of a sampler, from expected counts and the updates of all clients.

No function looks at a single draw. Three arguments mean the same throughout:

- `feedback` is π = λ‖g‖ of all clients, [N].
- `expected` holds their expected counts, [N].
- `gram` holds the inner products of their λg, [N, N].

The comparator is the capped minimum, for all procedures. With replacement K·u may exceed 1, so a
regret can be negative there.

`response` is the probability q that a drawn client answers, a number or [N]. (All clients are
available here, so that q = a·r is the response r.) The estimate is divided by q, so silence leaves
the sampling cost Σπ²/(q·p) of the paper's appendix on stragglers, as if the feedback were π/√q.

Clients may also be unavailable before the draw, each with probability 1 − a. Then give the expected
counts of the available clients and π/a for their feedback, and add `absence`. The mean of this sum
over all sets of available clients is the variance of the estimate that is divided by a too.
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
    """A measured value and its standard error, which is 0 where the value is exact.

    Examples:
        >>> from kvib import metrics
        >>> metrics.variance([0.5, 0.5], [1, 1]).value
        2.0
    """

    value: float
    """The measured number."""
    error: float = 0.0
    """The standard error of a Monte Carlo mean."""


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
    """The variance of the unbiased estimate is its mean squared distance from the full step.

    E‖d − D‖² with d = Σ n·λg/e, which is Σ(1 − p)π²/p for independent draws. What must be known
    depends on the procedure:

    - Independent draws need `feedback` only.
    - Draws with replacement, and uniform draws without replacement, also need `total`.
    - Conditional Poisson draws need `gram`.
    - Pivotal, systematic and balanced draws have no closed form. They need `gram` and `rng`.

    Silence after the draw adds Σ E[n²]·(1 − q)/q·(π/e)², which norms tell whatever the procedure.

    Args:
        expected: The expected counts e of all clients, [N].
        feedback: The feedback π of all clients, [N]. It may be left out where `gram` is given.
        procedure: The procedure that draws.
        total: ‖D‖², the squared norm of the full step. By default it is the sum of `gram`.
        gram: The inner products of all λg, [N, N].
        draws: The number of draws of a Monte Carlo.
        rng: The generator of a Monte Carlo.
        variables: The variables that a balancing procedure balances on, [N, d].
        response: The probability q that a drawn client answers, a number or [N].

    Examples:
        >>> from kvib import metrics
        >>> metrics.variance([0.25, 0.75, 1.0], [1, 3, 6])
        Measurement(value=6.0, error=0.0)
        >>> metrics.variance([0.25, 0.75, 1.0], [1, 3, 6], response=0.5)
        Measurement(value=58.0, error=0.0)

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 2 and Lemma 2.1.
    """
    e = procedure.checked(expected)
    q = _checked_rate(response, e.shape)
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
    silence = (1 - q) / q * squared / e**2  # what a client adds that is drawn once
    if procedure.pairs is None:
        G = _required_gram(A, procedure)[np.ix_(drawable, drawable)]
        drawable_variables = None if variables is None else variables[drawable]
        return _monte_carlo(e, G, silence, procedure, draws, rng, drawable_variables)

    ratio, size = procedure.pairs(e, np.arange(len(e)))
    own = float((size * squared / e).sum() + (_squares(e, ratio, size) * silence).sum())
    if isinstance(ratio, float):
        if ratio == 1.0:
            return Measurement(own)
        D2 = total if total is not None else float(_required_gram(A, procedure).sum())
        # −½ΣΣ(a−1)e_i e_j‖ζ_i−ζ_j‖² with ζ = λg/e
        return Measurement(own - (ratio - 1) * (float(e.sum() * (squared / e).sum()) - D2))
    G = _required_gram(A, procedure)[np.ix_(drawable, drawable)]
    distance = np.outer(squared / e, e) - G  # e_i e_j (‖ζ_i‖² − ζ_i·ζ_j), summed over both orders
    return Measurement(own - float(((ratio - 1) * distance).sum()))


def absence(feedback: ArrayLike, availability: ArrayLike) -> float:
    """Clients that are unavailable by chance before the draw add this to the variance.

    Σπ²·(1 − a)/a = E‖Σ_available λg/a − D‖², where each client is available with its own
    probability a.

    Args:
        feedback: The feedback π of all clients, [N].
        availability: The probability a that a client is available, a number or [N].

    Examples:
        >>> from kvib import metrics
        >>> metrics.absence([1, 3, 6], 0.5)
        46.0
    """
    squared = np.asarray(feedback, dtype=np.float64) ** 2
    a = _checked_rate(availability, squared.shape, "availability")
    return float(((1 - a) / a * squared).sum())


def joint(expected: ArrayLike, procedure: Procedure) -> FloatArray:
    """Joint expectations tell how often two clients are drawn together.

    E[n_i n_j] of all pairs, [N, N]. The diagonal is E[n_i²].

    Args:
        expected: The expected counts of all clients, [N].
        procedure: The procedure that draws.

    Examples:
        >>> import kvib
        >>> from kvib import metrics
        >>> metrics.joint([0.5, 0.5, 0.5, 0.5], kvib.without_replacement)[0, :2].round(4)
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


def _checked_rate(rate: ArrayLike, shape: tuple[int, ...], name: str = "response") -> FloatArray:
    """The rate of every client as an array of this shape, checked to lie in (0, 1]."""
    q = np.asarray(rate, dtype=np.float64)
    if q.ndim > len(shape) or q.shape not in ((), shape[-1:], shape):
        raise ValueError(
            f"{name} has shape {q.shape} for {shape[-1]} clients; give a number, or one per client"
        )
    if not ((q > 0) & (q <= 1)).all():  # NaN fails too
        raise ValueError(f"{name} must be above 0 and at most 1, not {q.min()} to {q.max()}")
    return np.broadcast_to(q, shape)


def _effective_feedback(feedback: ArrayLike, response: ArrayLike) -> FloatArray:
    """π/√q: the feedback that would have the same sampling cost if all clients answered."""
    pi = np.asarray(feedback, dtype=np.float64)
    return pi / np.sqrt(_checked_rate(response, pi.shape))


def _required_gram(gram: FloatArray | None, procedure: Procedure) -> FloatArray:
    """The Gram matrix, or an error where it is missing."""
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
    """The mean of ‖d − D‖² over many draws, and its standard error."""
    if rng is None:
        raise ValueError(f"the variance of {procedure!r} draws needs Monte Carlo; give rng=")
    errors = np.empty(draws)
    for k in range(draws):
        n = procedure.draw(e, rng, variables)
        off = n / e - 1  # d − D = Σ off_i λ_i g_i if all drawn clients answer
        errors[k] = off @ gram @ off + n**2 @ silence
    return Measurement(float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(draws)))


def sampling_cost(expected: ArrayLike, feedback: ArrayLike, response: ArrayLike = 1.0) -> float:
    """The sampling cost is the part of the variance that probabilities decide.

    ℓ(p) = Σπ²/(q·p). The policies minimise it.

    Args:
        expected: The expected counts p of all clients, [N].
        feedback: The feedback π of all clients, [N].
        response: The probability q that a drawn client answers, a number or [N].

    Examples:
        >>> from kvib import metrics
        >>> metrics.sampling_cost([0.25, 0.75, 1.0], [1, 3, 6])
        52.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.1.
    """
    e, squared = (
        np.asarray(expected, dtype=np.float64),
        _effective_feedback(feedback, response) ** 2,
    )
    if ((e == 0) & (squared > 0)).any():
        return math.inf
    return float(np.divide(squared, e, out=np.zeros_like(squared), where=squared > 0).sum())


def optimal_probabilities(
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> FloatArray:
    """The optimal probabilities have the least sampling cost, and grow with the feedback up to 1.

    p* = argmin ℓ(p) over Σp = K, p ≤ 1. Clients with zero feedback share what is left over.

    Args:
        feedback: The feedback π of all clients, [N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number or [N]. Clients that
            answer seldom are drawn more often, p* ∝ π/√q.
        price: What drawing each client takes from the budget, [N]: Σ price·p = K. By default it
            is 1.

    Examples:
        >>> from kvib import metrics
        >>> metrics.optimal_probabilities([1, 3, 6], 2)
        array([0.25, 0.75, 1.  ])
        >>> metrics.optimal_probabilities([1, 1], 1, response=[1.0, 0.25]).round(4)
        array([0.3333, 0.6667])

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma 2.2.
    """
    pi = _effective_feedback(feedback, response)
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
    """The optimal sampling cost is the least that any probabilities within the budget have.

    min ℓ(p) over Σp = K, p ≤ 1.

    Args:
        feedback: The feedback π of all clients, [N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number or [N].
        price: What drawing each client takes from the budget, [N]. By default it is 1.

    Examples:
        >>> from kvib import metrics
        >>> metrics.optimal_sampling_cost([1, 3, 6], 2)
        52.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma 2.2.
    """
    return sampling_cost(
        optimal_probabilities(feedback, budget, response, price), feedback, response
    )


def best_fixed(feedback: ArrayLike, budget: float, response: ArrayLike = 1.0) -> FloatArray:
    """The best fixed probabilities are those that would have been best if kept in all rounds.

    argmin_p Σ_t ℓ_t(p), [N]. They are the optimal probabilities for √(Σ_t π_t²).

    Args:
        feedback: The feedback π of every round, [T, N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number, [N] or [T, N].

    Examples:
        >>> from kvib import metrics
        >>> metrics.best_fixed([[1, 3, 6], [3, 1, 6]], 2)
        array([0.5, 0.5, 1. ])

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.2.
    """
    history = _history(feedback, response)
    return optimal_probabilities(np.sqrt((history**2).sum(axis=0)), budget)


def dynamic_regret(
    expected: ArrayLike, feedback: ArrayLike, budget: float, response: ArrayLike = 1.0
) -> float:
    """The dynamic regret compares a sampler with the best probabilities of each round.

    Σ_t ℓ_t(p^t) − Σ_t min_p ℓ_t(p). With the probability q of an answer it is the regret of the
    paper's appendix on stragglers.

    Args:
        expected: The expected counts p^t of every round, [T, N], or [N] for all rounds.
        feedback: The feedback π of every round, [T, N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number, [N] or [T, N].

    Examples:
        >>> from kvib import metrics
        >>> round(metrics.dynamic_regret([2 / 3] * 3, [[1, 3, 6], [3, 1, 6]], 2), 9)
        34.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.1.
    """
    history = _history(feedback, response)
    best = math.fsum(optimal_sampling_cost(pi, budget) for pi in history)
    return _summed_cost(expected, history) - best


def static_regret(
    expected: ArrayLike, feedback: ArrayLike, budget: float, response: ArrayLike = 1.0
) -> float:
    """The static regret compares a sampler with the best probabilities that never change.

    Σ_t ℓ_t(p^t) − min_p Σ_t ℓ_t(p).

    Args:
        expected: The expected counts p^t of every round, [T, N], or [N] for all rounds.
        feedback: The feedback π of every round, [T, N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number, [N] or [T, N].

    Examples:
        >>> from kvib import metrics
        >>> round(metrics.static_regret([2 / 3] * 3, [[1, 3, 6], [3, 1, 6]], 2), 9)
        26.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.2.
    """
    history = _history(feedback, response)
    fixed = best_fixed(history, budget)
    return _summed_cost(expected, history) - math.fsum(sampling_cost(fixed, pi) for pi in history)


def hindsight_gap(feedback: ArrayLike, budget: float, response: ArrayLike = 1.0) -> float:
    """The hindsight gap is what the best fixed probabilities lose to those of each round.

    T_BFP = min_p Σ_t ℓ_t(p) − Σ_t min_p ℓ_t(p). It is the dynamic regret minus the static regret.

    Args:
        feedback: The feedback π of every round, [T, N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number, [N] or [T, N].

    Examples:
        >>> from kvib import metrics
        >>> metrics.hindsight_gap([[1, 3, 6], [3, 1, 6]], 2)
        8.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.2.
    """
    history = _history(feedback, response)
    fixed = best_fixed(history, budget)
    return math.fsum(sampling_cost(fixed, pi) - optimal_sampling_cost(pi, budget) for pi in history)


def _summed_cost(expected: ArrayLike, history: FloatArray) -> float:
    """Σ_t ℓ_t(p^t)."""
    rows = np.broadcast_to(np.asarray(expected, dtype=np.float64), history.shape)
    return math.fsum(sampling_cost(e, pi) for e, pi in zip(rows, history, strict=True))


def _history(feedback: ArrayLike, response: ArrayLike) -> FloatArray:
    """π/√q of every round, [T, N]."""
    shape = np.shape(feedback)
    if len(shape) != 2:
        raise ValueError(f"feedback has shape {shape}; give one row per round, [T, N]")
    return _effective_feedback(feedback, response)


def quality(
    expected: ArrayLike,
    feedback: ArrayLike,
    budget: float,
    response: ArrayLike = 1.0,
    price: ArrayLike | None = None,
) -> float:
    """The quality is the distance of the estimate from the optimal one when both share coins.

    Q = Σπ²/q·|1/p − 1/p*|. Lower is better. The paper bounds Q by ℓ(p) − ℓ(p*), which fails for
    independent coins. With shared coins and orthogonal updates this is what E‖d − d*‖² is.

    Args:
        expected: The expected counts p of all clients, [N].
        feedback: The feedback π of all clients, [N].
        budget: The budget K of the optimal probabilities p*.
        response: The probability q that a drawn client answers, a number or [N].
        price: What drawing each client takes from the budget, [N]. By default it is 1.

    Examples:
        >>> from kvib import metrics
        >>> round(metrics.quality([2 / 3] * 3, [1, 3, 6], 2), 9)
        22.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 4.
    """
    e, squared = (
        np.asarray(expected, dtype=np.float64),
        _effective_feedback(feedback, response) ** 2,
    )
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
    """The optimal factor says how much of uniform's variance the best probabilities leave.

    α* = optimal variance / uniform variance, both of independent draws. A small α* means that
    there is much to gain.

    Args:
        feedback: The feedback π of all clients, [N].
        budget: The budget K.
        response: The probability q that a drawn client answers, a number or [N].
        price: What drawing each client takes from the budget, [N]. By default it is 1.

    Examples:
        >>> from kvib import metrics
        >>> round(metrics.optimal_factor([1, 3, 6], 2), 4)
        0.2609

    References:
        Zeng et al., "Enhanced Federated Optimization", appendix C.1.
    """
    pi = np.asarray(feedback, dtype=np.float64)
    total_price = len(pi) if price is None else float(np.sum(price))
    equal = np.full(len(pi), min(budget / total_price, 1.0))
    uniform = variance(equal, pi, response=response).value
    best = optimal_probabilities(pi, budget, response, price)
    return variance(best, pi, response=response).value / uniform if uniform > 0 else 1.0


__getattr__ = renamed(__name__, {"cost": "sampling_cost", "optimal_cost": "optimal_sampling_cost"})

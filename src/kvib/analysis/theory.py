"""The bounds of the paper as functions, with the constants of its appendix.

Where a constant does not follow from the appendix's own steps, the one that does is used and the
line says so. `docs/theory.md` lists the slips. Lemmas and corollaries of appendix B are counted
together, B.1 to B.10.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from kvib.analysis import metrics
from kvib.checks import renamed
from kvib.types import FloatArray
from kvib.waterfill import waterfill


def sampling_variance(
    expected: ArrayLike, feedback: ArrayLike, factors: ArrayLike | None = None
) -> float:
    """E‖d − D‖² ≤ Σ v·π²/p of any design without replacement (Lemma B.7).

    It needs no inner products of updates. Without more knowledge of the design v = N(1 − p), which
    is Lemma B.3, E‖Σz‖² ≤ N·ΣE‖z‖², for the N terms z = (1{drawn}/p − 1)·λg of d − D. With
    v = 1 − p it is the variance of independent draws; `design_factors` gives v of other designs.

    Args:
        expected: p of every client, [N].
        feedback: π = λ‖g‖ of every client, [N].
        factors: v of every client, or one for all.

    >>> round(sampling_variance([0.25, 0.75, 1.0], [1, 3, 6]), 9)
    18.0
    """
    p, pi = _probabilities(expected), np.asarray(feedback, dtype=np.float64)
    v = len(p) * (1 - p) if factors is None else np.asarray(factors, dtype=np.float64)
    return float((v * pi**2 / p).sum())


def design_factors(joint: ArrayLike) -> FloatArray:
    """v of a design without replacement from its joint probabilities P: P − pp′ ⪯ Diag(p·v).

    v = μ(1 − p) with μ the largest eigenvalue of the correlations of who is drawn, so that
    1 − p ≤ v ≤ N(1 − p). Independent draws have μ = 1, uniform ones without replacement
    v = (N − K)/(N − 1), as Lemma B.7 has it.

    Args:
        joint: P, the probabilities that both of two clients are drawn, [N, N]: `metrics.joint`.

    >>> from kvib import without_replacement
    >>> design_factors(metrics.joint([0.5, 0.5, 0.5, 0.5], without_replacement)).round(9)
    array([0.66666667, 0.66666667, 0.66666667, 0.66666667])
    """
    P = np.asarray(joint, dtype=np.float64)
    p = _probabilities(np.diag(P))
    chance = np.flatnonzero(p * (1 - p) > 1e-12)  # whoever is drawn for certain adds no noise
    v = np.zeros(len(p))
    if len(chance):
        own = p[chance]
        spread = np.sqrt(own * (1 - own))
        covariance = P[np.ix_(chance, chance)] - np.outer(own, own)
        v[chance] = (1 - own) * np.linalg.eigvalsh(covariance / np.outer(spread, spread))[-1]
    return v


def restricted_sampling_cost(feedback: ArrayLike, budget: float, least: float) -> float:
    """min Σπ²/p over Σp = K, p_min ≤ p ≤ 1 (Lemma B.8); Lemma 2.2 where p_min = 0.

    Σ_low π²/p_min + (Σ_between π)²/(K − |high| − p_min·|low|) + Σ_high π², where the low are at
    p_min and the high at 1.

    Args:
        feedback: π of every client, [N].
        budget: K.
        least: p_min ≤ K/N.

    >>> restricted_sampling_cost([1, 3, 6], 2, 0.4)
    53.5
    """
    pi = np.asarray(feedback, dtype=np.float64)
    _check_least(least, budget, len(pi), least <= budget / len(pi))
    positive = int((pi > 0).sum())
    if positive + (len(pi) - positive) * least <= budget:  # enough for all who count
        return float((pi**2).sum())
    return metrics.sampling_cost(waterfill(pi, budget, floor=least), pi)


def restricted_bound(feedback: ArrayLike, budget: float, least: float) -> float:
    """min Σπ²/p over Σp = K, p ≥ p_min, is at most K(Σπ)²/(K − N·p_min)² (Corollary B.10).

    It holds where no client reaches probability 1, K·max π ≤ Σπ; with p_min = 0 it is the
    minimum itself (Corollary B.9).

    Args:
        feedback: π of every client, [N].
        budget: K.
        least: p_min < K/N.

    >>> round(restricted_bound([1, 2, 3], 1, 0.1), 2)
    73.47
    """
    pi = np.asarray(feedback, dtype=np.float64)
    _check_least(least, budget, len(pi), least < budget / len(pi))
    whole, largest = float(pi.sum()), float(pi.max())
    if budget * largest > whole * (1 + 1e-12):
        raise ValueError(
            f"budget {budget:g} times the largest feedback {largest:g} exceeds their sum "
            f"{whole:g}, so that a client reaches probability 1; ask restricted_sampling_cost"
        )
    return float(budget * whole**2 / (budget - len(pi) * least) ** 2)


def _probabilities(expected: ArrayLike) -> FloatArray:
    p = np.asarray(expected, dtype=np.float64)
    if not ((p > 0) & (p <= 1 + 1e-12)).all():
        raise ValueError(
            f"probabilities are from {p.min():g} to {p.max():g}; those of draws without "
            "replacement are above 0 and at most 1"
        )
    return np.minimum(p, 1.0)


def _check_least(least: float, budget: float, clients: int, small_enough: bool) -> None:
    if not (least >= 0 and small_enough):
        raise ValueError(
            f"least probability {least:g} does not fit a budget of {budget:g} for {clients} "
            f"clients; give one from 0 to {budget / clients:g}"
        )


def tuned_step(gap: float, linear: float, quadratic: float, largest: float, rounds: int) -> float:
    """min over η ≤ 1/d of r₀/(ηT) + bη + eη², bounded: 2√(br₀/T) + 2e^⅓(r₀/T)^⅔ + dr₀/T.

    Args:
        gap: r₀.
        linear: b.
        quadratic: e.
        largest: d, one over the largest step.
        rounds: T.
    """
    r = gap / rounds
    return 2 * math.sqrt(linear * r) + 2 * float(quadratic ** (1 / 3) * r ** (2 / 3)) + largest * r


def convergence(
    *,
    rounds: int,
    loss_gap: float,
    smoothness: float,
    local_variance: float,
    global_variance: float,
    local_steps: int,
    quality: float,
    utility: float,
) -> float:
    """ρ·min_t E‖∇f(x^t)‖² of FedAvg under any unbiased sampler (Theorem 4.1).

    √(2M(4·max(1,L)·β₁ + 5Lσ²)/T) + (5σ²β₂)^⅓(2M/T)^⅔ + 16LM/T with σ² = σ_l²/R + 6σ_g².

    Args:
        rounds: T.
        loss_gap: M ≥ f(x⁰) − f(x^∞).
        smoothness: L.
        local_variance: σ_l².
        global_variance: σ_g².
        local_steps: R.
        quality: β₁, the mean of Q(S^t).
        utility: β₂, the mean of γ^t, see `sampling_utility`.
    """
    sigma = local_variance / local_steps + 6 * global_variance
    # b = β₁ + 5Lσ²/4, e = 5σ²β₂/8, d = 8L, r₀ = 2M. The paper prints 2LM/T; its Lemma gives d·r₀/T.
    return tuned_step(
        gap=2 * loss_gap,
        linear=max(1.0, smoothness) * quality + 5 / 4 * smoothness * sigma,  # Lη_g²Q, not Q
        quadratic=5 / 8 * sigma * utility,
        largest=8 * smoothness,
        rounds=rounds,
    )


def sampling_utility(clients: int, budget: float, largest_weight: float, factor: float) -> float:
    """γ^t = (α*(N−K)/K + N)·W, between NW (α* = 0) and NW + W(N−K)/K (α* = 1)."""
    return (factor * (clients - budget) / budget + clients) * largest_weight


def hindsight_gap_bound(feedback: ArrayLike, limit: ArrayLike, budget: float) -> float:
    """T_BFP ≤ (T/K)·(Σ√(V_i/T))·(2Π* + Σ√(V_i/T)), V_i = Σ_t(π_t(i) − π*(i))² (Theorem 5.1).

    Holds where no client reaches probability 1 and Π* is at most the mean of Σπ_t.

    Args:
        feedback: π of every round, [T, N].
        limit: π*, what feedback converges to, [N].
        budget: K.
    """
    history, limits = np.asarray(feedback, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    T = len(history)
    spread = float(np.sqrt(((history - limits) ** 2).sum(axis=0) / T).sum())
    return T / budget * spread * (2 * float(limits.sum()) + spread)


def full_feedback_regret(feedback: ArrayLike, gain: float, budget: float, free: float) -> float:
    """Static regret of the FTRL scheme with γ = G² when all feedback is seen (Theorem D.1).

    (22NG/z̄)·(Σ + NG) + NG²/p_min + 6N·p_min·Σ²/K² with Σ = Σ_i√(π²_{1:T}(i)) and
    p_min = min(K/(2N), GK/(√6·Σ)); in the second case the last two terms are 2√6·NG·Σ/K.

    Args:
        feedback: π of every round, [T, N].
        gain: G ≥ π.
        budget: K.
        free: z̄, the smallest budget that was left after the clients at probability 1.
    """
    history = np.asarray(feedback, dtype=np.float64)
    N = history.shape[1]
    cumulative = float(np.sqrt((history**2).sum(axis=0)).sum())
    small = math.sqrt(6) * cumulative <= 2 * N * gain  # Σ may be 0
    least = budget / (2 * N) if small else gain * budget / (math.sqrt(6) * cumulative)
    # The paper prints 22NG²/z̄ for the term in G², but Σ_i(… + G) has N terms G.
    stability = 22 * N * gain / free * (cumulative + N * gain)
    restriction = N * gain**2 / least + 6 * N * least * cumulative**2 / budget**2
    return float(stability + restriction)


def partial_feedback_regret(
    feedback: ArrayLike, gain: float, budget: float, free: float, mix: float
) -> float:
    """Expected static regret of K-Vib (Theorem 5.2, before constants are dropped).

    θG²N²T/K, plus the bound of full feedback with G²N/(θK), which is γ, for G². That bound is for
    the estimates π̃², whose Σ and Σ² are in the mean at most those of π (Cauchy–Schwarz).

    Args:
        feedback: π of every round, [T, N].
        gain: G ≥ π.
        budget: K.
        free: z̄, the smallest budget that was left after the clients at probability 1.
        mix: θ.
    """
    T, N = np.shape(feedback)
    inflated = gain * math.sqrt(N / (mix * budget))
    mixing = mix * gain**2 * N**2 * T / budget
    return float(mixing + full_feedback_regret(feedback, inflated, budget, free))


def dynamic_regret_bound(
    feedback: ArrayLike, limit: ArrayLike, gain: float, budget: float, free: float, mix: float
) -> float:
    """Expected dynamic regret of K-Vib (Section 5.2).

    It is `partial_feedback_regret` + `hindsight_gap_bound`.

    Args:
        feedback: π of every round, [T, N].
        limit: π*, what feedback converges to, [N].
        gain: G ≥ π.
        budget: K.
        free: z̄, the smallest budget that was left after the clients at probability 1.
        mix: θ.
    """
    static = partial_feedback_regret(feedback, gain, budget, free, mix)
    return static + hindsight_gap_bound(feedback, limit, budget)


def kvib_convergence(
    feedback: ArrayLike,
    limit: ArrayLike,
    *,
    gain: float,
    budget: float,
    free: float,
    mix: float | None = None,
    loss_gap: float,
    smoothness: float,
    local_variance: float,
    global_variance: float,
    local_steps: int,
    utility: float,
) -> float:
    """ρ·min_t E‖∇f(x^t)‖² of FedAvg under K-Vib.

    It is `convergence` with `dynamic_regret_bound`/T for β₁.

    The variance of a round is that of the optimum plus ℓ_t(p^t) − min ℓ_t exactly, so the regret
    takes the place of Q(S^t) in the proof; Q ≤ regret, which the paper uses, need not hold.

    Args:
        feedback: π of every round, [T, N].
        limit: π*, what feedback converges to, [N].
        gain: G ≥ π.
        budget: K.
        free: z̄, the smallest budget that was left after the clients at probability 1.
        mix: θ; K-Vib's own unless given.
        loss_gap: M ≥ f(x⁰) − f(x^∞).
        smoothness: L.
        local_variance: σ_l².
        global_variance: σ_g².
        local_steps: R.
        utility: β₂, the mean of γ^t, see `sampling_utility`.
    """
    T, N = np.shape(feedback)
    theta = kvib_mix(N, budget, T) if mix is None else mix
    return convergence(
        rounds=T,
        loss_gap=loss_gap,
        smoothness=smoothness,
        local_variance=local_variance,
        global_variance=global_variance,
        local_steps=local_steps,
        quality=dynamic_regret_bound(feedback, limit, gain, budget, free, theta) / T,
        utility=utility,
    )


def kvib_rate(
    *,
    rounds: int,
    clients: int,
    budget: float,
    gain: float,
    free: float,
    loss_gap: float,
    smoothness: float,
) -> float:
    """What K-Vib's sampling adds to ρ·min_t E‖∇f(x^t)‖², in the first order of T (Section 5.3).

    √(8·max(1, L)·c)·NG·(M^¾·N^¼/(TK))^⅔ with c = 1 + 22K/z̄ + 2√6: the paper's
    O((M^¾·N^¼/(TK))^⅔), whose NG is the largest ‖g‖ where weights are equal.

    Args:
        rounds: T.
        clients: N.
        budget: K.
        gain: G ≥ π.
        free: z̄, the smallest budget that was left after the clients at probability 1.
        loss_gap: M ≥ f(x⁰) − f(x^∞).
        smoothness: L.

    >>> at = dict(rounds=500, clients=100, gain=0.01, loss_gap=1.0, smoothness=1.0)
    >>> ratio = kvib_rate(budget=20, free=20, **at) / kvib_rate(budget=10, free=10, **at)
    >>> round(ratio, 3)  # twice the budget: 2^−⅔
    0.63
    """
    constant = 1 + 22 * budget / free + 2 * math.sqrt(6)
    rate = (loss_gap**0.75 * clients**0.25 / (rounds * budget)) ** (2 / 3)
    return float(math.sqrt(8 * max(1.0, smoothness) * constant) * clients * gain * rate)


def kvib_mix(clients: int, budget: float, rounds: int) -> float:
    """θ = min(1, (N/(TK))^⅓); the paper forgets the 1, which N = 3400, K = 10, T = 100 needs."""
    return float(min(1.0, (clients / (rounds * budget)) ** (1 / 3)))


__getattr__ = renamed(__name__, {"hindsight_gap": "hindsight_gap_bound"})

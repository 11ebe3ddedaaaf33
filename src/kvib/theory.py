"""The bounds of the paper as functions, with the constants of its appendix.

Where a constant does not follow from the appendix's own steps, the one that does is used and the
line says so. `docs/theory.md` lists the slips.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


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


def hindsight_gap(feedback: ArrayLike, limit: ArrayLike, budget: float) -> float:
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
    """Static regret of the FTRL scheme with γ = G² when all feedback is seen (Theorem C.1).

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
    least = min(budget / (2 * N), gain * budget / (math.sqrt(6) * cumulative))
    # The paper prints 22NG²/z̄ for the term in G², but Σ_i(… + G) has N terms G.
    stability = 22 * N * gain / free * (cumulative + N * gain)
    restriction = N * gain**2 / least + 6 * N * least * cumulative**2 / budget**2
    return float(stability + restriction)


def partial_feedback_regret(
    feedback: ArrayLike, gain: float, budget: float, free: float, mix: float
) -> float:
    """Expected static regret of K-Vib (Theorem 5.2, before constants are dropped).

    θG²N²T/K, plus the bound of full feedback with G²N/(θK) for G².
    """
    T, N = np.shape(feedback)
    inflated = gain * math.sqrt(N / (mix * budget))
    mixing = mix * gain**2 * N**2 * T / budget
    return float(mixing + full_feedback_regret(feedback, inflated, budget, free))


def kvib_mix(clients: int, budget: float, rounds: int) -> float:
    """θ = min(1, (N/(TK))^⅓); the paper forgets the 1, which N = 3400, K = 10, T = 100 needs."""
    return float(min(1.0, (clients / (rounds * budget)) ** (1 / 3)))

"""The bounds of the paper as functions, with the constants of its appendix.

The paper is Zeng et al., "Enhanced Federated Optimization: Adaptive Unbiased Client Sampling with
Reduced Variance". Where a constant does not follow from the appendix's own steps, the one that does
is used, and a comment says so. `docs/theory.md` lists the slips. Lemmas and corollaries of
appendix B are counted together, B.1 to B.10.
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
    """A bound on the variance of any design without replacement, from norms alone.

    E‖d − D‖² ≤ Σ v·π²/p. It needs no inner products of updates. Without more knowledge of the
    design v = N(1 − p). That is Lemma B.3, E‖Σz‖² ≤ N·ΣE‖z‖², for the N terms
    z = (1{drawn}/p − 1)·λg of d − D. With v = 1 − p it is the variance of independent draws, and
    `design_factors` gives v of other designs.

    Args:
        expected: The probability p of every client, [N].
        feedback: The feedback π = λ‖g‖ of every client, [N].
        factors: The factor v of every client, [N], or one for all.

    Examples:
        >>> from kvib import theory
        >>> round(theory.sampling_variance([0.25, 0.75, 1.0], [1, 3, 6]), 9)
        18.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemmas B.3 and B.7.
    """
    p, pi = _probabilities(expected), np.asarray(feedback, dtype=np.float64)
    v = len(p) * (1 - p) if factors is None else np.asarray(factors, dtype=np.float64)
    return float((v * pi**2 / p).sum())


def design_factors(joint: ArrayLike) -> FloatArray:
    """The factors of a design bound the noise that its correlations add to independent draws.

    v with P − pp′ ⪯ Diag(p·v), for the joint probabilities P of a design without replacement.
    v = μ(1 − p) with μ the largest eigenvalue of the correlations of who is drawn, so that
    1 − p ≤ v ≤ N(1 − p). Independent draws have μ = 1. Uniform draws without replacement have
    v = (N − K)/(N − 1), as Lemma B.7 has it.

    Args:
        joint: The probabilities P that both of two clients are drawn, [N, N]. `metrics.joint`
            computes them.

    Examples:
        >>> import kvib
        >>> from kvib import metrics, theory
        >>> joint = metrics.joint([0.5, 0.5, 0.5, 0.5], kvib.without_replacement)
        >>> theory.design_factors(joint).round(9)
        array([0.66666667, 0.66666667, 0.66666667, 0.66666667])

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma B.7.
    """
    P = np.asarray(joint, dtype=np.float64)
    p = _probabilities(np.diag(P))
    uncertain = np.flatnonzero(p * (1 - p) > 1e-12)  # clients drawn for certain add no noise
    v = np.zeros(len(p))
    if len(uncertain):
        own = p[uncertain]
        spread = np.sqrt(own * (1 - own))
        covariance = P[np.ix_(uncertain, uncertain)] - np.outer(own, own)
        v[uncertain] = (1 - own) * np.linalg.eigvalsh(covariance / np.outer(spread, spread))[-1]
    return v


def restricted_sampling_cost(feedback: ArrayLike, budget: float, least: float) -> float:
    """The least sampling cost where every client keeps a probability of at least p_min.

    min Σπ²/p over Σp = K, p_min ≤ p ≤ 1 is
    Σ_low π²/p_min + (Σ_between π)²/(K − |high| − p_min·|low|) + Σ_high π². The low clients are at
    p_min and the high ones at 1. With p_min = 0 it is the minimum of Lemma 2.2.

    Args:
        feedback: The feedback π of every client, [N].
        budget: The budget K.
        least: The least probability p_min, at most K/N.

    Examples:
        >>> from kvib import theory
        >>> theory.restricted_sampling_cost([1, 3, 6], 2, 0.4)
        53.5

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma B.8.
    """
    pi = np.asarray(feedback, dtype=np.float64)
    _check_least(least, budget, len(pi), least <= budget / len(pi))
    positive = int((pi > 0).sum())
    if positive + (len(pi) - positive) * least <= budget:  # enough to draw every client with π > 0
        return float((pi**2).sum())
    return metrics.sampling_cost(waterfill(pi, budget, floor=least), pi)


def restricted_bound(feedback: ArrayLike, budget: float, least: float) -> float:
    """A closed bound on the least sampling cost with probabilities of at least p_min.

    min Σπ²/p over Σp = K, p ≥ p_min, is at most K(Σπ)²/(K − N·p_min)². It holds where no client
    reaches probability 1, K·max π ≤ Σπ. With p_min = 0 it is the minimum itself (Corollary B.9).

    Args:
        feedback: The feedback π of every client, [N].
        budget: The budget K.
        least: The least probability p_min, below K/N.

    Examples:
        >>> from kvib import theory
        >>> round(theory.restricted_bound([1, 2, 3], 1, 0.1), 2)
        73.47

    References:
        Zeng et al., "Enhanced Federated Optimization", Corollaries B.9 and B.10.
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
    """The probabilities of a design without replacement, checked."""
    p = np.asarray(expected, dtype=np.float64)
    if not ((p > 0) & (p <= 1 + 1e-12)).all():
        raise ValueError(
            f"probabilities are from {p.min():g} to {p.max():g}; those of draws without "
            "replacement are above 0 and at most 1"
        )
    return np.minimum(p, 1.0)


def _check_least(least: float, budget: float, clients: int, small_enough: bool) -> None:
    """Refuse a least probability that is negative or does not fit the budget."""
    if not (least >= 0 and small_enough):
        raise ValueError(
            f"least probability {least:g} does not fit a budget of {budget:g} for {clients} "
            f"clients; give one from 0 to {budget / clients:g}"
        )


def tuned_step(gap: float, linear: float, quadratic: float, largest: float, rounds: int) -> float:
    """A step size that balances three terms leaves at most this.

    min over η ≤ 1/d of r₀/(ηT) + bη + eη² is at most 2√(br₀/T) + 2e^⅓(r₀/T)^⅔ + dr₀/T.

    Args:
        gap: The gap r₀ at the beginning.
        linear: The factor b of the linear term.
        quadratic: The factor e of the quadratic term.
        largest: One over the largest step, d.
        rounds: The number of rounds T.

    Examples:
        >>> from kvib import theory
        >>> round(theory.tuned_step(1.0, linear=4.0, quadratic=8.0, largest=2.0, rounds=100), 4)
        0.6057

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma B.5.
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
    """The paper bounds the gradient of FedAvg under any unbiased sampler, by the sampler's quality.

    ρ·min_t E‖∇f(x^t)‖² is at most
    √(2M(4·max(1,L)·β₁ + 5Lσ²)/T) + (5σ²β₂)^⅓(2M/T)^⅔ + 16LM/T with σ² = σ_l²/R + 6σ_g².
    Read it as the paper's expression, not as a theorem: `docs/theory.md` says why.

    Args:
        rounds: The number of rounds T.
        loss_gap: An upper bound M on f(x⁰) − f(x^∞).
        smoothness: The smoothness constant L.
        local_variance: The bound σ_l² on the variance of local gradients.
        global_variance: The bound σ_g² on the variance between clients.
        local_steps: The number R of local steps.
        quality: The mean β₁ of Q(S^t) over all rounds, see `metrics.quality`.
        utility: The mean β₂ of γ^t over all rounds, see `sampling_utility`.

    Examples:
        >>> from kvib import theory
        >>> noise = dict(local_variance=0.1, global_variance=0.1, local_steps=5)
        >>> options = dict(rounds=100, loss_gap=1.0, smoothness=1.0, utility=1.0, **noise)
        >>> round(theory.convergence(quality=0.1, **options), 4)
        0.532
        >>> round(theory.convergence(quality=0.0, **options), 4)    # the optimal sampler
        0.5164

    References:
        Zeng et al., "Enhanced Federated Optimization", Theorem 4.1.
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
    """The sampling utility is lower where the optimal sampler gains more over uniform draws.

    γ^t = (α*(N−K)/K + N)·W, between NW (α* = 0) and NW + W(N−K)/K (α* = 1).

    Args:
        clients: The number of clients N.
        budget: The budget K.
        largest_weight: The largest weight W = max λ.
        factor: The optimal factor α*, see `metrics.optimal_factor`.

    Examples:
        >>> from kvib import theory
        >>> theory.sampling_utility(100, 10, 0.01, factor=0.0)
        1.0
        >>> round(theory.sampling_utility(100, 10, 0.01, factor=1.0), 9)
        1.09

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 4.
    """
    return (factor * (clients - budget) / budget + clients) * largest_weight


def hindsight_gap_bound(feedback: ArrayLike, limit: ArrayLike, budget: float) -> float:
    """A bound on the hindsight gap: where feedback settles down, fixed probabilities lose little.

    T_BFP ≤ (T/K)·(Σ√(V_i/T))·(2Π* + Σ√(V_i/T)) with V_i = Σ_t(π_t(i) − π*(i))². It holds where no
    client reaches probability 1 and Π* is at most the mean of Σπ_t.

    Args:
        feedback: The feedback π of every round, [T, N].
        limit: What the feedback of every client converges to, π*, [N].
        budget: The budget K.

    Examples:
        >>> import numpy as np
        >>> from kvib import theory
        >>> feedback = np.array([1, 2, 3]) + 1 / np.sqrt(np.arange(1, 101))[:, None]
        >>> round(theory.hindsight_gap_bound(feedback, [1, 2, 3], budget=1), 1)
        866.6

    References:
        Zeng et al., "Enhanced Federated Optimization", Theorem 5.1.
    """
    history, limits = np.asarray(feedback, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    T = len(history)
    spread = float(np.sqrt(((history - limits) ** 2).sum(axis=0) / T).sum())
    return T / budget * spread * (2 * float(limits.sum()) + spread)


def full_feedback_regret(feedback: ArrayLike, gain: float, budget: float, free: float) -> float:
    """The static regret of the FTRL scheme is bounded where the feedback of all clients is seen.

    (22NG/z̄)·(Σ + NG) + NG²/p_min + 6N·p_min·Σ²/K² with Σ = Σ_i√(π²_{1:T}(i)), γ = G² and
    p_min = min(K/(2N), GK/(√6·Σ)). In the second case the last two terms are 2√6·NG·Σ/K.

    Args:
        feedback: The feedback π of every round, [T, N].
        gain: An upper bound G on every π.
        budget: The budget K.
        free: The smallest budget z̄ that was left after the clients at probability 1.

    Examples:
        >>> import numpy as np
        >>> from kvib import theory
        >>> feedback = np.array([1, 2, 3]) + 1 / np.sqrt(np.arange(1, 101))[:, None]
        >>> round(theory.full_feedback_regret(feedback, gain=4, budget=1, free=1))
        24380

    References:
        Zeng et al., "Enhanced Federated Optimization", Theorem D.1.
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
    """The expected static regret of K-Vib is bounded though only drawn clients give feedback.

    θG²N²T/K, plus the bound of full feedback with G²N/(θK), which is γ, for G². That bound is for
    the estimates π̃², whose Σ and Σ² are in the mean at most those of π (Cauchy–Schwarz).

    Args:
        feedback: The feedback π of every round, [T, N].
        gain: An upper bound G on every π.
        budget: The budget K.
        free: The smallest budget z̄ that was left after the clients at probability 1.
        mix: The share θ of uniform draws.

    Examples:
        >>> import numpy as np
        >>> from kvib import theory
        >>> feedback = np.array([1, 2, 3]) + 1 / np.sqrt(np.arange(1, 101))[:, None]
        >>> round(theory.partial_feedback_regret(feedback, gain=4, budget=1, free=1, mix=0.3))
        103080

    References:
        Zeng et al., "Enhanced Federated Optimization", Theorem 5.2, before constants are dropped.
    """
    T, N = np.shape(feedback)
    inflated = gain * math.sqrt(N / (mix * budget))
    mixing = mix * gain**2 * N**2 * T / budget
    return float(mixing + full_feedback_regret(feedback, inflated, budget, free))


def dynamic_regret_bound(
    feedback: ArrayLike, limit: ArrayLike, gain: float, budget: float, free: float, mix: float
) -> float:
    """The expected dynamic regret of K-Vib is at most the sum of two bounds.

    They are `partial_feedback_regret` and `hindsight_gap_bound`.

    Args:
        feedback: The feedback π of every round, [T, N].
        limit: What the feedback of every client converges to, π*, [N].
        gain: An upper bound G on every π.
        budget: The budget K.
        free: The smallest budget z̄ that was left after the clients at probability 1.
        mix: The share θ of uniform draws.

    Examples:
        >>> import numpy as np
        >>> from kvib import theory
        >>> feedback = np.array([1, 2, 3]) + 1 / np.sqrt(np.arange(1, 101))[:, None]
        >>> known = dict(gain=4, budget=1, free=1, mix=0.3)
        >>> round(theory.dynamic_regret_bound(feedback, [1, 2, 3], **known))
        103946

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.2.
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
    """The bound on FedAvg under K-Vib is `convergence` with K-Vib's regret for the quality.

    It stands for ρ·min_t E‖∇f(x^t)‖² and takes `dynamic_regret_bound`/T for β₁.

    The variance of a round is that of the optimum plus ℓ_t(p^t) − min ℓ_t exactly, so the regret
    takes the place of Q(S^t) in the proof. The paper uses Q ≤ regret, which need not hold.

    Args:
        feedback: The feedback π of every round, [T, N].
        limit: What the feedback of every client converges to, π*, [N].
        gain: An upper bound G on every π.
        budget: The budget K.
        free: The smallest budget z̄ that was left after the clients at probability 1.
        mix: The share θ of uniform draws. By default it is K-Vib's own, see `kvib_mix`.
        loss_gap: An upper bound M on f(x⁰) − f(x^∞).
        smoothness: The smoothness constant L.
        local_variance: The bound σ_l² on the variance of local gradients.
        global_variance: The bound σ_g² on the variance between clients.
        local_steps: The number R of local steps.
        utility: The mean β₂ of γ^t over all rounds, see `sampling_utility`.

    Examples:
        >>> import numpy as np
        >>> from kvib import theory
        >>> feedback = np.array([1, 2, 3]) + 1 / np.sqrt(np.arange(1, 101))[:, None]
        >>> noise = dict(local_variance=0.1, global_variance=0.1, local_steps=5)
        >>> options = dict(loss_gap=1.0, smoothness=1.0, utility=1.0, **noise)
        >>> known = dict(gain=4, budget=1, free=1)
        >>> round(theory.kvib_convergence(feedback, [1, 2, 3], **known, **options), 3)
        9.297

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.3.
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
    """K-Vib's sampling adds this to ρ·min_t E‖∇f(x^t)‖², in the first order of T.

    √(8·max(1, L)·c)·NG·(M^¾·N^¼/(TK))^⅔ with c = 1 + 22K/z̄ + 2√6. The paper writes
    O((M^¾·N^¼/(TK))^⅔). NG is the largest ‖g‖ where weights are equal.

    Args:
        rounds: The number of rounds T.
        clients: The number of clients N.
        budget: The budget K.
        gain: An upper bound G on every π.
        free: The smallest budget z̄ that was left after the clients at probability 1.
        loss_gap: An upper bound M on f(x⁰) − f(x^∞).
        smoothness: The smoothness constant L.

    Examples:
        >>> from kvib import theory
        >>> options = dict(rounds=500, clients=100, gain=0.01, loss_gap=1.0, smoothness=1.0)
        >>> once = theory.kvib_rate(budget=10, free=10, **options)
        >>> twice = theory.kvib_rate(budget=20, free=20, **options)
        >>> round(twice / once, 3)  # twice the budget: 2^−⅔
        0.63

    References:
        Zeng et al., "Enhanced Federated Optimization", Section 5.3.
    """
    constant = 1 + 22 * budget / free + 2 * math.sqrt(6)
    rate = (loss_gap**0.75 * clients**0.25 / (rounds * budget)) ** (2 / 3)
    return float(math.sqrt(8 * max(1.0, smoothness) * constant) * clients * gain * rate)


def kvib_mix(clients: int, budget: float, rounds: int) -> float:
    """The share of uniform draws that K-Vib mixes in falls with the number of rounds.

    θ = min(1, (N/(TK))^⅓). The paper forgets the 1, which N = 3400, K = 10, T = 100 needs.

    Args:
        clients: The number of clients N.
        budget: The budget K.
        rounds: The number of rounds T.

    Examples:
        >>> from kvib import theory
        >>> round(theory.kvib_mix(100, 10, 500), 4)
        0.2714
        >>> theory.kvib_mix(3400, 10, 100)
        1.0

    References:
        Zeng et al., "Enhanced Federated Optimization", Theorem 5.2.
    """
    return float(min(1.0, (clients / (rounds * budget)) ** (1 / 3)))


__getattr__ = renamed(
    __name__,
    {
        "dynamic_regret": "dynamic_regret_bound",
        "hindsight_gap": "hindsight_gap_bound",
        "restricted_cost": "restricted_sampling_cost",
    },
)

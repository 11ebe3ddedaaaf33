"""Measures and bounds."""

import math

import numpy as np
import pytest

import kvib
from kvib import metrics, theory


def convergent_feedback(clients, rounds, seed):
    """π_t = π* + O(1/√t) (Assumption 5.1)."""
    rng = np.random.default_rng(seed)
    limit = rng.lognormal(-1, 1, clients)
    start = rng.uniform(-0.5, 2, clients) * limit
    t = np.arange(1, rounds + 1)[:, None]
    return limit + start / np.sqrt(t), limit


def run(policy, feedback, budget, seed, procedure=None):
    """Expected counts of every round, [T, N], of a policy on this feedback."""
    sampler = kvib.Sampler(policy, np.ones(feedback.shape[1]), budget, procedure, seed=seed)
    expected = []
    for pi in feedback:
        norms = pi / sampler.weights
        expected.append(sampler.probabilities())
        cohort = sampler.draw()
        sampler.update(cohort, norms[cohort.ids])
    return np.array(expected)


def test_regret_of_kvib_stays_under_the_bound_and_falls_with_the_budget():
    N, T = 60, 400
    feedback, _ = convergent_feedback(N, T, seed=0)
    gain = feedback.max()
    regret = []
    for K in (3, 6, 12, 24):
        policy = kvib.KVib(rounds=T, gain=gain)
        static, dynamic = [], []
        for seed in range(5):
            p = run(policy, feedback, K, seed)
            static.append(metrics.static_regret(p, feedback, K))
            dynamic.append(metrics.dynamic_regret(p, feedback, K))
        free = K - (p >= 1 - 1e-12).sum(axis=1).max()
        mix = theory.kvib_mix(N, K, T)
        bound = theory.partial_feedback_regret(feedback, gain, K, max(free, 1), mix)
        assert np.mean(static) <= bound
        gap = metrics.hindsight_gap(feedback, K)
        assert np.mean(dynamic) == pytest.approx(np.mean(static) + gap)
        regret.append(np.mean(dynamic))
    assert regret == sorted(regret, reverse=True)
    assert regret[-1] < regret[0] / 4  # 8 times the budget


def test_kvib_learns():
    """Where clients differ, its cost falls below uniform's and towards the best fixed p."""
    feedback, _ = convergent_feedback(60, 400, seed=1)
    K = 6
    p = run(kvib.KVib(rounds=400), feedback, K, seed=0)
    uniform = metrics.dynamic_regret(np.full(60, K / 60), feedback, K)
    assert metrics.dynamic_regret(p, feedback, K) < 0.7 * uniform
    late = [metrics.cost(e, pi) for e, pi in zip(p[300:], feedback[300:], strict=True)]
    best = [metrics.optimal_cost(pi, K) for pi in feedback[300:]]
    assert sum(late) < 1.25 * sum(best)


def test_full_feedback_bound():
    """FTRL with all feedback seen and γ = G²."""
    N, T, K = 30, 200, 5
    feedback, _ = convergent_feedback(N, T, seed=2)
    gain = feedback.max()
    cost, expected = np.zeros(N), []
    for pi in feedback:
        expected.append(kvib.waterfill(np.sqrt(cost + gain**2), K))
        cost += pi**2
    free = K - (np.array(expected) >= 1 - 1e-12).sum(axis=1).max()
    regret = metrics.static_regret(expected, feedback, K)
    assert regret <= theory.full_feedback_regret(feedback, gain, K, free)


def test_hindsight_bound():
    """Where nobody reaches probability 1 and feedback converges from above."""
    rng = np.random.default_rng(3)
    limit = rng.uniform(1, 2, 40)
    t = np.arange(1, 301)[:, None]
    feedback = limit + rng.uniform(0, 1, 40) / np.sqrt(t)
    for K in (2, 5, 10):
        gap = metrics.hindsight_gap(feedback, K)
        assert 0 <= gap <= theory.hindsight_gap(feedback, limit, K)


def test_convergence_bound():
    common = {
        "loss_gap": 2.0,
        "smoothness": 3.0,
        "local_variance": 4.0,
        "global_variance": 0.5,
        "local_steps": 2,
        "quality": 0.1,
        "utility": 1.5,
    }
    T, sigma = 100, 4 / 2 + 6 * 0.5
    want = math.sqrt(2 * 2 * (4 * 3 * 0.1 + 5 * 3 * sigma) / T)
    want += (5 * sigma * 1.5) ** (1 / 3) * (2 * 2 / T) ** (2 / 3) + 16 * 3 * 2 / T
    assert theory.convergence(rounds=T, **common) == pytest.approx(want)
    better = theory.convergence(rounds=T, **{**common, "quality": 0.0})
    assert better < want
    assert theory.convergence(rounds=10_000, **common) < want / 9


def test_tuned_step_is_a_bound():
    rng = np.random.default_rng(4)
    for r0, b, e, d in rng.lognormal(0, 2, (200, 4)):
        eta = np.logspace(-8, np.log10(1 / d), 4000)
        best = (r0 / (eta * 50) + b * eta + e * eta**2).min()
        assert best <= theory.tuned_step(r0, b, e, d, 50) * (1 + 1e-9)


def test_sampling_utility():
    assert theory.sampling_utility(100, 10, 0.02, 0.0) == pytest.approx(2.0)
    assert theory.sampling_utility(100, 10, 0.02, 1.0) == pytest.approx(2.0 + 9 * 0.02)


def test_theta_is_clipped():
    assert theory.kvib_mix(3400, 10, 100) == 1.0
    assert theory.kvib_mix(100, 10, 500) == pytest.approx(0.02 ** (1 / 3))


def test_uniform_without_replacement_against_independent():
    """It varies less exactly when ‖D‖² > Σπ²."""
    rng = np.random.default_rng(5)
    N, K = 8, 3
    p = np.full(N, K / N)
    for shift in (0.0, 0.1, 0.3, 1.0, 3.0):
        x = rng.normal(size=(N, 4)) + shift
        gram = x @ x.T / N**2
        independent = metrics.variance(p, gram=gram).value
        fixed = metrics.variance(p, procedure=kvib.without_replacement, gram=gram).value
        by_hand = (N - K) / (N - 1) * (N / K * np.trace(gram) - gram.sum() / K)
        assert fixed == pytest.approx(by_hand)
        assert (fixed < independent) == (gram.sum() > np.trace(gram))


def test_with_replacement_variance():
    pi, q, K = np.array([1.0, 2.0, 4.0]), np.array([0.2, 0.3, 0.5]), 3
    value = metrics.variance(K * q, pi, kvib.with_replacement, total=5.0).value
    assert value == pytest.approx(((pi**2 / q).sum() - 5.0) / K)


def test_optimal_probabilities_beat_others():
    rng = np.random.default_rng(6)
    pi = rng.lognormal(0, 2, 20)
    best = metrics.optimal_cost(pi, 5)
    for _ in range(200):
        p = kvib.waterfill(pi * rng.lognormal(0, 0.5, 20), 5)
        assert metrics.cost(p, pi) >= best * (1 - 1e-12)
    assert metrics.optimal_probabilities([0, 0, 3, 4], 3).tolist() == [0.5, 0.5, 1, 1]
    assert metrics.optimal_probabilities([1, 2], 2).tolist() == [1, 1]


def test_quality_and_optimal_factor():
    pi = np.array([1.0, 3.0, 6.0])
    best = metrics.optimal_probabilities(pi, 2)
    assert metrics.quality(best, pi, 2) == 0
    p = np.full(3, 2 / 3)
    by_hand = abs(1.5 - 4) + 9 * abs(1.5 - 4 / 3) + 36 * abs(1.5 - 1)
    assert metrics.quality(p, pi, 2) == pytest.approx(by_hand)
    assert metrics.optimal_factor(pi, 2) == pytest.approx(6 / (0.5 * 46))
    assert metrics.optimal_factor(np.ones(5), 2) == pytest.approx(1)
    assert metrics.optimal_factor(pi, 3) == 1.0  # nothing varies


def test_probability_zero_costs_everything():
    assert metrics.variance([0, 1], [1, 1]).value == math.inf
    assert metrics.cost([0, 1], [1, 1]) == math.inf
    assert metrics.quality([0, 1], [1, 1], 1) == math.inf
    assert metrics.variance([0, 1], [0, 1]).value == 0
    assert metrics.cost([0, 1], [0, 2]) == 4


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match="give the feedback"):
        metrics.variance([0.5])
    with pytest.raises(ValueError, match="2 expected counts, but updates of 3"):
        metrics.variance([0.5, 0.5], [1, 1, 1])
    with pytest.raises(ValueError, match="the same probability"):
        metrics.variance([0.2, 0.8, 1.0], [1, 1, 1], kvib.without_replacement, total=3)
    with pytest.raises(ValueError, match="give gram="):
        metrics.variance([0.5, 0.5], [1, 1], kvib.pivotal)
    with pytest.raises(ValueError, match="nobody knows the joint probabilities of pivotal"):
        metrics.joint([0.5, 0.5], kvib.pivotal)
    with pytest.raises(ValueError, match="give rng="):
        metrics.variance([0.5, 0.5], procedure=kvib.pivotal, gram=np.eye(2))
    with pytest.raises(ValueError, match="one row per round"):
        metrics.dynamic_regret([0.5], [1], 1)

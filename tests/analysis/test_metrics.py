"""Measures and bounds."""

import itertools
import math

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.analysis import metrics, theory


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


def test_regret_of_kvib_stays_under_the_bound():
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
    late = [metrics.sampling_cost(e, pi) for e, pi in zip(p[300:], feedback[300:], strict=True)]
    best = [metrics.optimal_sampling_cost(pi, K) for pi in feedback[300:]]
    assert sum(late) < 1.25 * sum(best)


def test_dynamic_regret_of_kvib_stays_under_the_combined_bound():
    """Feedback that converges from above, nobody at probability 1; mean of five runs."""
    rng = np.random.default_rng(8)
    N, T = 40, 200
    limit = rng.uniform(1, 2, N)
    feedback = limit + rng.uniform(0, 1, N) / np.sqrt(np.arange(1, T + 1))[:, None]
    gain = feedback.max()
    for K in (2, 5, 10):
        policy, mix = kvib.KVib(rounds=T, gain=gain), theory.kvib_mix(N, K, T)
        runs = [run(policy, feedback, K, seed) for seed in range(5)]
        assert max(p.max() for p in runs) < 1
        regret = np.mean([metrics.dynamic_regret(p, feedback, K) for p in runs])
        bound = theory.dynamic_regret_bound(feedback, limit, gain, K, K, mix)
        static = theory.partial_feedback_regret(feedback, gain, K, K, mix)
        assert 0 < regret <= bound
        assert bound == pytest.approx(static + theory.hindsight_gap_bound(feedback, limit, K))


@pytest.mark.parametrize("pi", [[1.0, 1.0, 1.0], [1.0, 0.1, 0.01], [0.3, 0.2, 0.0]])
def test_the_bound_of_partial_feedback_holds_in_the_mean(pi):
    """Every outcome of two rounds: the bound of full feedback for the estimates π̃² is in the mean
    at most the one for π, which the partial bound takes."""
    N, K, gain, mix = 3, 1, 1.0, 0.5
    feedback, floor = np.tile(pi, (2, 1)), mix * K / N

    def estimates(rng):
        drawn = np.array([[rng.random() < floor for _ in row] for row in feedback])
        return np.sqrt(feedback**2 / floor * drawn)

    inflated = gain * math.sqrt(N / (mix * K))
    mean = sum(
        probability * theory.full_feedback_regret(seen, inflated, K, K)
        for probability, seen in outcomes(estimates)
    )
    mixing = mix * gain**2 * N**2 * len(feedback) / K
    assert mixing + mean <= theory.partial_feedback_regret(feedback, gain, K, K, mix)


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
        assert 0 <= gap <= theory.hindsight_gap_bound(feedback, limit, K)


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


CONVERGENCE = {
    "loss_gap": 2.0,
    "smoothness": 0.5,
    "local_variance": 0.0,
    "global_variance": 0.0,
    "local_steps": 2,
    "utility": 1.5,
}


def test_convergence_under_kvib():
    """Theorem 4.1 with the regret of K-Vib for β₁."""
    feedback, limit = convergent_feedback(20, 100, seed=9)
    options = {"gain": feedback.max(), "budget": 4.0, "free": 3.0}
    got = theory.kvib_convergence(feedback, limit, **options, **CONVERGENCE)
    mix = theory.kvib_mix(20, 4, 100)
    quality = theory.dynamic_regret_bound(feedback, limit, **options, mix=mix) / 100
    assert got == theory.convergence(rounds=100, quality=quality, **CONVERGENCE)
    other = theory.kvib_convergence(feedback, limit, **options, mix=0.9, **CONVERGENCE)
    assert other != got


def test_the_rate_is_the_first_order_of_the_bound():
    """Feedback that is always G has no gap between fixed and changing p; without local and global
    variance 16LM/T is all that is left beside the sampling. The share of lower orders falls as
    T^−⅓."""
    N, K, gain, excess = 3, 2, 0.2, []
    for T in (10**3, 10**6):
        feedback, limit = np.full((T, N), gain), np.full(N, gain)
        options = {"gain": gain, "budget": K, "free": K}
        whole = theory.kvib_convergence(feedback, limit, **options, **CONVERGENCE)
        sampling = whole - 16 * CONVERGENCE["smoothness"] * CONVERGENCE["loss_gap"] / T
        gap, smoothness = CONVERGENCE["loss_gap"], CONVERGENCE["smoothness"]
        first = theory.kvib_rate(
            rounds=T, clients=N, **options, loss_gap=gap, smoothness=smoothness
        )
        excess.append(sampling / first - 1)
    assert 0 < excess[1] < 0.02
    assert excess[1] == pytest.approx(excess[0] / 10, rel=0.2)


def test_the_combined_rate_is_that_of_the_paper():
    """(M^¾·N^¼/(TK))^⅔ where the largest ‖g‖ = NG stays."""
    at = {"rounds": 500, "clients": 100, "budget": 10, "free": 10, "gain": 0.01}
    at |= {"loss_gap": 2.0, "smoothness": 0.5}
    base = theory.kvib_rate(**at)
    for changes, power in (
        ({"rounds": 4000}, 8 ** (-2 / 3)),
        ({"budget": 80, "free": 80}, 8 ** (-2 / 3)),
        ({"loss_gap": 32.0}, 16**0.5),
        ({"clients": 6400, "gain": 0.01 / 64}, 64 ** (1 / 6)),
        ({"smoothness": 4.0}, 2.0),
    ):
        assert theory.kvib_rate(**{**at, **changes}) / base == pytest.approx(power)


def draws_of(procedure, p):
    """Every outcome of the real draw, as counts, with its probability."""
    return list(outcomes(lambda rng: procedure.draw(p, rng)))


def joint_of(draws):
    """E[n_i n_j]."""
    return sum(probability * np.outer(n, n) for probability, n in draws)


DESIGNS = [
    (kvib.independent, [0.2, 0.4, 0.5, 0.9, 1.0]),
    (kvib.pivotal, [0.2, 0.4, 0.5, 0.9, 1.0]),
    (kvib.pivotal, [0.3, 0.6, 0.4, 0.2, 0.7]),
    (kvib.conditional_poisson, [0.2, 0.4, 0.5, 0.9, 1.0]),
    (kvib.without_replacement, [0.4] * 5),
]


@pytest.mark.parametrize(("procedure", "p"), DESIGNS)
def test_variance_of_any_design(procedure, p):
    """All outcomes: the bound holds for every direction of updates, with the general factors
    N(1 − p) and with those of the design."""
    p, N = np.array(p), 5
    draws = draws_of(procedure, p)
    joint = joint_of(draws)
    assert np.diag(joint) == pytest.approx(p)
    factors = theory.design_factors(joint)
    gap = np.diag(p * factors) - (joint - np.outer(p, p))
    assert np.linalg.eigvalsh(gap).min() >= -1e-12
    assert (factors >= (1 - p) * (1 - 1e-12)).all()
    assert (factors <= N * (1 - p) + 1e-12).all()
    rng, tightest = np.random.default_rng(10), np.inf
    for direction in (np.ones(3), *rng.normal(size=(20, 3))):  # common, then mixed
        g = direction + rng.normal(size=(N, 3)) * rng.uniform(0, 2)
        pi = np.linalg.norm(g, axis=1)
        truth = sum(w * np.sum(((n / p - 1) @ g) ** 2) for w, n in draws)
        own, general = (theory.sampling_variance(p, pi, v) for v in (factors, None))
        assert truth <= own * (1 + 1e-12) <= general * (1 + 1e-9)
        tightest = min(tightest, own / truth)
    if procedure is kvib.independent:
        assert tightest == pytest.approx(1)


def test_the_general_variance_bound_cannot_be_improved():
    """A coin that draws all clients or none, the same update for all: Lemma B.3 is an equality."""
    N, q, g = 4, 0.3, 2.0
    truth = q * (N * g / q - N * g) ** 2 + (1 - q) * (N * g) ** 2
    assert theory.sampling_variance([q] * N, [g] * N) == pytest.approx(truth)
    assert theory.design_factors(np.full((N, N), q)) == pytest.approx([N * (1 - q)] * N)


def test_factors_of_the_paper():
    """1 − p for independent draws, (N − K)/(N − 1) for uniform ones without replacement."""
    p = np.array([0.1, 0.5, 1.0])
    assert theory.design_factors(metrics.joint(p, kvib.independent)) == pytest.approx(1 - p)
    own = theory.sampling_variance(p, [3, 2, 1], 1 - p)
    assert own == pytest.approx(metrics.variance(p, [3, 2, 1]).value)
    for N, K in ((5, 2), (6, 5), (4, 1)):
        joint = metrics.joint([K / N] * N, kvib.without_replacement)
        assert theory.design_factors(joint) == pytest.approx([(N - K) / (N - 1)] * N)
    assert theory.design_factors(np.ones((3, 3))).tolist() == [0, 0, 0]


def grid(N, K, least):
    """Probabilities with sum K on a fine grid, all from `least` to 1."""
    steps = np.linspace(least, 1, 200)
    rest = np.stack(np.meshgrid(*[steps] * (N - 1), indexing="ij"), axis=-1).reshape(-1, N - 1)
    last = K - rest.sum(axis=1)
    fits = (last >= least) & (last <= 1)
    return np.column_stack([rest[fits], last[fits]])


def test_the_least_cost_with_a_least_probability():
    """Lemma B.8 against a grid of all probabilities, and its two ends."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        pi, K = rng.lognormal(0, 1, 3), rng.uniform(0.5, 2.5)
        least = rng.uniform(0, K / 3)
        got = theory.restricted_sampling_cost(pi, K, least)
        found = (pi**2 / grid(3, K, least)).sum(axis=1).min()
        assert got <= found * (1 + 1e-12)
        assert got == pytest.approx(found, rel=0.02)
        assert theory.restricted_sampling_cost(pi, K, 0) == pytest.approx(
            metrics.optimal_sampling_cost(pi, K)
        )
        assert theory.restricted_sampling_cost(pi, K, K / 3) == pytest.approx((pi**2).sum() * 3 / K)
    assert theory.restricted_sampling_cost([0, 0, 3, 4], 3, 0.2) == 25
    assert theory.restricted_sampling_cost([0, 0, 3, 4], 3, 0) == metrics.optimal_sampling_cost(
        [0, 0, 3, 4], 3
    )


def test_the_bound_with_a_least_probability():
    """Corollary B.10 holds, is the minimum itself where p_min = 0, and grows without limit."""
    rng, seen = np.random.default_rng(12), 0
    for _ in range(2000):
        N = int(rng.integers(2, 30))
        pi, K = rng.lognormal(0, 1, N), rng.uniform(0.1, N)
        if K * pi.max() > pi.sum():
            continue
        seen += 1
        least = rng.uniform(0, 0.999 * K / N)
        cost = theory.restricted_sampling_cost(pi, K, least)
        assert metrics.optimal_sampling_cost(pi, K) <= cost * (1 + 1e-12)
        assert cost <= theory.restricted_bound(pi, K, least) * (1 + 1e-12)
        assert theory.restricted_bound(pi, K, 0) == pytest.approx(
            metrics.optimal_sampling_cost(pi, K)
        )
        half = theory.restricted_bound(pi, K, K / (2 * N)) - theory.restricted_bound(pi, K, 0)
        assert half <= 6 * N * (K / (2 * N)) * pi.sum() ** 2 / K**2 * (1 + 1e-12)  # term (B)
    assert seen > 500


def test_bounds_say_where_they_do_not_hold():
    with pytest.raises(ValueError, match="reaches probability 1; ask restricted_sampling_cost"):
        theory.restricted_bound([1, 1, 10], 2, 0.1)
    assert theory.restricted_sampling_cost([1, 1, 10], 2, 0.1) == pytest.approx(
        104
    )  # the formula: 99.7
    for bad in (-0.1, 0.5):
        with pytest.raises(ValueError, match=r"does not fit a budget of 1 for 3 clients; give one"):
            theory.restricted_sampling_cost([1, 1, 1], 1, bad)
    with pytest.raises(ValueError, match=r"from 0 to 0\.5"):
        theory.restricted_bound([1, 1], 1, 0.5)
    for bad in ([0.0, 0.5], [0.5, 1.5]):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            theory.sampling_variance(bad, [1, 1])
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            theory.design_factors(np.diag(bad))


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
    best = metrics.optimal_sampling_cost(pi, 5)
    for _ in range(200):
        p = kvib.waterfill(pi * rng.lognormal(0, 0.5, 20), 5)
        assert metrics.sampling_cost(p, pi) >= best * (1 - 1e-12)
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
    assert metrics.sampling_cost([0, 1], [1, 1]) == math.inf
    assert metrics.quality([0, 1], [1, 1], 1) == math.inf
    assert metrics.variance([0, 1], [0, 1]).value == 0
    assert metrics.sampling_cost([0, 1], [0, 2]) == 4


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


# Stragglers


Q, AWAY = np.array([0.5, 0.9, 0.3, 0.7]), np.array([0.8, 0.4, 1.0, 0.6])
UPDATES = np.random.default_rng(8).normal(size=(4, 3)) * np.array([[1.0], [3.0], [0.5], [2.0]])
"""λg of four clients."""
CLOSED = (kvib.independent, kvib.with_replacement, kvib.conditional_poisson)


def coins(rates):
    """(probability, heads) of every toss of these coins."""
    for heads in itertools.product((False, True), repeat=len(rates)):
        came = np.array(heads, dtype=bool)
        yield float(np.prod(np.where(came, rates, 1 - rates))), came


def counts(expected, procedure):
    """(probability, counts) of every draw."""
    for probability, n in outcomes(lambda rng: procedure.draw(expected, rng)):
        yield probability, np.asarray(n)


def second_moment(estimates, full):
    """E‖d − D‖² of (probability, d), whose mean must be D."""
    chance, d = np.array([p for p, _ in estimates]), np.array([d for _, d in estimates])
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    assert chance @ d == pytest.approx(full, abs=1e-10)
    return chance @ ((d - full) ** 2).sum(axis=1)


def heard(expected, procedure, updates, response):
    """(probability, Σ n·λg/(q·e) of those who answered) of every draw and every silence."""
    for chance, n in counts(expected, procedure):
        for silence, came in coins(response):
            yield chance * silence, (n * came / (response * expected)) @ updates


@pytest.mark.parametrize("expected", [[0.25, 0.75, 1.0, 0.5], [0.4, 0.4, 0.4, 0.4]])
@pytest.mark.parametrize("procedure", [*CLOSED, kvib.without_replacement, kvib.pivotal], ids=repr)
def test_variance_with_silence_over_every_outcome(procedure, expected):
    """Draws times silences; the size of the second design is not a whole number."""
    e = np.array(expected)
    if procedure is kvib.without_replacement and np.ptp(e) > 0:
        e = np.full(4, 0.5)
    estimates = list(heard(e, procedure, UPDATES, Q))
    wanted = second_moment(estimates, UPDATES.sum(axis=0))
    gram, rng = UPDATES @ UPDATES.T, np.random.default_rng(0)
    for given in ({"gram": gram}, {"total": gram.sum(), "feedback": np.sqrt(np.diag(gram))}):
        if "gram" not in given and procedure in (kvib.conditional_poisson, kvib.pivotal):
            continue
        found = metrics.variance(e, procedure=procedure, response=Q, rng=rng, **given)
        assert found.value == pytest.approx(wanted, abs=1e-10 + 5.5 * found.error)
        assert (found.error > 0) == (procedure is kvib.pivotal)


@pytest.mark.parametrize("procedure", [*CLOSED, kvib.pivotal], ids=repr)
def test_variance_with_silence_and_absence_over_every_outcome(procedure):
    """Clients at hand times draws times silences: the mean of what is measured, given who is there,
    and what absence adds, is the variance."""
    estimates, measured, error = [], 0.0, 0.0
    for chance, there in coins(AWAY):
        at = np.flatnonzero(there)
        if not len(at):
            estimates.append((chance, np.zeros(3)))
            continue
        present = UPDATES[at] / AWAY[at, None]
        e = kvib.waterfill(np.linalg.norm(present, axis=1), min(2, len(at)))
        estimates += [(chance * p, d) for p, d in heard(e, procedure, present, Q[at])]
        found = metrics.variance(
            e,
            procedure=procedure,
            gram=present @ present.T,
            response=Q[at],
            rng=np.random.default_rng(1),
        )
        measured, error = measured + chance * found.value, error + (chance * found.error) ** 2
    wanted = second_moment(estimates, UPDATES.sum(axis=0))
    measured += metrics.absence(np.linalg.norm(UPDATES, axis=1), AWAY)
    assert measured == pytest.approx(wanted, abs=1e-10 + 5.5 * math.sqrt(error))


def test_absence_without_a_cool_down():
    """Where everybody is drawn with the same p whoever is there, it is all one probability."""
    pi, p = np.linalg.norm(UPDATES, axis=1), np.array([0.25, 0.75, 1.0, 0.5])
    given = [
        (chance, metrics.variance(p[there], (pi / AWAY)[there], response=Q[there]).value)
        for chance, there in coins(AWAY)
        if there.any()
    ]
    mean = sum(chance * value for chance, value in given) + metrics.absence(pi, AWAY)
    assert mean == pytest.approx(metrics.variance(p, pi, response=AWAY * Q).value, abs=1e-10)
    cost = sum(
        chance * metrics.sampling_cost(p[there], (pi / AWAY)[there], Q[there])
        for chance, there in coins(AWAY)
    )
    assert cost == pytest.approx((pi**2 / (AWAY * Q * p)).sum())  # the paper's objective


def test_the_regret_of_the_appendix_on_stragglers():
    feedback, _ = convergent_feedback(4, 30, seed=3)
    rng, K = np.random.default_rng(2), 2
    p = np.array([kvib.waterfill(rng.lognormal(0, 1, 4), K) for _ in feedback])
    best = np.array([kvib.waterfill(pi / np.sqrt(Q), K) for pi in feedback])
    by_hand = (feedback**2 / (Q * p)).sum() - (feedback**2 / (Q * best)).sum()
    assert metrics.dynamic_regret(p, feedback, K, Q) == pytest.approx(by_hand)
    every_round = np.broadcast_to(Q, feedback.shape)
    assert metrics.dynamic_regret(p, feedback, K, every_round) == pytest.approx(by_hand)
    fixed = kvib.waterfill(np.sqrt((feedback**2).sum(axis=0) / Q), K)
    assert metrics.best_fixed(feedback, K, Q) == pytest.approx(fixed)
    static = (feedback**2 / (Q * p)).sum() - (feedback**2 / (Q * fixed)).sum()
    assert metrics.static_regret(p, feedback, K, Q) == pytest.approx(static)
    assert metrics.hindsight_gap(feedback, K, Q) == pytest.approx(by_hand - static)
    assert metrics.dynamic_regret(p, feedback, K, 0.5) == pytest.approx(
        2 * metrics.dynamic_regret(p, feedback, K)
    )


def test_best_probabilities_where_clients_are_silent_or_dear():
    rng, K = np.random.default_rng(9), 5
    pi, q, price = rng.lognormal(0, 2, 20), rng.uniform(0.1, 1, 20), rng.uniform(0.2, 3, 20)
    for c in (None, price):
        best = metrics.optimal_probabilities(pi, K, q, c)
        spent = best.sum() if c is None else c @ best
        assert spent == pytest.approx(K)
        assert metrics.sampling_cost(best, pi, q) == pytest.approx(
            metrics.optimal_sampling_cost(pi, K, q, c)
        )
        assert metrics.quality(best, pi, K, q, c) == pytest.approx(0, abs=1e-9)
        for _ in range(200):
            p = kvib.waterfill(pi * rng.lognormal(0, 0.5, 20), K, cost=c)
            assert metrics.sampling_cost(p, pi, q) >= metrics.optimal_sampling_cost(pi, K, q, c) * (
                1 - 1e-12
            )
            assert metrics.quality(p, pi, K, q, c) > 0
        assert 0 < metrics.optimal_factor(pi, K, q, c) < 1
    left_over = metrics.optimal_probabilities([0, 0, 3, 4], 3, price=[1, 1, 1, 1.5])
    assert left_over.tolist() == [0.25, 0.25, 1, 1]


def test_response_that_is_no_probability():
    for wrong in (0.0, 1.1, -0.5, math.nan):
        with pytest.raises(ValueError, match="response must be above 0 and at most 1"):
            metrics.variance([0.5, 0.5], [1, 1], response=wrong)
        with pytest.raises(ValueError, match="response must be above 0 and at most 1"):
            metrics.sampling_cost([0.5, 0.5], [1, 1], wrong)
    with pytest.raises(ValueError, match=r"response has shape \(3,\) for 2 clients"):
        metrics.variance([0.5, 0.5], [1, 1], response=[1, 1, 1])
    with pytest.raises(ValueError, match="availability must be above 0"):
        metrics.absence([1, 1], [0.5, 0])

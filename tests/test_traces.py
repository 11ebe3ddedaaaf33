"""Three rounds of every learning policy, by hand: plain arithmetic, none of the code under test.

N = 4 clients of equal weight ¼, K = 2, T = 64. The cohorts and norms are given; the expected counts
before each round are computed twice.
"""

import math

import numpy as np
import pytest

import kvib

N, K, T = 4, 2, 64
# (ids, counts, norms) of three rounds
ROUNDS = [
    ([0, 2], [1, 1], [2.0, 4.0]),
    ([1, 2], [1, 1], [1.0, 6.0]),
    ([2, 3], [1, 1], [8.0, 1.0]),
]
REPEATS = [
    ([0, 2], [1, 1], [2.0, 4.0]),
    ([2], [2], [6.0]),
    ([2, 3], [1, 1], [8.0, 1.0]),
]


def follow(policy, procedure, rounds):
    """Expected counts before each round and after the last, when these cohorts come."""
    sampler = kvib.Sampler(policy, np.ones(N), K, procedure)
    seen = []
    for ids, count, norms in rounds:
        seen.append(sampler.probabilities())
        drawn = sampler.draw()
        cohort = kvib.Cohort(
            ids=ids,
            count=count,
            expected=seen[-1][ids],
            weight=np.full(len(ids), 0.25),
            round=drawn.round,
            budget=K,
            token=drawn.token,
        )
        sampler._learn(cohort, np.array(norms))  # `update` takes the cohort that was drawn alone
    return [*seen, sampler.probabilities()]


def capped(scores, budget):
    """p = min(1, c·score) with sum `budget`, by trying how many of the largest are 1."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    for at_one in range(len(scores)):
        rest = order[at_one:]
        c = (budget - at_one) / sum(scores[i] for i in rest)
        if c * scores[rest[0]] <= 1:
            return [1.0 if i in order[:at_one] else c * scores[i] for i in range(len(scores))]
    raise AssertionError


def floored(weights, floor):
    """q = max(floor, c·weight) with sum 1, by trying how many of the smallest are at the floor."""
    order = sorted(range(len(weights)), key=lambda i: weights[i])
    for at_floor in range(len(weights)):
        rest = order[at_floor:]
        c = (1 - at_floor * floor) / sum(weights[i] for i in rest)
        if c * weights[rest[0]] >= floor:
            return [floor if i in order[:at_floor] else c * weights[i] for i in range(len(weights))]
    raise AssertionError


def test_kvib():
    theta = (N / (T * K)) ** (1 / 3)  # 0.31498…
    gamma = ((0.25 * 2 + 0.25 * 4) / 2) ** 2 * N / (K * theta)  # G = .75
    omega = [0.0] * 4
    expected = [[0.5] * 4]
    for ids, _, norms in ROUNDS:
        p = expected[-1]
        for i, norm in zip(ids, norms, strict=True):
            omega[i] += (0.25 * norm) ** 2 / p[i]
        q = capped([math.sqrt(w + gamma) for w in omega], K)
        expected.append([(1 - theta) * x + theta * K / N for x in q])
    for got, want in zip(follow(kvib.KVib(rounds=T), None, ROUNDS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)
    assert expected[-1][2] > expected[-1][3]


def test_kvib_by_hand_to_the_digit():
    """θ = ½, γ = 1: round 1 adds (½)²/½ = ½ to ω₀ and 1²/½ = 2 to ω₂."""
    got = follow(kvib.KVib(mix=0.5, gamma=1.0), None, ROUNDS)
    s = [math.sqrt(1.5), 1.0, math.sqrt(3.0), 1.0]
    total = sum(s)
    assert got[1] == pytest.approx([0.25 + x / total for x in s], rel=1e-14)


def test_vrb():
    theta = (N / T) ** (1 / 3)
    gamma = 0.75**2 * N / theta
    omega = [0.0] * 4
    expected = [[0.5] * 4]
    for ids, counts, norms in REPEATS:
        q = [x / K for x in expected[-1]]
        for i, count, norm in zip(ids, counts, norms, strict=True):
            for _ in range(count):  # every draw adds, repeats too
                omega[i] += (0.25 * norm) ** 2 / q[i]
        s = [math.sqrt(w + gamma) for w in omega]
        expected.append([K * ((1 - theta) * x / sum(s) + theta / N) for x in s])
    for got, want in zip(follow(kvib.Vrb(rounds=T), None, REPEATS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_vrb_mixes_less_when_there_are_more_clients_than_rounds():
    few = kvib.Sampler(kvib.Vrb(rounds=3), np.ones(N), K)
    assert few.policy.exploration(few._learner.state, 0).mix == 0.3
    unknown = kvib.Sampler(kvib.Vrb(), np.ones(64), K)
    mixes = [unknown.policy.exploration(unknown._learner.state, r).mix for r in (0, 40, 100, 8191)]
    assert mixes == pytest.approx([0.3, 0.3, 0.3, (64 / 8192) ** (1 / 3)])


def test_mabs():
    eta = 0.4
    delta = eta**2 * math.sqrt(math.log(N) / (T * N**5)) / 0.75**2
    w = [1.0] * 4  # the weights themselves, not their logarithms
    expected = [[0.5] * 4]
    for ids, counts, norms in REPEATS:
        q = [x / K for x in expected[-1]]
        for i, count, norm in zip(ids, counts, norms, strict=True):
            w[i] *= math.exp(delta * count * (0.25 * norm) ** 2 / q[i] ** 3)
        expected.append([K * ((1 - eta) * x / sum(w) + eta / N) for x in w])
    for got, want in zip(follow(kvib.Mabs(rounds=T), None, REPEATS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


EXPLOSIONS = [
    ([0, 2], [1, 1], [1.0, 1.0]),
    ([0, 2], [1, 1], [400.0, 300.0]),
    ([1, 3], [1, 1], [500.0, 499.9]),
    ([0, 1], [1, 1], [900.0, 2.0]),
]
"""Steps of logarithms that are hundreds and thousands: exp of them is no number."""


def check_size(steps):
    assert 1e3 < max(steps) < 1e9  # beyond what exp can say, or the test tests nothing


def test_mabs_with_steps_beyond_exp():
    """No step is cut off: of two explosions the larger one is drawn."""
    eta, gain = 0.4, 0.01
    delta = eta**2 * math.sqrt(math.log(N) / (T * N**5)) / gain**2
    log_w, steps = [0.0] * 4, []
    expected = [[0.5] * 4]
    for ids, counts, norms in EXPLOSIONS:
        q = [x / K for x in expected[-1]]
        for i, count, norm in zip(ids, counts, norms, strict=True):
            steps.append(delta * count * (0.25 * norm) ** 2 / q[i] ** 3)
            log_w[i] += steps[-1]
        w = [math.exp(x - max(log_w)) for x in log_w]
        expected.append([K * ((1 - eta) * x / sum(w) + eta / N) for x in w])
    check_size(steps)
    policy = kvib.Mabs(rounds=T, gain=gain)
    for got, want in zip(follow(policy, None, EXPLOSIONS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_mabs_while_the_heaviest_client_is_away():
    sampler = kvib.Sampler(kvib.Mabs(), np.ones(4), 2)
    log_weight = np.array([1.0, 5000.0, 0.0, -1.0])
    sampler._learner.state = sampler._learner.state._replace(log_weight=log_weight, peak=5000.0)
    w = np.exp([1.0, 0.0, -1.0])
    p = sampler.probabilities(absent=[1])
    assert p[[0, 2, 3]] == pytest.approx(2 * (0.6 * w / w.sum() + 0.4 / 3), rel=1e-12)


@pytest.mark.parametrize("mix", [0.4, 1e-12, 1e-150])
def test_mabs_stays_finite(mix):
    """Whatever feedback is taken in, and however often."""
    sampler = kvib.Sampler(kvib.Mabs(rounds=9, gain=1e-59, mix=mix), np.ones(6), 2, seed=1)
    for t in range(40):
        cohort = sampler.draw()
        sampler.update(cohort, np.where(cohort.ids % 2 == t % 2, 1e60, 0.0))
        state, p = sampler._learner.state, sampler.probabilities()
        assert np.isfinite(state.log_weight).all()
        assert state.log_weight.max() == state.peak
        assert (p > 0).all()
        assert p.sum() == pytest.approx(2)


def test_osmd_with_steps_beyond_exp():
    alpha, gain = 0.4, 0.01
    eta = K**2 * alpha**3 / (N**3 * gain**2) * math.sqrt(math.log(N) / (2 * T))
    q, steps = [0.25] * 4, []
    expected = [[0.5] * 4]
    for ids, counts, norms in EXPLOSIONS:
        raised = [math.log(x) for x in q]
        for i, count, norm in zip(ids, counts, norms, strict=True):
            steps.append(eta * count * (0.25 * norm) ** 2 / (K**2 * q[i] ** 3))
            raised[i] += steps[-1]
        q = floored([math.exp(x - max(raised)) for x in raised], alpha / N)
        expected.append([K * x for x in q])
    check_size(steps)
    policy = kvib.OSMD(rounds=T, experts=1, gain=gain)
    for got, want in zip(follow(policy, None, EXPLOSIONS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_avare():
    least = 1 / (5 * N)
    C = 1 / (1 / N - least)
    last: list[float | None] = [None] * 4
    expected = [[0.5] * 4]
    largest = 0.0
    for t, (ids, _, norms) in enumerate(ROUNDS, start=2):
        for i, norm in zip(ids, norms, strict=True):
            last[i] = 0.25 * norm
            largest = max(largest, 0.25 * norm)
        h = [largest if x is None else x for x in last]
        expected.append([K * x for x in floored(h, least + 1 / (C + (t - 1)))])
    for got, want in zip(follow(kvib.Avare(), None, ROUNDS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_osmd():
    """Plain, as published: q̂ = q·exp(η·count·π²/(K²q³)), projected on q ≥ α/N."""
    alpha, largest = 0.4, 1.0  # the largest π² of round 1 is (¼·4)²
    eta = K**2 * alpha**3 / (N**3 * largest) * math.sqrt(math.log(N) / (2 * T))
    q = [0.25] * 4
    expected = [[0.5] * 4]
    for ids, counts, norms in REPEATS:
        raised = list(q)
        for i, count, norm in zip(ids, counts, norms, strict=True):
            raised[i] *= math.exp(eta * count * (0.25 * norm) ** 2 / (K**2 * q[i] ** 3))
        q = floored(raised, alpha / N)
        expected.append([K * x for x in q])
    policy = kvib.OSMD(rounds=T, experts=1)
    for got, want in zip(follow(policy, None, REPEATS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_osmd_with_experts():
    """Experts at doubling steps, trusted by their losses, in the published terms of q."""
    alpha, largest = 0.4, 1.0
    E = math.ceil(0.5 * math.log2(1 + 4 * (T - 1) * math.log(N / alpha) / math.log(N))) + 1
    step = K**2 * alpha**3 / (N**3 * largest) * math.sqrt(math.log(N) / (2 * T))
    etas = [2**e * step for e in range(E)]
    rate = alpha / N * math.sqrt(8 * K / (T * largest))
    trust = [(1 + 1 / E) / (e * (e + 1)) for e in range(1, E + 1)]
    assert sum(trust) == pytest.approx(1)
    experts = [[0.25] * 4 for _ in range(E)]
    expected = [[0.5] * 4]
    for ids, counts, norms in REPEATS:
        mixture = [sum(w * x[i] for w, x in zip(trust, experts, strict=True)) for i in range(4)]
        for e in range(E):
            own, raised, loss = experts[e], list(experts[e]), 0.0
            for i, count, norm in zip(ids, counts, norms, strict=True):
                square = count * (0.25 * norm) ** 2 / K**2
                raised[i] *= math.exp(etas[e] * square / (own[i] ** 2 * mixture[i]))
                loss += square / (own[i] * mixture[i])
            experts[e] = floored(raised, alpha / N)
            trust[e] *= math.exp(-rate * loss)
        trust = [w / sum(trust) for w in trust]
        mixture = [sum(w * x[i] for w, x in zip(trust, experts, strict=True)) for i in range(4)]
        expected.append([K * x for x in mixture])
    for got, want in zip(follow(kvib.OSMD(rounds=T), None, REPEATS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_osmd_with_independent_draws():
    """p̂ = p·exp(η·π²/p³), p = clip(c·p̂, αK/N, 1), which the paper suggests and nobody built."""
    alpha, largest = 0.4, 1.0
    eta = (alpha * K / N) ** 3 / largest * math.sqrt(math.log(N) / (2 * T))
    p = [0.5] * 4
    expected = [list(p)]
    for ids, _, norms in ROUNDS:
        raised = list(p)
        for i, norm in zip(ids, norms, strict=True):
            raised[i] *= math.exp(eta * (0.25 * norm) ** 2 / p[i] ** 3)
        p = capped(raised, K)  # nobody reaches the floor αK/N = 0.2 here
        assert min(p) > alpha * K / N
        expected.append(list(p))
    policy = kvib.OSMD(rounds=T, experts=1)
    for got, want in zip(follow(policy, kvib.independent, ROUNDS), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_aocs():
    """By hand: π = 1, 3, 6, K = 2: p = .2, .6, 1 → C = (2−3+2)/.8 = 1.25 → .25, .75, 1."""
    sampler = kvib.Sampler(kvib.AOCS(), [1, 1, 1], 2)
    assert sampler.probabilities(norms=[1, 3, 6]) == pytest.approx([0.25, 0.75, 1])
    once = kvib.Sampler(kvib.AOCS(steps=0), [1, 1, 1], 2)
    assert once.probabilities(norms=[1, 3, 6]) == pytest.approx([0.2, 0.6, 1])  # Σp < K


def test_doubling_rule():
    from kvib.policies.rules import horizon

    assert [horizon(None, r) for r in range(9)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert horizon(500, 0) == horizon(500, 499) == 500
    sampler = kvib.Sampler(kvib.KVib(), np.ones(64), 2)
    mixes = [
        sampler.policy.exploration(sampler._learner.state, r).mix for r in (0, 31, 32, 255, 256)
    ]
    assert mixes == pytest.approx([1, 1, (32 / 64) ** (1 / 3), 0.5, (32 / 512) ** (1 / 3)])


def test_gain_is_the_mean_feedback_of_the_first_round_and_then_frozen():
    sampler = kvib.Sampler(kvib.KVib(rounds=T), np.ones(N), K)
    empty = sampler.draw(available=[])
    sampler.update(empty, [])
    assert math.isnan(sampler._learner.state.gamma)
    first = sampler.draw(budget=N)
    sampler.update(first, [0.0, 0.0, 0.0, 0.0])  # says nothing about G
    assert math.isnan(sampler._learner.state.gamma)
    second = sampler.draw(budget=N)
    sampler.update(second, [4.0, 8.0, 12.0, 16.0])
    theta = (N / (T * K)) ** (1 / 3)
    assert sampler._learner.state.gamma == pytest.approx(2.5**2 * N / (K * theta))
    third = sampler.draw(budget=N)
    sampler.update(third, [1e6] * 4)
    assert sampler._learner.state.gamma == pytest.approx(2.5**2 * N / (K * theta))


@pytest.mark.parametrize(
    "make",
    [
        lambda: kvib.KVib(rounds=0),
        lambda: kvib.KVib(rounds=2.5),
        lambda: kvib.KVib(gain=1e200),
        lambda: kvib.KVib(mix=1.5),
        lambda: kvib.KVib(gain=-1),
        lambda: kvib.KVib(gamma=0),
        lambda: kvib.KVib(mix=0),
        lambda: kvib.Vrb(rounds=-3),
        lambda: kvib.Mabs(mix=0),
        lambda: kvib.Mabs(gain=0),
        lambda: kvib.Avare(least=1),
        lambda: kvib.Avare(decay=-1),
        lambda: kvib.OSMD(experts=0),
        lambda: kvib.OSMD(least=2),
        lambda: kvib.OSMD(gain=math.inf),
        lambda: kvib.EstimatedRate(strength=0),
    ],
)
def test_bad_configuration(make):
    with pytest.raises(ValueError, match=r"not|undefined"):
        make()

"""Three rounds of every learning policy, by hand: plain arithmetic, none of the code under test.

The trace of a policy is `traces/<its module>.py`: `expected()` gives the expected counts before
each of the `COHORTS` and after the last, for the policy with these `OPTIONS`. See by_hand.py.
"""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

import kvib
from by_hand import REPEATS, ROUNDS, K, N, T, capped, floored
from kvib import names

TRACES = Path(__file__).parent / "traces"

NEEDS_MORE = {"forecast": "test_forecast.py"}
"""Policies whose arithmetic is too long for a trace by hand, and where they are tested instead."""


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
        sampler.state.learning.learn(
            cohort, np.array(norms)
        )  # `update` takes the cohort that was drawn alone
    return [*seen, sampler.probabilities()]


LEARNING = {
    policy.__module__.rpartition(".")[2]: policy
    for policy in names.POLICIES.values()
    if policy.observe is not kvib.Policy.observe
}


@pytest.mark.parametrize("module", LEARNING, ids=lambda module: LEARNING[module].__name__)
def test_three_rounds_by_hand(module):
    if module in NEEDS_MORE:
        assert (TRACES.parent / NEEDS_MORE[module]).exists()
        return
    path = TRACES / f"{module}.py"
    assert path.exists(), f"{LEARNING[module].__name__} has no trace: write {path}, as those beside"
    trace = runpy.run_path(str(path))
    policy = LEARNING[module](**trace["OPTIONS"])
    wanted = list(trace["expected"]())
    assert len(wanted) == len(trace["COHORTS"]) + 1
    assert np.ptp(wanted[-1]) > 0  # feedback matters, or the trace shows nothing
    for got, want in zip(follow(policy, None, trace["COHORTS"]), wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-12)


def test_kvib_by_hand_to_the_digit():
    """θ = ½, γ = 1: round 1 adds (½)²/½ = ½ to ω₀ and 1²/½ = 2 to ω₂."""
    got = follow(kvib.KVib(mix=0.5, gamma=1.0), None, ROUNDS)
    s = [math.sqrt(1.5), 1.0, math.sqrt(3.0), 1.0]
    total = sum(s)
    assert got[1] == pytest.approx([0.25 + x / total for x in s], rel=1e-14)


def test_vrb_mixes_less_with_more_clients_than_rounds():
    few = kvib.Sampler(kvib.Vrb(rounds=3), np.ones(N), K)
    assert few.policy.exploration(few.state.learned, 0).mix == 0.3
    unknown = kvib.Sampler(kvib.Vrb(), np.ones(64), K)
    mixes = [unknown.policy.exploration(unknown.state.learned, r).mix for r in (0, 40, 100, 8191)]
    assert mixes == pytest.approx([0.3, 0.3, 0.3, (64 / 8192) ** (1 / 3)])


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
    sampler.state.learner.state = sampler.state.learned._replace(log_weight=log_weight, peak=5000.0)
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
        state, p = sampler.state.learned, sampler.probabilities()
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
        sampler.policy.exploration(sampler.state.learned, r).mix for r in (0, 31, 32, 255, 256)
    ]
    assert mixes == pytest.approx([1, 1, (32 / 64) ** (1 / 3), 0.5, (32 / 512) ** (1 / 3)])


def test_gain_is_frozen_after_the_first_round():
    sampler = kvib.Sampler(kvib.KVib(rounds=T), np.ones(N), K)
    empty = sampler.draw(available=[])
    sampler.update(empty, [])
    assert math.isnan(sampler.state.learned.gamma)
    first = sampler.draw(budget=N)
    sampler.update(first, [0.0, 0.0, 0.0, 0.0])  # says nothing about G
    assert math.isnan(sampler.state.learned.gamma)
    second = sampler.draw(budget=N)
    sampler.update(second, [4.0, 8.0, 12.0, 16.0])
    theta = (N / (T * K)) ** (1 / 3)
    assert sampler.state.learned.gamma == pytest.approx(2.5**2 * N / (K * theta))
    third = sampler.draw(budget=N)
    sampler.update(third, [1e6] * 4)
    assert sampler.state.learned.gamma == pytest.approx(2.5**2 * N / (K * theta))


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

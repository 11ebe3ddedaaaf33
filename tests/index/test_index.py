"""The index: draws with the law of N coins, and sums that stay right."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import kvib
from kvib.index import Index, IndexedDraw
from kvib.index.buckets import Buckets
from kvib.index.sum_tree import FANOUT, SumTree, ids_of
from kvib.randomness import generator
from members import BY_INDEX, INDEXED, POLICIES, PROCEDURES


def index_of(scores, weights=None, prices=None):
    """An index of fixed numbers."""
    prices = np.ones(len(scores)) if prices is None else prices
    by_weight = None if weights is None else (lambda ids: weights[ids])
    index = Index(len(scores), lambda ids: scores[ids], lambda ids: prices[ids], by_weight)
    index.build(np.arange(len(scores)))
    return index


def consistent(buckets, scores):
    """Everybody is where the score says, and sums are those of the members."""
    members = np.flatnonzero(buckets.place >= 0)
    assert len(members) == len(buckets)
    assert (buckets.order[buckets.place[members]] == members).all()
    for b in range(len(buckets.start) - 1):
        inside = buckets.members(b)
        if len(inside) == 0:
            assert buckets.sums[:, b].tolist() == [0, 0]
            continue
        s = scores[inside]
        top = math.ldexp(1.0, b - 1023)
        assert (s <= top).all()
        assert (s > top / 2).all()
        assert buckets.sums[:, b].sum() == pytest.approx(math.fsum(s), rel=1e-15)


positive = st.floats(1e-290, 1e290, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=60)
@given(st.lists(positive, min_size=1, max_size=40), st.data())
def test_buckets_follow_any_changes(values, data):
    scores = np.array(values)
    N, one = len(scores), np.ones(1)
    buckets = Buckets(N)
    buckets.build(np.arange(N), lambda ids: scores[ids], lambda ids: np.ones(len(ids)))
    for _ in range(data.draw(st.integers(0, 12))):
        i = np.array([data.draw(st.integers(0, N - 1))])
        if buckets.place[i[0]] < 0:
            buckets.insert(i, scores[i], one)
        elif data.draw(st.booleans()):
            buckets.remove(i, scores[i], one)
        else:
            old = scores[i].copy()
            scores[i] = data.draw(positive)
            buckets.change(i, old, scores[i], one)
    consistent(buckets, scores)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-12, 12), min_size=2, max_size=60), st.data())
def test_threshold_is_that_of_the_solver(logs, data):
    scores = 10 ** np.array(logs)
    prices = np.array([data.draw(st.floats(0.1, 10)) for _ in logs])
    priced = data.draw(st.booleans())
    cost = prices if priced else None
    most = prices.sum() if priced else len(scores)
    budget = most * data.draw(st.floats(0.01, 0.999))
    prices = prices if priced else np.ones(len(scores))
    index = index_of(scores / np.sqrt(prices), prices=prices)
    p = index.expected(index.mixture(budget, 0.0, 1.0), np.arange(len(scores)))
    assert p == pytest.approx(kvib.waterfill(scores, budget, cost=cost), rel=1e-9)


@pytest.mark.parametrize("budget", [1, 7, 16, 39.5, 40])
@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_expected_is_that_of_the_policy(budget, mix):
    rng = np.random.default_rng(0)
    scores, weights = rng.lognormal(0, 3, 40), rng.lognormal(0, 2, 40)
    uniform = index_of(scores).mixture(budget, mix, 1.0)
    own = (1 - mix) * kvib.waterfill(scores, budget)
    ids = np.arange(40)
    assert index_of(scores).expected(uniform, ids) == pytest.approx(own + mix * budget / 40)
    index = index_of(scores, weights)
    found = index.expected(index.mixture(budget, mix, 1.0), ids)
    assert found == pytest.approx(own + mix * kvib.waterfill(weights, budget))


def law(index, mixture, draw, N, draws, pairs, rng):
    """Frequencies of clients and of pairs."""
    single, both = np.zeros(N), np.zeros(len(pairs))
    inside = np.zeros(N, bool)
    for _ in range(draws):
        ids = draw(mixture, rng)
        inside[:] = False
        inside[ids] = True
        single[ids] += 1
        both += inside[pairs[:, 0]] & inside[pairs[:, 1]]
    return single, both


def agrees(counts, p, draws):
    """χ² of counts with Binomial(draws, p), rare ones pooled; false alarm once in 10^7."""
    order = np.argsort(p)
    counts, p = counts[order], p[order]
    certain = p > 1 - 1e-12
    assert (counts[certain] == draws).all()
    counts, p = counts[~certain], p[~certain]
    pool = np.maximum.accumulate(np.floor(np.cumsum(draws * p) / 10)).astype(int)
    _, pool = np.unique(pool, return_inverse=True)
    seen, mean = np.bincount(pool, counts), np.bincount(pool, draws * p)
    variance = np.bincount(pool, draws * p * (1 - p))
    statistic = ((seen - mean) ** 2 / np.maximum(variance, 1e-12)).sum()
    assert stats.chi2.sf(statistic, len(seen)) > 1e-7


@pytest.mark.parametrize(
    ("draws", "by_weight"),
    [
        (5_000, False),
        (5_000, True),
        pytest.param(100_000, False, marks=pytest.mark.slow),
        pytest.param(100_000, True, marks=pytest.mark.slow),
    ],
)
def test_independent_draws_are_n_coins(draws, by_weight):
    """Scores over eight orders of magnitude: clients, and pairs of them, as often as coins say."""
    N, budget = 2_000, 60
    rng = np.random.default_rng(4)
    scores, weights = 10 ** rng.uniform(-4, 4, N), rng.lognormal(0, 2, N)
    index = index_of(scores, weights if by_weight else None)
    mixture = index.mixture(budget, 0.2, 1.0)
    p = index.expected(mixture, np.arange(N))
    assert p.sum() == pytest.approx(budget)
    likely = np.argsort(-p)[:60]  # pairs of rare ones are never seen
    pairs = np.array([(a, b) for k, a in enumerate(likely) for b in likely[:k]])
    pairs = pairs[rng.choice(len(pairs), 300, replace=False)]
    single, both = law(index, mixture, index.tossed, N, draws, pairs, rng)
    agrees(single, p, draws)
    agrees(both, p[pairs[:, 0]] * p[pairs[:, 1]], draws)


@pytest.mark.parametrize("by_weight", [False, True])
@pytest.mark.parametrize("budget", [40, 40.5])
def test_ordered_draws_have_these_probabilities(by_weight, budget):
    """Every start of a fine grid, so the frequencies are exact up to its width."""
    N, starts = 500, 4_000
    rng = np.random.default_rng(4)
    scores, weights = 10 ** rng.uniform(-4, 4, N), rng.lognormal(0, 2, N)
    index = index_of(scores, weights if by_weight else None)
    mixture = index.mixture(budget, 0.2, 1.0)

    class Start:
        def __init__(self, value):
            self.random = lambda: value

    counts, sizes = np.zeros(N), set()
    for start in (np.arange(starts) + 0.5) / starts:
        ids = kvib.ordered.by_index(IndexedDraw(index, mixture), Start(start))
        counts[ids] += 1
        sizes.add(len(ids))
    assert sizes == {math.floor(budget), math.ceil(budget)}
    assert counts / starts == pytest.approx(index.expected(mixture, np.arange(N)), abs=2 / starts)


def test_ordered_through_the_index_is_ordered_by_list():
    """The same start gives the same clients, whatever path."""
    rng = np.random.default_rng(1)
    sampler = kvib.Sampler(kvib.KVib(mix=0.2), rng.lognormal(0, 2, 300), 25, kvib.ordered, seed=3)
    for _ in range(30):
        listed = sampler.procedure.counts(
            sampler.probabilities(), generator(3, sampler.round, "draw")
        )
        cohort = sampler.draw()
        assert np.flatnonzero(listed).tolist() == cohort.ids.tolist()
        sampler.update(cohort, rng.lognormal(0, 2, len(cohort)))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 700), st.integers(0, 2**32 - 1))
def test_trees_find_what_a_running_sum_finds(N, seed):
    rng = np.random.default_rng(seed)
    values = rng.random((2, N)) * (rng.random((2, N)) < 0.7)
    tree = SumTree(2, N)
    padded = np.zeros((2, tree.blocks * FANOUT))
    padded[:, :N] = values
    every = np.arange(tree.blocks)
    tree.refresh(every, padded[:, ids_of(every)])
    some = np.unique(rng.integers(0, tree.blocks, 5))
    padded[:, ids_of(some)] *= 2.0
    tree.refresh(some, padded[:, ids_of(some)])
    factors = np.array([1.0, 0.5])
    assert tree.total == pytest.approx(padded.sum(axis=1))
    line = factors @ padded
    if line.sum() == 0:
        return
    points = np.sort(rng.random(20)) * line.sum() * (1 - 1e-9)
    blocks, left = tree.find(points, factors)
    ends = np.cumsum(line.reshape(-1, FANOUT).sum(axis=1))
    assert blocks.tolist() == np.searchsorted(ends, points, "right").tolist()
    assert left == pytest.approx(points - np.concatenate([[0], ends])[blocks], abs=1e-9)


def played(policy, procedure, rounds, N=2_000, K=20, **options):
    """A sampler after many rounds with norms that wander over orders of magnitude."""
    rng = np.random.default_rng(5)
    sampler = kvib.Sampler(policy, rng.lognormal(0, 2, N), K, procedure, seed=1, **options)
    for t in range(rounds):
        cohort = sampler.draw()
        sampler.update(cohort, rng.lognormal(math.sin(t / 100), 2, len(cohort)))
    return sampler


@pytest.mark.parametrize(("policy", "procedure"), INDEXED, ids=repr)
@pytest.mark.parametrize("cool_down", [0, 3])
def test_sums_after_many_rounds_are_those_of_a_fresh_index(policy, procedure, cool_down):
    fresh_equals_worn(played(policy, procedure, 300, cool_down=cool_down))


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [kvib.KVib(mix=0.2), kvib.KVib(mix=0.2, by_weight=True)], ids=repr
)
def test_sums_after_a_hundred_thousand_rounds(policy):
    fresh_equals_worn(played(policy, kvib.independent, 100_000))


def test_sums_after_a_million_changes_that_cancel():
    """Scores that jump by 200 orders of magnitude and back leave nothing behind."""
    rng, N = np.random.default_rng(0), 64
    scores = np.ones(N)
    buckets = Buckets(N)
    buckets.build(np.arange(N), lambda ids: scores[ids], lambda ids: np.ones(len(ids)))
    ids = np.arange(N)
    for _ in range(1_000_000 // N):
        new = 10 ** rng.uniform(-100, 100, N)
        buckets.change(ids, scores, new, np.ones(N))
        scores = new
    consistent(buckets, scores)


def fresh_equals_worn(sampler):
    before = sampler.probabilities()
    sampler.state.index.build(sampler.state.eligible.eligible(np.arange(len(sampler))))
    assert sampler.probabilities() == pytest.approx(before, rel=1e-9, abs=0)
    listed = sampler.probabilities(available=np.arange(len(sampler)))
    assert listed == pytest.approx(before, rel=1e-9, abs=0)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_which_path_depends_on_policy_and_procedure_alone(policy):
    for procedure, N in itertools.product(PROCEDURES, (3, 1_000)):
        if policy.equal or procedure is not kvib.without_replacement:
            sampler = kvib.Sampler(policy, np.ones(N), 2, procedure)
            assert (sampler.state.index is not None) == (policy.lasting and procedure in BY_INDEX)


def test_who_is_drawn_from_the_index():
    for policy in (kvib.KVib(), kvib.Vrb(), kvib.Forecast(), kvib.Uniform(), kvib.BySize()):
        assert {(policy, kvib.independent), (policy, kvib.ordered)} <= set(INDEXED)
    assert not {kvib.Avare, kvib.OSMD, kvib.Mabs} & {type(policy) for policy, _ in INDEXED}


def test_interpreted_and_compiled_draws_agree(monkeypatch):
    compiled = played(kvib.KVib(mix=0.2), kvib.independent, 40)
    monkeypatch.setattr("kvib.compiled._jit", lambda kernel: kernel)
    interpreted = played(kvib.KVib(mix=0.2), kvib.independent, 40)
    assert compiled.draw().ids.tolist() == interpreted.draw().ids.tolist()
    assert compiled.probabilities().tolist() == interpreted.probabilities().tolist()

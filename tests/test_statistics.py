"""Laws that are too large to enumerate. False-alarm rates are stated; seeds are fixed."""

import numpy as np
import pytest

import kvib
from members import PROCEDURES


@pytest.mark.parametrize("procedure", [p for p in PROCEDURES if p.cap == 1], ids=repr)
def test_inclusion_frequencies(procedure):
    """N = 200, 20,000 draws: every frequency within 5.5 standard errors (rate 200 · 4e-8)."""
    rng = np.random.default_rng(11)
    N, K, draws = 200, 20, 20_000
    equal = procedure is kvib.without_replacement
    p = kvib.waterfill(np.ones(N) if equal else rng.lognormal(0, 1.5, N), K)
    if procedure is kvib.conditional_poisson:
        draws = 2000  # it solves for its working probabilities at every draw
    count, sizes = np.zeros(N), []
    for _ in range(draws):
        drawn = procedure.counts(p, rng)
        count += drawn
        sizes.append(drawn.sum())
    error = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(count / draws - p) <= 5.5 * error + 1e-12).all()
    assert set(sizes) == {K} or procedure is kvib.independent


def test_fixed_size_at_scale():
    """A whole budget gives a whole cohort although a million probabilities do not sum to it."""
    rng = np.random.default_rng(12)
    p = kvib.waterfill(rng.lognormal(0, 2, 10**6), 1000)
    for procedure in (kvib.pivotal, kvib.systematic):
        assert [len(procedure(p, rng)) for _ in range(5)] == [1000] * 5


def test_systematic_does_not_drift():
    """A running sum of a million equal probabilities ends on the budget."""
    p, rng = np.full(10**6, 77_777 / 10**6), np.random.default_rng(5)
    assert {int(kvib.systematic.counts(p, rng).sum()) for _ in range(20)} == {77_777}


def test_compiled_equals_interpreted(monkeypatch):
    """numba and the interpreter draw the same clients from the same generator."""
    from kvib import compiled

    p = kvib.waterfill(np.random.default_rng(0).lognormal(0, 1, 300), 20)
    compared = (kvib.pivotal, kvib.conditional_poisson)
    fast = [f(p, np.random.default_rng(s)).ids.tolist() for f in compared for s in range(10)]
    monkeypatch.setattr(compiled, "_jit", lambda kernel: kernel)
    slow = [f(p, np.random.default_rng(s)).ids.tolist() for f in compared for s in range(10)]
    assert fast == slow


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_seeds(seed):
    """Mean estimate of 2,000 rounds of a learning sampler from a fixed model: 5.5 errors."""
    rng = np.random.default_rng([13, seed])
    N, K, rounds = 100, 10, 2000
    updates = rng.normal(size=(N, 5)) * rng.lognormal(0, 1, N)[:, None]
    norms = np.linalg.norm(updates, axis=1)
    procedure = (kvib.independent, kvib.pivotal, kvib.systematic)[seed % 3]
    weights = rng.lognormal(0, 1, N)
    sampler = kvib.Sampler(kvib.KVib(), weights, K, procedure, seed=seed)
    estimates = np.empty((rounds, 5))
    for t in range(rounds):
        cohort = sampler.draw()
        estimates[t] = kvib.estimate(cohort, updates[cohort.ids])
        sampler.update(cohort, norms[cohort.ids])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(rounds)
    assert (np.abs(estimates.mean(axis=0) - sampler.weights @ updates) <= 5.5 * error).all()

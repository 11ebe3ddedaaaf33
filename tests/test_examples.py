"""Example 2 of the paper to the digit, with the corrections of the notes."""

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.analysis import metrics

G = np.array(
    [[np.sqrt(2) / 2, np.sqrt(2) / 2], [1, -2 * np.sqrt(2)], [2 * np.sqrt(7), 2 * np.sqrt(2)]]
)
ONES = np.ones(3)
D = G.sum(axis=0)


def test_norms_not_squared_norms():
    assert kvib.norms(list(G)) == pytest.approx([1, 3, 6])


def test_probabilities():
    assert kvib.waterfill([1, 3, 6], 2) == pytest.approx([0.25, 0.75, 1])
    assert kvib.waterfill([1, 3, 6], 2, cap=np.inf) == pytest.approx([0.2, 0.6, 1.2])


def test_sizes_of_independent_draws():
    size = np.zeros(4)
    for probability, cohort in outcomes(lambda r: kvib.independent([0.25, 0.75, 1], r)):
        size[len(cohort)] += probability
    assert size == pytest.approx([0, 3 / 16, 10 / 16, 3 / 16])


def test_full_participation():
    """K = 3: independent draws recover D, draws with replacement do not even if all come."""
    assert pytest.approx([7.00, 0.71], abs=0.005) == D
    cohort = kvib.independent(ONES, np.random.default_rng(0), weights=ONES)
    assert kvib.estimate(cohort, G) == pytest.approx(D)

    expected = kvib.waterfill([1, 3, 6], 3, cap=np.inf)  # .3, .9, 1.8
    once = kvib.Cohort(ids=[0, 1, 2], count=[1, 1, 1], expected=expected, weight=ONES)
    d = kvib.estimate(once, G)
    assert d == pytest.approx([6.41, 0.79], abs=0.005)
    assert np.linalg.norm(d - D) == pytest.approx(0.596, abs=0.0005)


def test_variances():
    gram = G @ G.T
    isp = metrics.variance([0.25, 0.75, 1], [1, 3, 6])
    assert isp.value == pytest.approx(3 * 1 + 9 / 3)
    rsp = metrics.variance([0.2, 0.6, 1.2], procedure=kvib.with_replacement, gram=gram)
    assert rsp.value == pytest.approx((100 - D @ D) / 2)  # (Σπ²/q − ‖D‖²)/K


def test_lemma_2_1_needs_uniform_probabilities():
    """The counterexample of the notes: independent draws can vary more than the RSP bound."""
    p, pi, N, K = np.array([0.25, 0.75, 1]), np.array([1.0, 0, 0]), 3, 2
    isp = metrics.variance(p, pi).value
    bound = (N - K) / (N - 1) * metrics.sampling_cost(p, pi)
    assert (isp, bound) == pytest.approx((3, 2))

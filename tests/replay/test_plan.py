"""Plan: replay at many budgets, and the budget that keeps today's variance."""

import math
import warnings

import numpy as np
import pytest

import kvib
from kvib.estimators.variance import norm_part
from kvib.journal import Logged
from kvib.replay import Terms, replay
from kvib.replay.members import Members
from kvib.replay.plan import crossing, plan
from kvib.replay.rivals import Offer, Perfect
from logs import logged, world


@pytest.fixture(scope="module")
def rounds():
    weights, norms = world(11)
    terms = Terms(weights, policy=kvib.KVib())
    return terms, logged(kvib.KVib(), weights, norms, 8, kvib.independent)[0]


def test_every_point_is_a_replay(rounds):
    terms, log = rounds
    told = plan(log, terms=terms, budgets=[2, 8, 30])
    assert told.budget == 8
    for k, K in enumerate((2, 8, 30)):
        both = {"K-Vib": kvib.KVib(), "forecast": kvib.Forecast()}
        rows = replay(log, both, terms, budget=K).rows
        for curve, label in ((told.logging, "K-Vib"), (told.policy, "forecast")):
            point = curve.value[k], curve.low[k], curve.high[k]
            assert point == pytest.approx(rows[label].variance, rel=1e-12)
    assert told.logging.value[1] == pytest.approx(told.today.value, rel=1e-9)


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.with_replacement], ids=repr)
@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.BySize(), kvib.Forecast()], ids=repr)
def test_more_clients_less_variance(policy, procedure):
    weights, norms = world(12)
    log, _ = logged(kvib.Uniform(), weights, norms, 8, procedure)
    told = plan(log, policy, Terms(weights, policy=kvib.Uniform(), procedure=procedure))
    assert {1.0, 8.0, 60.0} <= set(told.budgets.tolist())
    for curve in (told.logging, told.policy):
        assert (np.diff(curve.value) < 0).all()
    if procedure is kvib.independent:
        assert told.policy.value[-1] == pytest.approx(0, abs=1e-12)
    assert (told.perfect.value <= told.policy.value * (1 + 1e-9)).all()


def test_the_logging_policy_needs_the_logged_budget(rounds):
    terms, log = rounds
    told = plan(log, kvib.KVib(), terms)
    assert told.enough == pytest.approx((8, 8, 8), rel=1e-6)


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.with_replacement], ids=repr)
def test_the_budget_found_keeps_the_variance(procedure):
    """In worlds with known norms: the interval of 90 % holds the budget that truly does.

    At that rate the bound of 5.5 standard errors is missed with probability 2e-8.
    """
    held = []
    for seed in range(40):
        weights, norms = world(100 + seed)
        log, expected = logged(kvib.Uniform(), weights, norms, 8, procedure, seed)
        grid = np.geomspace(3, 24, 9)
        terms = Terms(weights, policy=kvib.Uniform(), procedure=procedure)
        told = plan(log, kvib.BySize(), terms, budgets=grid)
        pi = weights * norms
        today = norm_part(pi, 1.0, expected, procedure.cap).sum()
        ratio = [
            norm_part(pi, 1.0, kvib.waterfill(weights, K, cap=procedure.cap), procedure.cap).sum()
            / today
            for K in told.budgets
        ]
        true = crossing(told.budgets, np.array(ratio))
        held.append(told.enough.low <= true <= told.enough.high)
    assert np.mean(held) > 0.9 - 5.5 * math.sqrt(0.09 / len(held))


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.with_replacement], ids=repr)
def test_no_policy_falls_below_perfect(procedure):
    """On average a bound from below (5.5 standard errors: false alarm 2e-8), and a close one."""
    estimates, least = [], []
    for seed in range(40):
        weights, norms = world(200 + seed)
        log, _ = logged(kvib.BySize(), weights, norms, 8, procedure, seed)
        terms = Terms(weights, policy=kvib.BySize(), procedure=procedure)
        told = plan(log, terms=terms, budgets=[4, 8], since=8)
        estimates.append(told.perfect.value)
        best = [
            [
                norm_part(pi, 1.0, kvib.waterfill(pi, K, cap=procedure.cap), procedure.cap).sum()
                for pi in weights * norms[8:]
            ]
            for K in (4, 8)
        ]
        least.append(np.mean(best, axis=1))
    off = np.array(estimates) / np.array(least) - 1
    assert (off.mean(axis=0) < 5.5 * off.std(axis=0) / math.sqrt(len(off))).all()
    assert (off.mean(axis=0) > -0.1).all()


@pytest.mark.parametrize("priced", [False, True])
def test_perfect_with_the_right_value_is_the_oracle(priced):
    """Everybody heard, the same norms again, silence: the minimum that the solver finds."""
    rng = np.random.default_rng(5)
    pi, q = rng.lognormal(0, 1.5, 30), rng.uniform(0.3, 1, 30)
    prices = rng.uniform(0.5, 4, 30) if priced else None
    most = prices.sum() if priced else 30
    ids, one = np.arange(30), np.ones(30)
    heard = kvib.Cohort(
        ids=ids, count=one, expected=1 / q, weight=one, answer_probability=q
    )  # once each
    perfect = Perfect(Members(one / 30, prices, 8.0, 1.0, np.empty((30, 0))))
    offer = Offer(ids, prices, 8.0)
    perfect.learn(heard, pi)
    for K in (0.5, 3, 12, 29):
        costs, rest = perfect.variance_terms(heard, pi, offer, K)
        p = kvib.waterfill(pi / np.sqrt(q), K, cost=prices)
        assert costs.sum() + rest == pytest.approx(norm_part(pi, q, p, 1.0).sum())
    enough, rest = perfect.variance_terms(heard, pi, offer, most)
    assert enough.sum() + rest == pytest.approx((pi**2 * (1 / q - 1)).sum())


def test_where_a_curve_crosses():
    K = np.array([2.0, 4.0, 8.0])
    assert crossing(K, np.array([2.0, 1.0, 0.5])) == pytest.approx(4)
    assert crossing(K, 3 / K) == pytest.approx(3)  # exact for variance ∝ 1/K
    assert crossing(K, np.array([0.9, 0.5, 0.2])) == 2
    assert crossing(K, np.array([3.0, 2.0, 1.1])) == math.inf
    assert crossing(K, np.array([math.inf, math.inf, 0.5])) == 8
    assert crossing(K, np.full(3, math.nan)) == math.inf


def test_zero_norms():
    weights, norms = world(13, rounds=12)
    norms[:, ::2] = 0
    log, _ = logged(kvib.Uniform(), weights, norms, 8, kvib.independent)
    terms = Terms(weights, policy=kvib.Uniform())
    told = plan(log, terms=terms)
    assert np.isfinite(told.perfect.value).all()
    silent = [Logged(one.cohort, 0 * one.norms) for one in log]
    assert plan(silent, terms=terms).today.value == 0


def test_words_and_errors(rounds):
    terms, log = rounds
    said = str(plan(log, terms=terms))
    assert "Forecast has the same with" in said
    assert "no less than" in said
    for budgets in ([8], [8, 4]):
        with pytest.raises(ValueError, match="two or more"):
            plan(log, terms=terms, budgets=budgets)
    with pytest.raises(ValueError, match="exceeds the 60 clients"):
        plan(log, terms=terms, budgets=[8, 100])


def test_a_bound_above_what_it_bounds_says_nothing(rounds):
    terms, log = rounds
    told = plan(log, terms=terms, budgets=[4, 8])
    above = told.perfect._replace(value=np.array([0.0, 2 * told.policy.value[1]]))
    *_, few, many = str(told._replace(perfect=above, warnings=())).splitlines()
    assert few.split()[-1] == "0"
    assert many.split()[-1] == "–"


def test_a_picture(rounds):
    plan_figure = pytest.importorskip("kvib.lab.plan_figure")
    terms, log = rounds
    figure = plan_figure.draw_plan(plan(log, terms=terms))
    [axis] = figure.axes
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["KVib, which drew the rounds", "Forecast", "no policy has less", "today"]
    assert axis.get_xscale() == axis.get_yscale() == "log"


def test_a_lost_first_round_of_draws_with_replacement(tmp_path):
    path = tmp_path / "a"
    with kvib.journalled(path, kvib.BySize(), np.arange(1, 31), 6) as sampler:
        for t in range(12):
            cohort = sampler.draw()
            norms = np.full(len(cohort), np.nan if t == 0 else 1.0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sampler.update(cohort, norms)
    made = plan(kvib.journal.read(path))
    assert np.isfinite(made.perfect.value).all()

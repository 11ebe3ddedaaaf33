"""Rates that are learned: what counts as evidence, what does not, and the bound."""

import numpy as np
import pytest

import kvib
from kvib.clients import rates

ALL = np.arange(60)


def learned(clients=60, **options):
    return rates.start(kvib.EstimatedRate(**options), clients, "availability")


def seen(state, share, rounds=1):
    """Rounds in which the first clients come, this share of them."""
    ids = np.arange(len(state.trials))
    for _ in range(rounds):
        state = rates.observe(state, ids, ids < share * len(ids))
    return state


def test_a_silence_of_all_is_one_event():
    state = seen(learned(), 1.0, 5)
    for _ in range(1000):
        state = seen(state, 0.0)
    assert rates.at(state, ALL) == pytest.approx(1)
    assert state.total_trials == 5 * 60


def test_a_few_clients_that_often_fail_together_are_believed():
    """Two clients that come in one round of three: both fail in four of nine."""
    rng, state = np.random.default_rng(0), learned(2)
    for _ in range(3000):
        state = rates.observe(state, np.arange(2), rng.random(2) < 1 / 3)
    assert rates.at(state, np.arange(2)) == pytest.approx(1 / 3, abs=0.03)


def test_one_client_alone_is_believed():
    state = learned(1)
    for k in range(1000):
        state = rates.observe(state, np.arange(1), [k % 2 == 0])
    assert rates.at(state, np.arange(1)) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_a_small_fleet_is_learned_from_the_first_round(share):
    state = seen(learned(), share, 40)
    assert rates.at(state, ALL)[-1] < 0.15
    assert rates.at(state, ALL)[0] > 0.85


def test_outages_count_only_if_they_stay():
    state = seen(seen(learned(), 1.0, 20), 0.1, 10)
    assert rates.at(state, ALL) == pytest.approx(1)
    state = seen(state, 0.1, 100)
    assert rates.at(state, ALL)[-1] < 0.3


@pytest.mark.parametrize("clients", [60, 500])
@pytest.mark.parametrize("period", [2, 6, 12, 24, 48, 96])
def test_day_and_night_are_no_outage(clients, period):
    """Between 10 and 90 %: the rate is the mean, whatever the length of the day."""
    rng, state = np.random.default_rng(period), learned(clients)
    for t in range(40 * period):
        share = 0.5 + 0.4 * np.sin(2 * np.pi * (t + 0.5) / period)
        state = rates.observe(state, np.arange(clients), rng.random(clients) < share)
    assert rates.at(state, np.arange(clients)).mean() == pytest.approx(0.5, rel=0.12)


@pytest.mark.parametrize("down", [1, 5, 20])
def test_an_outage_that_returns_is_how_the_fleet_is(down):
    state = learned()
    for _ in range(30):
        state = seen(seen(state, 0.05, down), 1.0, down)
    assert rates.at(state, ALL)[-1] == pytest.approx(0.5, abs=0.12)


def test_chance_is_no_outage():
    """Ten clients, 20 %: rounds with none or one of them are ordinary."""
    rng, state = np.random.default_rng(1), learned(10)
    for _ in range(4000):
        state = rates.observe(state, np.arange(10), rng.random(10) < 0.2)
    assert rates.at(state, np.arange(10)) == pytest.approx(0.2, abs=0.03)


def test_who_left_is_forgiven_its_last_absence():
    state = seen(learned(), 1.0, 20)
    for _ in range(30):
        state = rates.observe(state, ALL, ALL > 0)
    assert rates.at(state, ALL)[0] < 0.5
    assert rates.before_absence(state, ALL)[0] > 0.9
    trials = state.total_trials
    state = rates.forgiven(state, np.array([0]))
    assert rates.at(state, ALL)[0] > 0.98
    assert state.total_trials == trials - 30
    rates.checked(state, 60, "availability")


def test_no_rate_is_below_the_lowest():
    state = learned(lowest=0.3)
    for _ in range(200):
        state = rates.observe(state, ALL, ALL > 0)
    assert rates.at(state, ALL)[0] == 0.3
    with pytest.raises(ValueError, match="lowest=0 is not a probability"):
        kvib.EstimatedRate(lowest=0)


def test_first_absences_do_not_explode_a_sampler():
    """Draws of a plain sampler: 1, 10, 100 rounds in which no client is there."""
    for rounds in (1, 10, 100):
        sampler = kvib.Sampler(
            kvib.BySize(), np.ones(20), 5, availability=kvib.EstimatedRate(), seed=1
        )
        for _ in range(5):
            cohort = sampler.draw(available=np.arange(20))
            sampler.update(cohort, np.ones(len(cohort)))
        for _ in range(rounds):
            cohort = sampler.draw(available=[])
            sampler.update(cohort, [])
        cohort = sampler.draw(available=np.arange(20))
        assert cohort.coefficients.sum() == pytest.approx(1, abs=0.3)
        assert cohort.availability == pytest.approx(1)


def test_what_was_learned_is_saved(tmp_path):
    sampler = kvib.Sampler(
        kvib.Uniform(), np.ones(6), 2, availability=kvib.EstimatedRate(lowest=0.1), seed=1
    )
    for k in range(12):
        sampler.draw(available=np.arange(6)[: 6 - k % 3])
    sampler.save(tmp_path / "state.npz")
    other = kvib.Sampler.load(tmp_path / "state.npz")
    for field in rates.RateState._fields:
        mine, theirs = (getattr(s.state.rates.availability, field) for s in (sampler, other))
        assert np.array_equal(mine, theirs), field

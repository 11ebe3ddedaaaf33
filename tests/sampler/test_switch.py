"""A sampler without a journal gets another policy in the middle of a run."""

import itertools

import numpy as np
import pytest
from journal_crash import assert_same

import kvib
from kvib.sampler.switching import Learned

N = 12
WEIGHTS = np.arange(1.0, N + 1)
WAYS = [
    (kvib.KVib(), None),
    (kvib.KVib(mix=0.3, by_weight=True), kvib.pivotal),
    (kvib.Forecast(), kvib.independent),
    (kvib.Vrb(), None),
    (kvib.Avare(), kvib.systematic),
    (kvib.BySize(), kvib.conditional_poisson),
]
IDS = [f"{policy!r}-{procedure!r}" for policy, procedure in WAYS]


def play(sampler, rounds):
    cohorts = []
    for _ in range(rounds):
        cohort = sampler.draw()
        norms = np.random.default_rng([3, cohort.round]).lognormal(0, 1, 99)[cohort.ids]
        sampler.update(cohort, norms)
        cohorts.append(cohort)
    return cohorts


@pytest.mark.parametrize(
    ("old", "new"), list(itertools.permutations(range(len(WAYS)), 2)), ids=lambda k: IDS[k]
)
def test_from_the_next_round_on(tmp_path, old, new):
    (before, drawn), (policy, procedure) = WAYS[old], WAYS[new]
    options = {"seed": 5, "response": kvib.EstimatedRate(), "cool_down": 1}
    sampler = kvib.Sampler(before, WEIGHTS, 4, drawn, **options)
    play(sampler, 6)
    waits = sampler.draw()
    rates, resting = sampler.state.rates.at(np.arange(N)), sampler.state.cool_down.ids
    sampler.switch(policy, procedure)
    assert (sampler.policy, sampler.round) == (policy, 7)
    assert sampler.state.rates.at(np.arange(N)).tolist() == rates.tolist()
    assert sampler.state.cool_down.ids.tolist() == resting.tolist() == waits.ids.tolist()
    # whoever is looked up in an index has the probability that a look at all clients gives
    fresh = kvib.Sampler(policy, WEIGHTS, 4, procedure)
    able = np.setdiff1d(np.arange(N), resting)
    expected = fresh.state.learner.expected(able, 7, 4, WEIGHTS[able] / WEIGHTS.sum())
    assert sampler.probabilities()[able] == pytest.approx(expected)
    assert (sampler.probabilities()[resting] == 0).all()
    sampler.save(tmp_path / "state.npz")
    again = kvib.Sampler.load(tmp_path / "state.npz")
    for one in (sampler, again):
        one.update(waits, np.ones(len(waits)))
        play(one, 5)
    assert_same(sampler, again)


def test_the_procedure(tmp_path):
    sampler = kvib.Sampler(kvib.KVib(), WEIGHTS, 4)
    sampler.switch(kvib.Forecast())
    assert sampler.procedure is kvib.pivotal
    sampler.switch(kvib.KVib(), kvib.systematic)
    sampler.switch(kvib.Vrb())
    assert (sampler.policy, sampler.procedure) == (kvib.Vrb(), kvib.systematic)
    sampler.switch(kvib.Vrb(), kvib.with_replacement)
    assert sampler.procedure is kvib.with_replacement


def test_what_it_says():
    sampler = kvib.Sampler(kvib.KVib(), WEIGHTS, 4)
    play(sampler, 3)
    sampler.give_up(sampler.draw())
    sampler.draw()
    learner = sampler.state.learner
    assert sampler.switch(kvib.KVib()) == Learned(0, 0)
    assert sampler.state.learner is learner
    assert sampler.switch(kvib.KVib(mix=0.5)) == Learned(rounds=0, missing=3)


def test_what_is_refused_changes_nothing():
    sampler = kvib.Sampler(kvib.KVib(), WEIGHTS, 4)
    play(sampler, 3)
    before = sampler.packed()
    for policy, procedure, why in (
        (kvib.Optimal(), None, "Optimal must know every client's norm .* choose another policy"),
        (kvib.AOCS(), kvib.pivotal, "AOCS must know every client's norm"),
        (kvib.Vrb, None, r"policy Vrb is a class; write Vrb\(\)"),
        (kvib.Vrb(), kvib.without_replacement, "the same probability, Vrb does not"),
        (kvib.Vrb(), "pivotal", r"write kvib\.pivotal"),
    ):
        with pytest.raises(ValueError, match=why):
            sampler.switch(policy, procedure)
    sampler.join([3.0])
    sampler.leave([N])
    with pytest.raises(ValueError, match=r"Avare does not take clients that join later"):
        sampler.switch(kvib.Avare())
    sampler.admit(0)
    with pytest.raises(ValueError, match=r"open for check-in.*ends it, then switch"):
        sampler.switch(kvib.Vrb())
    sampler.gather([])
    after = sampler.packed()
    assert np.array_equal(before["state.omega"], after["state.omega"][:N])


@pytest.mark.parametrize(("policy", "procedure"), WAYS[:4], ids=IDS[:4])
def test_clients_come_and_go_before_and_after(policy, procedure):
    sampler = kvib.Sampler(kvib.Uniform(), WEIGHTS, 4, seed=5)
    play(sampler, 2)
    sampler.join([5.0, 6.0])
    sampler.leave([1])
    sampler.reweigh([2], [9.0])
    sampler.switch(policy, procedure)
    again = kvib.Sampler.unpacked(sampler.packed())
    for one in (sampler, again):
        play(one, 2)
        one.join([1.0, 2.0], keys=None)
        one.join([3.0], keys=[1])
        play(one, 2)
        here = one.probabilities() > 0
        assert here.sum() == len(one) == N + 4
    assert_same(sampler, again)


def test_equal_probabilities_are_not_for_clients_with_costs():
    with pytest.raises(ValueError, match=r"costs make them differ; write procedure=kvib.pivotal"):
        kvib.Sampler(kvib.Uniform(), np.ones(4), 2, cost=[1, 2, 3, 4])
    sampler = kvib.Sampler(kvib.Forecast(), np.ones(4), 2, cost=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="costs make them differ"):
        sampler.switch(kvib.Uniform())
    sampler.switch(kvib.Uniform(), kvib.pivotal)
    assert len(sampler.draw())


def test_a_switch_that_fails_leaves_all_as_it_was():
    class Vanishing(kvib.KVib):
        """Refused when an index is built, not before: client 3 is not one of the two tried."""

        def scores(self, state, ids):
            return np.where(np.asarray(ids) == 3, 0.0, super().scores(state, ids))

    sampler = kvib.Sampler(kvib.KVib(), [1, 2, 3, 4], 2, kvib.independent, seed=1)
    for _ in range(8):
        cohort = sampler.draw()
        sampler.update(cohort, 10.0**cohort.ids)
    policy, p = sampler.policy, sampler.probabilities()
    with pytest.raises(ValueError, match="score 0"):
        sampler.switch(Vanishing())
    assert sampler.policy is policy
    assert sampler.probabilities().tolist() == p.tolist()
    sampler.draw()

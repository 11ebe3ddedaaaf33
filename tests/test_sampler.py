"""The sampler: rounds, threads, missing answers, and every kind of bad input."""

import threading
import warnings

import numpy as np
import pytest

import kvib

SIZES = [10, 20, 30, 40, 50]


def new(policy=None, **options):
    return kvib.Sampler(policy or kvib.KVib(rounds=20), SIZES, 2, seed=1, **options)


def snapshot(sampler):
    """Everything a failed call must leave alone."""
    arrays = [np.array(x, dtype=float) for x in sampler._learner.state]
    rates = [
        np.array(x, dtype=float) for x in (*sampler._reach.response, *sampler._reach.availability)
    ]
    ledger = (sampler.round, bytes(sampler._ledger.updated))
    return [a.tobytes() for a in arrays + rates], ledger


BAD_CONSTRUCTION = [
    ({"weights": [1, -1]}, r"weight -1.0 of client 1 .* leave out"),
    ({"weights": [1, np.inf]}, "weight inf of client 1"),
    ({"weights": [1, np.nan]}, "weight nan of client 1"),
    ({"weights": [0, 0]}, "weight 0.0 of client 0"),
    ({"weights": []}, "one positive number per client"),
    ({"weights": [[1, 2]]}, "one positive number per client"),
    ({"budget": 0}, "budget 0 is not a positive number"),
    ({"budget": -2}, "budget -2 is not"),
    ({"budget": np.nan}, "budget nan is not"),
    ({"budget": np.inf}, "budget inf is not"),
    ({"budget": 12}, "budget 12 exceeds the 5 clients; lower it or add clients"),
    ({"seed": -1}, "seed -1"),
    ({"seed": 1.5}, "seed 1.5"),
    ({"response": 0}, "response must be probabilities from 1e-09 to 1"),
    ({"response": [0.5, 0.5]}, "response has shape"),
    ({"availability": 1.2}, "availability must be"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CONSTRUCTION)
def test_bad_construction(options, message):
    arguments = {"policy": kvib.KVib(), "weights": SIZES, "budget": 2, **options}
    with pytest.raises(ValueError, match=message):
        kvib.Sampler(**arguments)


BAD_DRAWS = [
    ({"budget": 0}, "budget 0 is not"),
    ({"budget": np.nan}, "budget nan"),
    ({"budget": 6}, "budget 6 exceeds the 5 clients"),
    ({"available": [True] * 4}, r"mask has shape \(4,\) for 5 clients"),
    ({"available": [0, 7]}, "unknown client id 7; ids are 0 to 4"),
    ({"available": [-1]}, "unknown client id -1"),
    ({"available": [1, 0, 1, 1, 1]}, "client 1 is listed twice; .* a mask of booleans"),
    ({"available": [0.5]}, "give one boolean per client, or a list of ids"),
    ({"norms": [1] * 5}, "KVib does not use norms at draw"),
]


@pytest.mark.parametrize(("options", "message"), BAD_DRAWS)
def test_bad_draws_change_nothing(options, message):
    sampler = new()
    before = snapshot(sampler)
    with pytest.raises(ValueError, match=message):
        sampler.draw(**options)
    assert snapshot(sampler) == before


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        (None, "must know every client's norm"),
        ([1, 2], r"shape \(2,\); give one per client, 5 in all"),
        ([1, 2, np.nan, 3, 4], "norm nan of client 2: norms at draw must all be known"),
        ([1, 2, -3, 3, 4], "norm -3.0 of client 2"),
        ([1, 2, np.inf, 3, 4], "norm inf of client 2"),
    ],
)
def test_bad_norms_for_the_oracle(norms, message):
    sampler = new(kvib.Optimal())
    before = snapshot(sampler)
    with pytest.raises(ValueError, match=message):
        sampler.draw(norms=norms)
    assert snapshot(sampler) == before


BAD_NORMS = [
    (lambda m: [-1.0] * m, "norm -1.0 of client"),
    (lambda m: [np.inf] * m, r"norm inf of client .* report NaN"),
    (lambda m: [1e200] * m, "norm 1e.200 of client"),
    (lambda m: [1.0] * (m + 1), "for a cohort of"),
    (lambda m: [[1.0]] * m, "for a cohort of"),
    (lambda m: {77: 1.0}, "client 77 is not in the cohort"),
]


@pytest.mark.parametrize(("norms", "message"), BAD_NORMS)
def test_bad_norms_change_nothing(norms, message):
    sampler = new()
    cohort = sampler.draw(budget=5)
    before = snapshot(sampler)
    with pytest.raises(ValueError, match=message):
        sampler.update(cohort, norms(len(cohort)))
    assert snapshot(sampler) == before
    sampler.update(cohort, np.ones(len(cohort)))  # still possible


def test_a_cohort_counts_once():
    sampler = new()
    cohort = sampler.draw(budget=5)
    sampler.update(cohort, np.ones(5))
    before = snapshot(sampler)
    with pytest.raises(ValueError, match="round 0 was updated before"):
        sampler.update(cohort, np.ones(5))
    assert snapshot(sampler) == before


def test_a_cohort_of_another_sampler():
    sampler, other = new(), new()
    cohort = other.draw(budget=5)
    sampler.draw()
    with pytest.raises(ValueError, match="drawn by another sampler"):
        sampler.update(cohort, np.ones(5))


def test_a_cohort_from_the_future(tmp_path):
    sampler = new()
    sampler.save(tmp_path / "old.npz")
    cohort = sampler.draw(budget=5)
    with pytest.raises(ValueError, match="only drawn 0 rounds"):
        kvib.Sampler.load(tmp_path / "old.npz").update(cohort, np.ones(5))


def test_without_replacement_is_for_equal_probabilities():
    with pytest.raises(ValueError, match="pivotal draws a fixed number with any probabilities"):
        kvib.Sampler(kvib.BySize(), SIZES, 2, kvib.without_replacement)


def test_procedures_refuse_what_is_not_a_probability():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"expected count 1.5 of client 1 .* kvib.waterfill"):
        kvib.independent([0.5, 1.5], rng)
    with pytest.raises(ValueError, match="expected count nan"):
        kvib.pivotal([0.5, np.nan], rng)
    with pytest.raises(ValueError, match="one number per client"):
        kvib.pivotal([], rng)


def test_conditional_poisson_says_when_it_is_too_large():
    with pytest.raises(ValueError, match="pivotal and systematic draw with the same"):
        kvib.conditional_poisson(np.full(10**6, 0.01), np.random.default_rng(0))


def test_nobody_available():
    sampler = new()
    for nobody in ([], np.zeros(5, dtype=bool)):
        cohort = sampler.draw(available=nobody)
        assert len(cohort) == 0
        assert (cohort.budget, cohort.requested) == (0, 2)
        sampler.update(cohort, [])
    assert sampler.round == 2


def test_several_cohorts_outstanding_in_any_order():
    sampler = new(kvib.KVib(mix=0.3, gamma=1.0), procedure=kvib.pivotal)
    cohorts = [sampler.draw() for _ in range(4)]
    assert [c.round for c in cohorts] == [0, 1, 2, 3]
    for cohort in reversed(cohorts):
        sampler.update(cohort, np.ones(2))
    omega = np.zeros(5)
    for cohort in cohorts:  # each counts with the probabilities it was drawn with
        omega[cohort.ids] += cohort.weight**2 / cohort.expected
    assert sampler._learner.state.cost == pytest.approx(omega)


def test_norms_by_id():
    a, b = new(), new()
    first, second = a.draw(budget=5), b.draw(budget=5)
    a.update(first, {int(i): float(i) for i in reversed(first.ids)})
    b.update(second, second.ids.astype(float))
    assert a.probabilities().tolist() == b.probabilities().tolist()


def test_silence_is_noticed():
    sampler = new()
    cohort = sampler.draw(budget=5)
    with pytest.warns(
        UserWarning, match=r"2 of 5 clients of round 0 did not answer.*EstimatedRate"
    ):
        sampler.update(cohort, [1, np.nan, 1, np.nan, 1])


def test_estimated_response():
    sampler = new(response=kvib.EstimatedRate(strength=2), procedure=kvib.pivotal)
    cohort = sampler.draw(budget=5)
    assert cohort.response.tolist() == [1] * 5  # exactly 1 until somebody stays silent
    assert cohort.guarantee == "consistent"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.update(cohort, [1, 1, 1, 1, np.nan])
    cohort = sampler.draw(budget=5)
    common = (1 + 4) / (1 + 5)
    answered = (2 * common + 1) / (2 + 1)
    assert cohort.response == pytest.approx([answered] * 4 + [2 * common / 3])
    assert cohort.coefficients == pytest.approx(cohort.weight / cohort.response)


def test_estimated_response_converges():
    rng = np.random.default_rng(0)
    q = np.array([1.0, 0.9, 0.5, 0.2, 0.7])
    sampler = new(kvib.Uniform(), response=kvib.EstimatedRate())
    for _ in range(4000):
        cohort = sampler.draw()
        sampler.update(cohort, np.where(rng.random(2) < q[cohort.ids], 1.0, np.nan))
    # 1,600 trials each: standard error below .0125
    assert sampler.draw(budget=5).response == pytest.approx(q, abs=5.5 * 0.0125)


def test_estimated_availability():
    rng = np.random.default_rng(0)
    a = np.array([1.0, 0.9, 0.5, 0.2, 0.7])
    sampler = new(kvib.Uniform(), availability=kvib.EstimatedRate())
    for _ in range(3000):
        sampler.draw(available=rng.random(5) < a, budget=1)
    with pytest.raises(ValueError, match=r"each draw must be told who is there"):
        sampler.draw()
    cohort = sampler.draw(available=range(5), budget=5)
    assert cohort.availability == pytest.approx(a, abs=5.5 * 0.01)
    assert cohort.response == pytest.approx(cohort.availability)
    assert cohort.guarantee == "consistent"


def test_best_score_among_the_available():
    """Given who is there, π/a is best; silence after the draw asks for π/√r."""
    there = kvib.Sampler(kvib.Optimal(), np.ones(3), 1, availability=[1, 0.5, 1])
    assert there.probabilities([0, 1, 2], norms=[1, 1, 1]) == pytest.approx([0.25, 0.5, 0.25])
    silent = kvib.Sampler(kvib.Optimal(), np.ones(3), 1, response=[1, 0.25, 1])
    assert silent.probabilities(norms=[1, 1, 1]) == pytest.approx([0.25, 0.5, 0.25])


def test_learning_divides_by_the_chance_of_an_answer():
    sampler = new(kvib.KVib(mix=0.5, gamma=1.0), response=0.5)
    cohort = sampler.draw(budget=5)
    sampler.update(cohort, np.ones(5))
    pi = sampler.weights / np.sqrt(0.5)
    assert sampler._learner.state.cost == pytest.approx(pi**2 / (0.5 * cohort.expected))


def test_importance_weights_count_the_chance_of_an_answer_once():
    """Mabs divides by q once, not with every power of the probability."""
    policy = kvib.Mabs(rounds=9, gain=1.0)
    weights, draw = np.ones(4), kvib.independent
    sure, rare = (kvib.Sampler(policy, weights, 4, draw, response=r) for r in (1.0, 0.25))
    for sampler in (sure, rare):
        sampler.update(sampler.draw(), [1, 2, 3, 4])
    # feedback² is π²/r, observed with probability r: 1/r² in all
    assert rare._learner.state.log_weight == pytest.approx(16 * sure._learner.state.log_weight)


def test_late_cohorts_do_not_restart_the_experts():
    sampler = kvib.Sampler(kvib.OSMD(), np.ones(6), 3, kvib.pivotal)
    cohorts = [sampler.draw() for _ in range(16)]
    for k in (9, 3, 10, 2, 11):
        sampler.update(cohorts[k], [1, 2, 3])
        assert sampler._learner.state.horizon == 16


def test_a_round_without_mask_where_availability_matters():
    sampler = kvib.Sampler(kvib.Uniform(), np.ones(4), 4, availability=0.5)
    with pytest.raises(ValueError, match=r"draw\(available=…\)"):
        sampler.draw()
    assert sampler.draw(available=[True] * 4).coefficients.sum() == 2


def test_public_cohorts_are_checked():
    with pytest.raises(ValueError, match="ids must ascend"):
        kvib.Cohort(ids=[3, 1], count=[1, 1], expected=[1, 1], weight=[1, 1])
    with pytest.raises(ValueError, match="same length"):
        kvib.Cohort(ids=[1, 3], count=[1], expected=[1, 1], weight=[1, 1])


def test_threads():
    sampler = new(kvib.KVib(mix=0.2, gamma=1.0), procedure=kvib.pivotal)
    cohorts, errors = [], []

    def work():
        try:
            for _ in range(50):
                cohort = sampler.draw()
                sampler.update(cohort, np.ones(len(cohort)))
                cohorts.append(cohort)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(c.round for c in cohorts) == list(range(400))
    total = np.zeros(5)
    for cohort in cohorts:
        total[cohort.ids] += cohort.weight**2 / cohort.expected
    assert sampler._learner.state.cost == pytest.approx(total)


def test_cohorts_cannot_be_changed():
    cohort = new().draw(budget=5)
    with pytest.raises(ValueError, match="read-only"):
        cohort.expected[0] = 1
    assert repr(cohort) == "<Cohort of round 0: 5 clients [0, 1, 2, 3, 4], budget 5, unbiased>"


def test_selector_bad_input():
    with pytest.raises(ValueError, match="not a whole number"):
        kvib.Selector(kvib.DivFL(), SIZES, 1.5)
    with pytest.raises(ValueError, match="candidates=1 must lie between the budget 2"):
        kvib.Selector(kvib.PowerOfChoice(candidates=1), SIZES, 2)
    selector = kvib.Selector(kvib.PowerOfChoice(), SIZES, 2)
    with pytest.raises(ValueError, match="give the local loss of every client"):
        selector.draw(signals=[1, 2])
    cohort = selector.draw()
    with pytest.raises(ValueError, match="signals for a cohort of 2"):
        selector.update(cohort, [1])
    selector.update(cohort, [1, 2])
    with pytest.raises(ValueError, match="updated before"):
        selector.update(cohort, [1, 2])
    assert len(selector.draw(available=[])) == 0


def test_selectors_choose_what_they_promise():
    losses = [0.1, 0.9, 0.5, 0.7, 0.3]
    everyone = kvib.Selector(kvib.PowerOfChoice(candidates=5), SIZES, 2)
    assert everyone.draw(signals=losses).ids.tolist() == [1, 3]
    later = everyone.draw()  # the last known losses
    assert later.ids.tolist() == [1, 3]

    updates = np.array([[0.0, 0], [0.1, 0], [5, 5], [5.1, 5], [0, 0.1]])
    diverse = kvib.Selector(kvib.DivFL(), SIZES, 2)
    assert diverse.draw().ids.tolist() != [0, 1]  # unseen ones first, at random
    cohort = diverse.draw(signals=updates)
    assert len(set(cohort.ids) & {2, 3}) == 1  # one of each group
    diverse.update(cohort, [None, updates[3]])
    assert len(diverse.draw(budget=3)) == 3
    with pytest.raises(ValueError, match="not finite"):
        diverse.draw(signals=[[np.nan, 0]] * 5)
    with pytest.raises(ValueError, match="finite numbers"):
        everyone.draw(signals=[np.inf] * 5)
    with pytest.raises(ValueError, match="same model or sketch"):
        diverse.draw(signals=np.ones((5, 3)))

"""The sampler: rounds, threads, missing answers, and every kind of bad input."""

import copy
import json
import pickle
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import kvib
from places import FIXTURES

SIZES = [10, 20, 30, 40, 50]


def new(policy=None, **options):
    return kvib.Sampler(policy or kvib.KVib(rounds=20), SIZES, 2, seed=1, **options)


def snapshot(sampler):
    """Everything a failed call must leave alone."""
    arrays = [np.array(x, dtype=float) for x in sampler.state.learned]
    rates = [
        np.array(x, dtype=float)
        for x in (*sampler.state.rates.response, *sampler.state.rates.availability)
    ]
    ledger = (sampler.round, bytes(sampler.state.rounds.updated))
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


def test_no_client_available():
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
    assert sampler.state.learned.omega == pytest.approx(omega)


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
    assert cohort.answer_probability.tolist() == [1] * 5  # exactly 1 until somebody stays silent
    assert cohort.guarantee == "consistent"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.update(cohort, [1, 1, 1, 1, np.nan])
    cohort = sampler.draw(budget=5)
    common = (1 + 4) / (1 + 5)
    answered = (2 * common + 1) / (2 + 1)
    assert cohort.answer_probability == pytest.approx([answered] * 4 + [2 * common / 3])
    assert cohort.coefficients == pytest.approx(cohort.weight / cohort.answer_probability)


def test_estimated_response_converges():
    rng = np.random.default_rng(0)
    q = np.array([1.0, 0.9, 0.5, 0.2, 0.7])
    sampler = new(kvib.Uniform(), response=kvib.EstimatedRate())
    for _ in range(4000):
        cohort = sampler.draw()
        sampler.update(cohort, np.where(rng.random(2) < q[cohort.ids], 1.0, np.nan))
    # 1,600 trials each: standard error below .0125
    assert sampler.draw(budget=5).answer_probability == pytest.approx(q, abs=5.5 * 0.0125)


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
    assert cohort.answer_probability == pytest.approx(cohort.availability)
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
    assert sampler.state.learned.omega == pytest.approx(pi**2 / (0.5 * cohort.expected))


def test_importance_weights_count_the_chance_of_an_answer_once():
    """Mabs divides by q once, not with every power of the probability."""
    policy = kvib.Mabs(rounds=9, gain=1.0)
    weights, draw = np.ones(4), kvib.independent
    sure, rare = (kvib.Sampler(policy, weights, 4, draw, response=r) for r in (1.0, 0.25))
    for sampler in (sure, rare):
        sampler.update(sampler.draw(), [1, 2, 3, 4])
    # feedback² is π²/r, observed with probability r: 1/r² in all
    assert rare.state.learned.log_weight == pytest.approx(16 * sure.state.learned.log_weight)


def test_late_cohorts_do_not_restart_the_experts():
    sampler = kvib.Sampler(kvib.OSMD(), np.ones(6), 3, kvib.pivotal)
    cohorts = [sampler.draw() for _ in range(16)]
    for k in (9, 3, 10, 2, 11):
        sampler.update(cohorts[k], [1, 2, 3])
        assert sampler.state.learned.horizon == 16


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
    assert sampler.state.learned.omega == pytest.approx(total)


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


# A cohort is taken as it was drawn

ALTERED = {
    "part": lambda c: c.take(np.arange(len(c)) > 0),
    "ids": lambda c: replace(c, ids=[0, 1, 2]),
    "count": lambda c: replace(c, count=c.count + 1),
    "expected": lambda c: replace(c, expected=c.expected * 0.01),
    "a little of expected": lambda c: replace(c, expected=c.expected * (1 + 1e-6)),
    "weight": lambda c: replace(c, weight=c.weight * 2),
    "response": lambda c: replace(c, answer_probability=c.answer_probability / 2),
    "availability": lambda c: replace(c, availability=c.availability * 0.9),
    "budget": lambda c: replace(c, budget=1.0),
    "most": lambda c: replace(c, most=2.0),
    "another round": lambda c: replace(c, round=1),
}
altered = pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)


def drawn(sampler):
    """Its cohort of round 0, with clients other than the first ones, and a second one."""
    first = sampler.draw()
    sampler.draw()
    assert first.ids.tolist() != [0, 1, 2]
    return first


def eight(**options):
    return kvib.Sampler(kvib.KVib(), np.arange(1.0, 9), 3, kvib.pivotal, seed=2, **options)


def packed(sampler):
    return {name: array.tobytes() for name, array in sampler.packed().items()}


WAYS = {
    "update": lambda s, c: s.update(c, np.ones(len(c))),
    "step": lambda s, c: s.step(c, np.ones((len(c), 4))),
    "begin": lambda s, c: s.begin(c),
}


@altered
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_cohort_that_was_changed_is_refused(alter, way, loaded):
    sampler = eight()
    cohort = drawn(sampler)
    if loaded:
        sampler = kvib.Sampler.unpacked(sampler.packed())
    before = packed(sampler)
    with pytest.raises(ValueError, match=r"not the cohort that was drawn .* give it as drawn"):
        way(sampler, alter(cohort))
    assert packed(sampler) == before
    way(sampler, cohort)


@altered
def test_a_journal_refuses_a_changed_cohort(alter, tmp_path):
    given = (kvib.KVib(), np.arange(1.0, 9), 3, kvib.pivotal)
    sampler = kvib.journalled(tmp_path / "run", *given, seed=2, snapshot_every=1)
    cohort = drawn(sampler)
    events = sampler.recorder.file.last
    for _ in range(2):
        with pytest.raises(ValueError, match=r"not the cohort that was drawn .* give it as drawn"):
            sampler.update(alter(cohort), np.ones(len(alter(cohort))))
        assert sampler.recorder.file.last == events
        sampler.close()
        sampler = kvib.journalled(tmp_path / "run")
        cohort = sampler.outstanding()[0]
    sampler.update(cohort, np.ones(3))
    sampler.close()


def test_a_cohort_in_single_precision_is_the_one_drawn():
    """As a journal keeps it; and copies of it are, too."""
    for kept in (copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))):
        sampler = eight(response=kvib.EstimatedRate())
        cohort = drawn(sampler)
        short = {
            name: getattr(cohort, name).astype(np.float32)
            for name in ("expected", "weight", "answer_probability", "availability")
        }
        sampler.update(kept(replace(cohort, **short, pairs=None)), np.ones(3))


def test_a_file_without_seals_takes_what_it_is_given():
    """One of an earlier version, with a round that was drawn there."""
    old = kvib.Sampler.load(FIXTURES / "1191bf9/outstanding.npz")
    ones, token = np.ones(2), old.packed()["header"].item()
    about = {"round": old.round - 1, "token": json.loads(token)["token"], "budget": 4.0}
    old.update(kvib.Cohort(ids=[0, 1], count=ones, expected=ones, weight=ones, **about), ones)
    later = old.draw()  # drawn by this version
    with pytest.raises(ValueError, match="not the cohort that was drawn"):
        old.update(replace(later, weight=later.weight * 2), np.ones(len(later)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ledger.rounds": np.array([9, 1])},
        {"ledger.rounds": np.array([-1, 1])},
        {"ledger.rounds": np.array([0.0, 1.0])},
        {"ledger.rounds": np.array([1])},
        {"ledger.seals": np.zeros((2, 9), np.uint8)},
        {"ledger.seals": np.zeros((2, 8))},
    ],
    ids=str,
)
def test_seals_that_are_none(wrong):
    sampler = eight()
    drawn(sampler)
    with pytest.raises(ValueError, match=r"ledger\.(rounds|seals)"):
        kvib.Sampler.unpacked(sampler.packed() | wrong)


def test_a_selector_takes_its_cohorts_as_chosen():
    selector = kvib.Selector(kvib.PowerOfChoice(), SIZES, 2)
    cohort = selector.draw()
    with pytest.raises(ValueError, match="not the cohort that was drawn in round 0"):
        selector.update(cohort.take(np.array([True, False])), [1])
    selector.update(cohort, [1, 2])


MEMORIES = [kvib.LastUpdates(), kvib.GroupMeans(2), kvib.LargestEntries(3)]


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("guard", [None, kvib.Guard()])
@pytest.mark.parametrize("tensor", [False, True])
def test_a_buffer_may_be_used_again(memory, guard, tensor):
    """What `add` was given is not looked at later."""
    options = {"estimator": kvib.Difference(memory), "guard": guard, "sketch": 2, "seed": 2}
    samplers = [kvib.Sampler(kvib.KVib(), np.ones(8), 3, kvib.pivotal, **options) for _ in range(2)]
    for _ in range(4):
        steps = []
        for sampler, again in zip(samplers, (False, True), strict=True):
            cohort = sampler.draw()
            rows = np.random.default_rng(cohort.round).normal(size=(3, 5))
            estimation = sampler.begin(cohort)
            buffer = torch.zeros(1, 5, dtype=torch.float64) if tensor else np.zeros((1, 5))
            mask = np.zeros(3, bool)
            for k in range(3):
                mask[:] = np.arange(3) == k
                buffer[:] = torch.tensor(rows[k]) if tensor else rows[k]
                estimation.add(mask if again else mask.copy(), buffer if again else buffer * 1)
            buffer[:], mask[:] = 1e9, False
            steps.append(estimation.finish())
        assert steps[0].tolist() == steps[1].tolist()
    first, second = (sampler.packed() for sampler in samplers)
    assert all(
        np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f")
        for name in first
        if name not in ("header", "ledger.seals")
    )


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (np.ones(4), r"shape \(4,\); give a row per client"),
        (np.ones((1, 2, 3)), r"shape \(1, 2, 3\); give a row per client"),
        (np.ones((2, 4)), "2 updates for 1 marked"),
    ],
)
def test_parts_that_are_none(updates, message):
    sampler = eight()
    estimation = sampler.begin(sampler.draw())
    with pytest.raises(ValueError, match=message):
        estimation.add(np.array([True, False, False]), updates)


def test_parts_of_integers_are_not_rounded():
    sampler = kvib.Sampler(kvib.BySize(), [1, 3], 2, kvib.pivotal)
    estimation = sampler.begin(sampler.draw())
    estimation.add(np.ones(2, bool), np.array([[1], [0]]))
    assert estimation.finish().tolist() == [0.25]


# Silence


def silent(kind, journal, path, **options):
    """A sampler, and what lets the first client of a round be silent."""
    given = (kvib.KVib(), np.ones(6), 3, kvib.pivotal)
    make = (lambda *a, **o: kvib.journalled(path, *a, **o)) if journal else kvib.Sampler
    sampler = make(*given, **options)

    def in_parts(cohort, mask):
        estimation = sampler.begin(cohort)
        estimation.add(mask, np.ones((int(mask.sum()), 2)))
        estimation.finish()

    ways = {
        "update": lambda c, m: sampler.update(c, np.where(m, 1.0, np.nan)),
        "step": lambda c, m: sampler.step(c, [np.ones(2) if came else None for came in m]),
        "parts": in_parts,
    }
    return sampler, ways[kind]


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("kind", ["update", "step", "parts"])
def test_silence_is_said_once_where_it_was_caused(kind, journal, tmp_path):
    sampler, play = silent(kind, journal, tmp_path / "run")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        play(sampler.draw(), np.ones(3, bool))
        assert said == []
        for _ in range(4):
            play(sampler.draw(), np.arange(3) > 0)
    [only] = said
    assert only.filename == __file__
    assert "1 of 3 clients of round 1 did not answer" in str(only.message)
    assert "This is said once; sampler.guarantee says it of every round" in str(only.message)
    other, play = silent(kind, False, None)
    with pytest.warns(UserWarning, match="did not answer"):  # it says so too
        play(other.draw(), np.arange(3) > 0)


def test_silence_that_is_an_error_stays_one():
    sampler, play = silent("update", False, None)
    cohort, before = sampler.draw(), packed(sampler)
    for _ in range(2):
        with pytest.raises(UserWarning, match="did not answer"):  # warnings are errors here
            play(cohort, np.arange(3) > 0)
        assert packed(sampler) == before
    play(cohort, np.ones(3, bool))


@pytest.mark.filterwarnings("ignore:1 of 3 clients")
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("kind", ["update", "step", "parts"])
def test_what_is_left_of_the_guarantee(kind, journal, tmp_path):
    """A round that lost a client whose answer was certain is biased; the next one need not be."""
    sampler, play = silent(kind, journal, tmp_path / "run", response=[1, 1, 1, 1, 1, 0.5])
    assert sampler.guarantee == "unbiased"
    said = {}
    for _ in range(30):
        cohort = sampler.draw()
        assert cohort.guarantee == "unbiased"  # of the draw
        for mask in (np.ones(3, bool), cohort.ids != 5, cohort.ids != 0):
            wanted = "biased" if 0 in cohort.ids[~mask] else "unbiased"
            assert cohort.take(mask).guarantee == wanted
        play(cohort, mask)
        said[0 in cohort.ids] = sampler.guarantee
    assert said == {True: "biased", False: "unbiased"}


def test_guarantees_of_estimations():
    weights, updates = np.ones(4), np.ones((2, 3))
    for coefficients, wanted in ((kvib.unbiased, "unbiased"), (kvib.self_normalised, "biased")):
        sampler = kvib.Sampler(kvib.BySize(), [1, 2, 3, 4], 2, kvib.pivotal)
        estimation = sampler.begin(sampler.draw(), coefficients)
        estimation.add(np.ones(2, bool), updates)
        estimation.finish()
        assert (estimation.guarantee, sampler.guarantee) == (wanted, wanted)
    guarded = kvib.Sampler(kvib.BySize(), weights, 2, kvib.pivotal, guard=kvib.Guard(0.5))
    for factor, wanted in ((1, "unbiased"), (100, "biased")):
        guarded.step(guarded.draw(), factor * updates)
        assert guarded.guarantee == wanted
    learned = kvib.Sampler(kvib.BySize(), weights, 2, response=kvib.EstimatedRate())
    cohort = learned.draw()
    learned.update(cohort, [1, np.nan][: len(cohort)])
    assert learned.guarantee == "consistent"


def test_a_guarantee_where_only_availability_is_learned():
    """Answers are certain then, whatever is learned of who is there."""
    rate = kvib.EstimatedRate()
    sampler = kvib.Sampler(kvib.BySize(), np.ones(4), 2, kvib.pivotal, availability=rate)
    with pytest.warns(UserWarning, match="did not answer"):
        sampler.update(sampler.draw(available=range(4)), [1, np.nan])
    assert sampler.guarantee == "biased"


# Clients that wait too long


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, 3),
        ({"procedure": kvib.independent}, 3),
        ({"cost": np.full(12, 2.0), "budget": 6.0}, 3),
        ({"cost": np.arange(1.0, 13), "budget": 6.5}, 11),
        ({"response": 0.5, "over_select": True}, 1),
        ({"response": 0.5}, 3),
        ({"budget": 2.5}, 3),
        ({"budget": 12}, 0),
    ],
    ids=str,
)
def test_a_cool_down_that_leaves_rounds_empty_is_said(options, longest, tmp_path):
    given = {"budget": 3, "procedure": kvib.pivotal} | options
    arguments = (kvib.KVib(), np.ones(12))
    for rounds in (0, longest):
        kvib.Sampler(*arguments, **given, cool_down=rounds)
    match = rf"cool_down={longest + 1} is too long for 12 .* cool_down={longest} is the longest"
    for make in (kvib.Sampler, lambda *a, **o: kvib.journalled(tmp_path / "run", *a, **o)):
        with pytest.warns(UserWarning, match=match) as said:
            make(*arguments, **given, cool_down=longest + 1)
        assert {one.filename for one in said} == {__file__}


def test_the_longest_cool_down_keeps_rounds_full():
    sampler = kvib.Sampler(kvib.KVib(), np.ones(13), 3, kvib.pivotal, cool_down=3)
    assert [len(sampler.draw()) for _ in range(12)] == [3] * 12
    with pytest.warns(UserWarning, match="rounds are short or empty"):
        sampler = kvib.Sampler(kvib.KVib(), np.ones(13), 3, kvib.pivotal, cool_down=9)
    assert [len(sampler.draw()) for _ in range(6)] == [3, 3, 3, 3, 1, 0]


def test_a_policy_made_for_its_own_clients():
    """It cannot be tried on two clients, and need not be."""

    class Fast(kvib.KVib):
        def start(self, setting):
            assert len(setting.weights) == 4
            return super().start(setting)

    assert len(kvib.Sampler(Fast(), [1, 2, 3, 4], 4, kvib.independent).draw()) == 4


def test_names_that_moved_cannot_be_set():
    sampler = kvib.Sampler(kvib.KVib(), [1, 2, 3, 4], 2)
    with pytest.raises(AttributeError, match=r"sampler\.state\.step_length\.value"):
        sampler.usual_step = 3.0

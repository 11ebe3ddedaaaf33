"""Clients that join, leave, return, weigh more or less, are absent, wait, cost and stay silent."""

import time

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.analysis import metrics
from members import INDEXED, OPEN
from test_unbiased import every_start

N, DIM = 4, 3
WEIGHTS = np.array([3.0, 1.0, 0.5, 6.0])
COST = np.array([1.0, 5.0, 2.0, 0.5])

BY_WEIGHT = kvib.KVib(mix=0.3, by_weight=True)
LISTED = [
    (kvib.KVib(), kvib.pivotal),
    (kvib.Vrb(), kvib.with_replacement),
    (kvib.Forecast(), kvib.systematic),
    (kvib.BySize(), kvib.conditional_poisson),
    (kvib.Uniform(), kvib.without_replacement),
]
FIXED = [(kvib.Avare(), kvib.pivotal), (kvib.Mabs(), kvib.independent)]
"""Policies whose clients may be absent, wait or leave, but not join."""


def members(pairs):
    return pytest.mark.parametrize(("policy", "procedure"), pairs, ids=lambda part: repr(part))


def play(sampler, rounds, seed=7, **options):
    """Rounds of random feedback; the cohorts."""
    cohorts = []
    for _ in range(rounds):
        cohort = sampler.draw(**options)
        norms = np.random.default_rng([seed, cohort.round]).lognormal(0, 1.5, len(sampler))
        sampler.update(cohort, norms[cohort.ids])
        cohorts.append(cohort)
    return cohorts


def new(policy, procedure, budget=2, **options):
    return kvib.Sampler(policy, WEIGHTS, budget, procedure, seed=3, **options)


def updates_of(sampler):
    rng = np.random.default_rng(8)
    return rng.normal(size=(len(sampler), DIM)) * rng.lognormal(0, 1, len(sampler))[:, None]


def every_draw(monkeypatch, sampler, **arguments):
    """(probability, cohort) of everything the next draw can give; the sampler stays as it is."""
    packed = sampler.packed()

    def draw(rng):
        again = kvib.Sampler.unpacked(packed)
        again.state.drawing.generator = lambda *_: rng
        return again.draw(**arguments)

    if sampler.procedure is kvib.ordered:
        p = sampler.probabilities(**arguments)
        return every_start(draw, p[p > 0])
    return outcomes(draw)


def check_unbiased(monkeypatch, sampler, eligible, answers=None, **arguments):
    """E[d] = Σ λ g over the eligible, and everybody is drawn as often as foretold."""
    updates = updates_of(sampler)
    told = updates if answers is None else updates * answers[:, None]  # the mean of what arrives
    mean, mass, count = np.zeros(DIM), 0.0, np.zeros(len(sampler))
    for probability, cohort in every_draw(monkeypatch, sampler, **arguments):
        d = kvib.estimate(cohort, told[cohort.ids]) if len(cohort) else np.zeros(DIM)
        mean, mass = mean + probability * d, mass + probability
        count[cohort.ids] += probability * cohort.count
    assert mass == pytest.approx(1, abs=1e-12)
    assert mean == pytest.approx(sampler.weights[eligible] @ updates[eligible], abs=1e-10)
    p = sampler.probabilities(**arguments)
    assert count == pytest.approx(p, abs=1e-10)
    assert np.flatnonzero(p).tolist() == sorted(eligible)
    return p


def packed_equal(a, b):
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def refuses(sampler, match, call, error=ValueError):
    """The call is an error that says why, and changes nothing."""
    before = sampler.packed()
    with pytest.raises(error, match=match):
        call()
    assert packed_equal(before, sampler.packed())


# Exact, by enumeration


@members(INDEXED + LISTED + FIXED)
def test_absent(monkeypatch, policy, procedure):
    sampler = new(policy, procedure)
    play(sampler, 4)
    p = check_unbiased(monkeypatch, sampler, [0, 2, 3], absent=[1])
    assert p.sum() == pytest.approx(2, rel=1e-12)
    assert sampler.draw(absent=[3, 0, 1, 2]).ids.tolist() == []
    few = sampler.draw(absent=[0, 2, 3])  # fewer than the budget
    assert few.ids.tolist() == [1]
    assert few.budget == pytest.approx(1, rel=1e-12)
    assert few.requested == 2


@members(INDEXED + LISTED + FIXED)
def test_clients_that_wait(monkeypatch, policy, procedure):
    sampler = new(policy, procedure, 1, cool_down=2)
    play(sampler, 3)
    for _ in range(4):
        *_, before, last = cohorts = play(sampler, 3)
        assert not set(before.ids) & set(last.ids)
        assert not set(cohorts[0].ids) & set(last.ids)
        waiting = {*before.ids.tolist(), *last.ids.tolist()}
        check_unbiased(monkeypatch, sampler, [i for i in range(N) if i not in waiting])


@members(OPEN + LISTED)
def test_after_joins_leaves_and_new_weights(monkeypatch, policy, procedure):
    sampler = new(policy, procedure)
    play(sampler, 3)
    assert sampler.join([4.0, 0.7]).tolist() == [4, 5]
    sampler.leave([1, 4])
    play(sampler, 2)
    sampler.reweigh([0, 5], [9.0, 0.1])
    sampler.leave([2, 3])
    assert sampler.join(1.5, 1).tolist() == [1]  # it returns
    now = np.array([9, 1.5, 0, 0, 0, 0.1])
    assert sampler.weights == pytest.approx(now / now.sum(), rel=1e-14)
    p = check_unbiased(monkeypatch, sampler, [0, 1, 5])
    assert p.sum() == pytest.approx(2, rel=1e-12)
    check_unbiased(monkeypatch, sampler, [0, 5], absent=[1, 4, 2])


@members(INDEXED + LISTED[:4] + FIXED)
def test_the_budget_in_units_of_cost(monkeypatch, policy, procedure):
    sampler = new(policy, procedure, 4.0, cost=COST)
    play(sampler, 4)
    assert COST @ sampler.probabilities() == pytest.approx(4, rel=1e-12)
    p = check_unbiased(monkeypatch, sampler, [0, 1, 3], absent=[2], budget=2.5)
    assert COST @ p == pytest.approx(2.5, rel=1e-12)
    if procedure.cap == 1:
        assert sampler.probabilities(budget=1e9) == pytest.approx(np.ones(N))


def test_cheap_clients_are_preferred():
    """p ∝ score/√cost, which is what the least variance for the money asks for."""
    sampler = new(kvib.Uniform(), kvib.independent, 1.0, cost=[1, 4, 16, 1])
    assert sampler.probabilities() == pytest.approx(np.array([4, 2, 1, 4]) / 32)


@members(OPEN + LISTED[:4])
def test_newcomers_cost_too(monkeypatch, policy, procedure):
    sampler = new(policy, procedure, 4.0, cost=COST)
    play(sampler, 2)
    refuses(sampler, "a cost if, and only if", lambda: sampler.join([1.0]))
    refuses(sampler, "positive number", lambda: sampler.join([1.0], cost=[-1.0]))
    sampler.join(2.0, cost=0.25)
    sampler.leave([1, 3])
    sampler.join(1.0, 1, cost=7.0)
    now, here = np.array([1, 7, 2, 0, 0.25]), [0, 1, 2, 4]
    assert now @ sampler.probabilities() == pytest.approx(4, rel=1e-12)
    check_unbiased(monkeypatch, sampler, here[1:], absent=[0])


@members(INDEXED + LISTED[:4])
@pytest.mark.parametrize("each", [True, False])
def test_over_selection_with_known_rates(monkeypatch, policy, procedure, each):
    response = np.array([0.9, 0.5, 1.0, 0.3]) if each else np.full(N, 0.6)
    options = {"response": response if each else 0.6, "over_select": True}
    sampler = new(policy, procedure, 1.5, **options)
    for _ in range(4):
        cohort = sampler.draw()
        sampler.update(cohort, np.where(cohort.ids == 1, np.nan, 1.0 + cohort.ids))
    assert response @ sampler.probabilities() == pytest.approx(1.5, rel=1e-12)
    p = check_unbiased(monkeypatch, sampler, [0, 1, 3], response, absent=[2])
    assert response @ p == pytest.approx(min(1.5, response[[0, 1, 3]].sum()), rel=1e-12)


@members([(kvib.KVib(), kvib.independent), (kvib.Forecast(), kvib.ordered), LISTED[0]])
def test_over_selection_with_rates_that_are_learned(policy, procedure):
    """The mean number of answers is K within 5.5 standard errors: a false alarm in 10^7."""
    clients, K, rounds, rng = 200, 20, 400, np.random.default_rng(0)
    rate = rng.uniform(0.3, 0.9, clients)
    weights = rng.lognormal(0, 1, clients)
    learned = kvib.EstimatedRate()
    sampler = kvib.Sampler(
        policy, weights, K, procedure, seed=1, response=learned, over_select=True
    )
    answers = []
    for _ in range(rounds):
        cohort = sampler.draw()
        assert cohort.guarantee == "consistent"
        norms = np.where(rng.random(len(cohort)) < rate[cohort.ids], 1.0, np.nan)
        sampler.update(cohort, norms)
        answers.append(np.count_nonzero(~np.isnan(norms)))
    late = np.array(answers[rounds // 4 :])
    assert late.mean() == pytest.approx(K, abs=5.5 * late.std() / np.sqrt(len(late)))


# What the numbers mean after changes


@members(OPEN + LISTED)
def test_weights_probabilities_and_metrics(policy, procedure):
    sampler = new(policy, procedure)
    play(sampler, 3)
    sampler.leave([0, 3])
    sampler.join([8.0])
    assert len(sampler) == 5  # ids are below it
    assert sampler.weights.sum() == pytest.approx(1, rel=1e-14)
    assert sampler.weights == pytest.approx(np.array([0, 1, 0.5, 0, 8]) / 9.5, rel=1e-14)
    p = sampler.probabilities()
    assert (p[[0, 3]] == 0).all()
    cohort = sampler.draw()
    assert cohort.weight.tolist() == sampler.weights[cohort.ids].tolist()
    assert cohort.expected.tolist() == p[cohort.ids].tolist()
    with pytest.raises(ValueError, match="read-only"):
        sampler.weights[0] = 1
    here = np.flatnonzero(p)
    pi = sampler.weights * np.linalg.norm(updates_of(sampler), axis=1)
    if procedure is kvib.independent:
        some = metrics.variance(p[here], pi[here], procedure=procedure).value
        assert metrics.variance(p, pi, procedure=procedure).value == pytest.approx(some)
        assert some == pytest.approx((pi[here] ** 2 * (1 / p[here] - 1)).sum())


def test_whoever_outweighs_all_others_leaves():
    """Σ weight of the rest is not what is left of 1: it is theirs, to the last digit."""
    rng = np.random.default_rng(0)
    small = rng.lognormal(0, 1, 1000)
    for weights in ([1e14, *small], [*small, *rng.lognormal(30, 1, 500)]):
        sampler = kvib.Sampler(kvib.BySize(), weights, 10, kvib.independent)
        sampler.leave(np.flatnonzero(np.array(weights) > 1e5))
        left = np.array(weights)[np.array(weights) <= 1e5]
        here = sampler.weights[sampler.weights > 0]
        assert here == pytest.approx(left / left.sum(), rel=1e-13)
        assert sampler.probabilities().sum() == pytest.approx(10, rel=1e-12)


def test_costs_of_whoever_leaves():
    cost = [1e14, *np.random.default_rng(0).lognormal(0, 1, 100)]
    sampler = kvib.Sampler(kvib.KVib(mix=0.5), np.ones(101), 20.0, kvib.independent, cost=cost)
    sampler.leave(0)
    assert np.array(cost) @ sampler.probabilities() == pytest.approx(20, rel=1e-12)


def test_weights_beyond_floating_point():
    sampler = kvib.Sampler(kvib.BySize(), [1e308, 1e308, 1.5e308], 1, kvib.independent)
    sampler.join([5e307])
    assert sampler.weights == pytest.approx(np.array([2, 2, 3, 1]) / 8)
    refuses(sampler, "cannot be compared", lambda: sampler.join([1e-320]))
    sampler = kvib.Sampler(kvib.BySize(), [1e-200, 1e-200], 1, kvib.independent)
    refuses(sampler, "cannot be compared", lambda: sampler.reweigh([0], [1e200]))


def test_the_same_weight_again_changes_nothing():
    sampler = new(kvib.KVib(), kvib.independent)
    play(sampler, 3)
    before, p = sampler.weights.copy(), sampler.probabilities()
    sampler.reweigh(range(N), WEIGHTS)
    assert sampler.weights == pytest.approx(before, rel=1e-15)
    assert sampler.probabilities() == pytest.approx(p, rel=1e-13)


@members([(kvib.KVib(), kvib.independent), LISTED[0]])
def test_feedback_of_a_round_in_which_others_came(policy, procedure):
    """λ moves with every newcomer; what a client is known for does not."""
    quiet, busy = (new(policy, procedure) for _ in range(2))
    a, b = quiet.draw(), busy.draw()
    busy.join([1000.0])
    quiet.update(a, np.ones(len(a)))
    busy.update(b, np.ones(len(b)))
    assert busy.state.learned.omega[:N].tolist() == quiet.state.learned.omega.tolist()


@members([(kvib.KVib(), kvib.independent), LISTED[0]])
def test_feedback_of_a_client_that_changed_since(policy, procedure):
    """Heard after it left, or after its weight doubled: known as it is now."""
    sampler = new(policy, procedure, N)  # everybody, p = 1
    cohort = sampler.draw()
    sampler.leave(0)
    sampler.reweigh(1, 2 * WEIGHTS[1])
    sampler.update(cohort, np.ones(N))
    assert sampler.state.learned.omega[0] > 0
    assert sampler.state.learned.omega[:2] == pytest.approx(
        (WEIGHTS[:2] * [1, 2] / WEIGHTS.sum()) ** 2
    )
    assert sampler.join(WEIGHTS[0], 0).tolist() == [0]


# Returning


@members(OPEN + LISTED)
def test_whoever_returns_has_its_history(policy, procedure):
    away, stays = (new(policy, procedure) for _ in range(2))
    for sampler in (away, stays):
        play(sampler, 6)
    scores = away.policy.scores(away.state.learned, np.arange(N)).tolist()
    away.leave([1, 3])
    away.join(WEIGHTS[[3, 1]], [3, 1])
    assert away.policy.scores(away.state.learned, np.arange(N)) == pytest.approx(scores, rel=0.2)
    if not isinstance(policy, kvib.Forecast):  # which updates its forecast on the occasion
        assert away.probabilities() == pytest.approx(stays.probabilities(), rel=1e-12)
    assert away.weights == pytest.approx(stays.weights, rel=1e-14)


@pytest.mark.filterwarnings("ignore:cool_down")
def test_leaving_is_no_way_round_the_cool_down():
    for procedure in (kvib.independent, kvib.pivotal):
        sampler = new(kvib.KVib(), procedure, 2, cool_down=3)
        while len(first := sampler.draw()) == 0:
            pass
        sampler.leave(first.ids[:1])
        sampler.draw()
        sampler.join(1.0, first.ids[:1])
        assert sampler.probabilities()[first.ids[0]] == 0
        sampler.draw()
        sampler.draw()
        assert sampler.probabilities()[first.ids[0]] > 0


def test_waiting_ends_while_gone():
    for procedure in (kvib.independent, kvib.pivotal):
        sampler = new(kvib.KVib(), procedure, 2, cool_down=1)
        while len(first := sampler.draw()) == 0:
            pass
        sampler.leave(first.ids[:1])
        for _ in range(3):
            sampler.draw()
        assert sampler.probabilities()[first.ids[0]] == 0
        sampler.join(1.0, first.ids[:1])
        assert sampler.probabilities()[first.ids[0]] > 0


def test_looking_changes_nothing():
    """Whether probabilities were asked for must not decide who is drawn next."""
    looked, not_looked = (
        kvib.Sampler(kvib.KVib(), np.ones(50), 10, kvib.independent, seed=2, cool_down=2)
        for _ in range(2)
    )
    for sampler in (looked, not_looked):
        for _ in range(30):
            cohort = sampler.draw()
            if sampler is looked:
                sampler.probabilities()
                with pytest.raises(ValueError, match="budget"):
                    sampler.draw(budget=-1)
            norms = np.random.default_rng(cohort.round).lognormal(0, 2, 50)
            sampler.update(cohort, norms[cohort.ids])
    assert looked.draw().ids.tolist() == not_looked.draw().ids.tolist()
    assert looked.state.index.main.order.tolist() == not_looked.state.index.main.order.tolist()


def test_forecast_after_growth_resumes_exactly(tmp_path):
    """Room kept for newcomers must not show in what is fitted."""
    rng = np.random.default_rng(0)
    sampler = kvib.Sampler(kvib.Forecast(), rng.lognormal(0, 1, 300), 40, kvib.independent)
    play(sampler, 3)
    sampler.join(rng.lognormal(0, 1, 7))
    sampler.save(tmp_path / "grown.npz")
    other = kvib.Sampler.load(tmp_path / "grown.npz")
    for a, b in zip(play(sampler, 12), play(other, 12), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.expected.tolist() == b.expected.tolist()


# Keys

KEYS = ["ann", "", "Ωμέγα 🦊", "1", 1, 0, -5, 2**70, "line\nbreak", "'; DROP TABLE"]


def keyed(policy=None, procedure=kvib.independent, **options):
    weights = np.arange(1.0, len(KEYS) + 1)
    return kvib.Sampler(policy or kvib.KVib(), weights, 4, procedure, keys=KEYS, **options)


def test_keys_are_strings_and_integers():
    sampler = keyed()
    assert sampler.ids(KEYS).tolist() == list(range(len(KEYS)))
    assert sampler.keys(range(len(KEYS))) == KEYS
    assert sampler.ids("1").tolist() == [3]
    assert sampler.ids(1).tolist() == sampler.ids(np.int32(1)).tolist() == [4]
    assert sampler.ids(np.array([1, 0])).tolist() == [4, 5]
    assert sampler.ids(np.array(["ann", "1"])).tolist() == [0, 3]
    cohort = sampler.draw(absent=sampler.ids(["ann", ""]))
    assert not {"ann", ""} & set(sampler.keys(cohort.ids))
    numbered = kvib.Sampler(kvib.KVib(), [1, 2, 3], 1, keys=np.array([7, 8, 9]))
    assert numbered.ids([9, np.uint8(7)]).tolist() == [2, 0]
    assert [type(key) for key in numbered.keys([0, 1])] == [int, int]


def test_keys_survive_files(tmp_path):
    sampler = keyed()
    sampler.leave(["", 0])
    sampler.join([3.0, 2.0], ["", "neu"])
    sampler.save(tmp_path / "state.npz")
    loaded = kvib.Sampler.load(tmp_path / "state.npz")
    assert loaded.keys(range(len(loaded))) == [*KEYS, "neu"]
    assert loaded.weights.tolist() == sampler.weights.tolist()
    refuses(loaded, "has left before", lambda: loaded.leave([0]))
    assert loaded.join([1.0], [0]).tolist() == [5]
    assert loaded.draw().ids.tolist() == (sampler.join(1.0, 0), sampler.draw())[1].ids.tolist()


def test_keys_in_a_journal(tmp_path):
    path, weights = tmp_path / "run.kvib", np.arange(1.0, len(KEYS) + 1)
    given = {"policy": kvib.KVib(), "weights": weights, "budget": 4, "keys": iter(KEYS)}
    sampler, plain = kvib.journalled(path, **given), keyed()
    for each in (sampler, plain):
        each.leave(["", 0, 2**70])
        each.draw(absent=np.arange(len(KEYS)) < 2)  # a mask
        each.join([3.0, 2.0], ("", np.str_("neu")))
        each.reweigh(np.int64(1), 5.0)
    sampler.close()
    sampler = kvib.journalled(path, **(given | {"keys": KEYS}))
    assert sampler.keys(range(len(sampler))) == [*KEYS, "neu"]
    assert sampler.weights.tolist() == plain.weights.tolist()
    assert sampler.draw().ids.tolist() == plain.draw().ids.tolist()
    sampler.close()
    with pytest.raises(ValueError, match="other keys"):
        kvib.journalled(path, **(given | {"keys": [str(key) for key in KEYS]}))


@pytest.mark.parametrize("keep", [None, 3])
def test_what_a_journal_says_of_clients_that_come_and_go(tmp_path, keep):
    path, drawn = tmp_path / "run", {}
    with kvib.journalled(
        path, kvib.KVib(), WEIGHTS, 2, cool_down=1, snapshot_every=2, keep=keep
    ) as sampler:
        for t in range(12):
            if t % 3 == 0:
                sampler.join([1.0 + t])
            if t % 4 == 1:
                sampler.leave([t // 4])
            cohort = sampler.draw(absent=[t % 4])
            sampler.update(cohort, np.ones(len(cohort)))
            drawn[t] = cohort
    history = kvib.journal.read(path)
    ids = np.concatenate([cohort.ids for cohort in drawn.values()])
    counts = np.bincount(ids, minlength=8)
    assert np.array_equal(np.pad(history.participation(), (0, 8))[:8], counts)
    for logged in history.rounds():
        then = drawn[logged.cohort.round]
        assert logged.cohort.ids.tolist() == then.ids.tolist()
        assert logged.cohort.coefficients == pytest.approx(then.coefficients, rel=1e-6)
    assert history.table().size.tolist() == [len(cohort) for cohort in drawn.values()]


def test_a_hundred_thousand_keys(tmp_path):
    names = [f"device {i:x}" if i % 3 else i for i in range(100_000)]
    sampler = kvib.Sampler(kvib.KVib(), np.ones(len(names)), 50, keys=names)
    sampler.leave(names[10:20])
    sampler.join(np.ones(1000), [f"new {i}" for i in range(1000)])
    sampler.save(tmp_path / "state.npz")
    loaded = kvib.Sampler.load(tmp_path / "state.npz")
    assert loaded.ids(["device 1", 3, "new 999"]).tolist() == [1, 3, 100_999]
    assert loaded.keys(loaded.draw().ids) == sampler.keys(sampler.draw().ids)


@pytest.mark.parametrize(
    "keys",
    [[1, 2], [1, 1, 2], [1.0, 2, 3], [None, 1, 2], [True, 2, 3], [b"a", 1, 2], "abc", b"abc"],
)
def test_keys_that_are_none(keys):
    with pytest.raises(ValueError, match=r"key|listed twice"):
        kvib.Sampler(kvib.KVib(), [1, 2, 3], 1, keys=keys)


# Errors change nothing

ERRORS = {
    "unknown key": (lambda s: s.leave(["ann", "nobody"]), "no client 'nobody'"),
    "unknown key to reweigh": (lambda s: s.reweigh(["nobody"], [1]), "no client 'nobody'"),
    "bool is no key": (lambda s: s.leave([True]), "neither a string nor an integer"),
    "float is no key": (lambda s: s.leave(1.0), "neither a string nor an integer"),
    "bytes are no key": (lambda s: s.leave(b"ann"), "neither a string nor an integer"),
    "odd newcomer": (lambda s: s.join([1.0, 2.0], ["new", ("a", 1)]), "neither a string"),
    "unhashable newcomer": (lambda s: s.join([1.0], [["new"]]), "neither a string"),
    "nameless newcomer": (lambda s: s.join([1.0]), "give the newcomers keys"),
    "listed twice": (lambda s: s.join([1.0, 2.0], ["new", "new"]), "listed twice"),
    "is here": (lambda s: s.join([1.0, 2.0], ["new", "ann"]), "'ann' is here already"),
    "too many keys": (lambda s: s.join([1.0], ["a", "b"]), "2 keys for 1 weights"),
    "too few keys": (lambda s: s.join([1.0, 2.0], "new"), "1 keys for 2 weights"),
    "nobody joins": (lambda s: s.join([], []), "shape"),
    "negative": (lambda s: s.join([1.0, -2.0], ["a", "b"]), "not a positive finite"),
    "nan": (lambda s: s.reweigh(["ann"], [np.nan]), "not a positive finite"),
    "zero": (lambda s: s.reweigh(["ann"], [0]), "not a positive finite"),
    "infinite": (lambda s: s.join(np.inf, "new"), "not a positive finite"),
    "wrong length": (lambda s: s.reweigh(["ann", ""], [1]), "1 weights for 2"),
    "reweighed twice": (lambda s: s.reweigh(["ann", "ann"], [1, 2]), "listed twice"),
    "left before": (lambda s: s.leave(["ann", "1"]), "'1' has left before"),
    "everybody leaves": (lambda s: s.leave([k for k in KEYS if k != "1"]), "end the run"),
    "no costs here": (lambda s: s.join([1.0], ["new"], cost=[1.0]), "if, and only if"),
    "absent and unknown": (lambda s: s.draw(absent=[99]), "unknown client id 99"),
    "absent twice": (lambda s: s.draw(absent=[1, 1]), "listed twice"),
    "absent by key": (lambda s: s.draw(absent=["ann"]), "list of ids"),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("procedure", [kvib.independent, kvib.ordered, kvib.pivotal], ids=repr)
def test_errors_change_nothing(name, procedure):
    call, message = ERRORS[name]
    sampler = keyed(procedure=procedure, cool_down=1)
    sampler.leave("1")
    play(sampler, 4)
    refuses(sampler, message, lambda: call(sampler))
    play(sampler, 2)
    assert sampler.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_do_not_stop_a_journal(name, tmp_path):
    call, message = ERRORS[name]
    sampler = kvib.journalled(tmp_path / "run", kvib.KVib(), np.ones(len(KEYS)), 4, keys=KEYS)
    sampler.leave("1")
    with pytest.raises(ValueError, match=message):
        call(sampler)
    cohort = sampler.draw()
    sampler.close()
    assert kvib.journalled(tmp_path / "run").outstanding()[0].ids.tolist() == cohort.ids.tolist()


def test_clients_without_keys_are_called_by_their_ids():
    sampler = new(kvib.KVib(), kvib.independent)
    sampler.leave([3])
    refuses(sampler, "called by their ids", lambda: sampler.join([1.0], ["ann"]))
    refuses(sampler, "called by their ids", lambda: sampler.join([1.0, 1.0], [3, 4]))
    refuses(sampler, "is here already", lambda: sampler.join([1.0], [2]))
    refuses(sampler, "unknown client id 7", lambda: sampler.leave([7]))
    refuses(sampler, "not 1.5", lambda: sampler.reweigh([1.5], [1]))
    assert sampler.join([1.0], [3]).tolist() == [3]
    assert sampler.join([1.0, 2.0]).tolist() == [4, 5]


@pytest.mark.parametrize(
    "policy", [kvib.Avare(), kvib.OSMD(), kvib.Mabs(), kvib.Optimal(), kvib.AOCS()], ids=repr
)
def test_policies_for_a_fixed_population(policy):
    sampler = new(policy, kvib.independent)
    norms = {"norms": np.ones(N)} if policy.needs_norms else {}
    cohort = sampler.draw(**norms)
    sampler.update(cohort, np.ones(len(cohort)))
    refuses(sampler, "does not take clients that join", lambda: sampler.join([1.0]))
    refuses(sampler, "does not take clients that join", lambda: sampler.join([1.0], [0]))
    refuses(sampler, "does not take", lambda: sampler.reweigh([0], [1.0]))
    sampler.leave([0])  # is possible, for good
    assert 0 not in sampler.draw(**norms).ids
    assert sampler.weights == pytest.approx(np.array([0, 1, 0.5, 6]) / 7.5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"estimator": kvib.Difference()}, "an estimator that remembers"),
        ({"sketch": 4}, "sketches"),
        ({"variables": np.ones((N, 2))}, "variables"),
        ({"response": np.full(N, 0.5)}, "response or availability"),
        ({"availability": np.full(N, 0.5)}, "response or availability"),
    ],
)
def test_what_has_one_entry_per_client(options, named):
    sampler = new(kvib.KVib(), kvib.independent, **options)
    refuses(sampler, f"a sampler with {named}.*start a new", lambda: sampler.join([1.0]))
    refuses(sampler, f"a sampler with {named}.*start a new", lambda: sampler.leave([1]))
    refuses(sampler, f"a sampler with {named}.*start a new", lambda: sampler.reweigh([1], [1.0]))


def test_rates_of_newcomers_are_learned():
    sampler = new(kvib.KVib(), kvib.independent, 3, response=kvib.EstimatedRate())
    for _ in range(5):
        cohort = sampler.draw()
        sampler.update(cohort, np.where(cohort.ids == 0, np.nan, 1.0))
    sampler.join(np.ones(2000))
    cohort = sampler.draw()
    assert (cohort.answer_probability > 0).all()
    sampler.update(cohort, np.ones(len(cohort)))
    loaded = kvib.Sampler.unpacked(sampler.packed())
    assert loaded.draw().answer_probability.tolist() == sampler.draw().answer_probability.tolist()


@pytest.mark.parametrize("rounds", [-1, 1.5, True, float("nan")])
def test_cool_downs_that_are_none(rounds):
    with pytest.raises(ValueError, match="cool_down"):
        new(kvib.KVib(), kvib.independent, cool_down=rounds)


# A million changes


def changed(sampler, changes, rng, gone, at_once=20):
    """Joins, returns, leaves and new weights in small groups, mixed with rounds."""
    done = 0
    while done < changes:
        m = int(rng.integers(1, at_once + 1))
        what = rng.integers(4)
        if what == 0:
            ids = rng.integers(len(sampler), size=m)
            ids = np.array(sorted({i for i in ids.tolist() if i not in gone}), np.int64)
            sampler.leave(ids)
            gone.update(ids.tolist())
        elif what == 1 and gone:
            ids = np.array([gone.pop() for _ in range(min(m, len(gone)))], np.int64)
            sampler.join(rng.lognormal(0, 1, len(ids)), ids)
        elif what == 2:
            ids = np.unique(rng.integers(len(sampler), size=m))
            sampler.reweigh(ids, rng.lognormal(0, 1, len(ids)))
        else:
            ids = sampler.join(rng.lognormal(0, 1, m))
        done += len(ids)
        if rng.random() < 0.05:
            away = np.unique(rng.integers(len(sampler), size=10))
            cohort = sampler.draw(absent=away)
            assert not gone & set(cohort.ids.tolist())
            sampler.update(cohort, rng.lognormal(0, 1, len(cohort)))


def check_against_a_rebuilt_one(sampler, gone):
    index, fresh = sampler.state.index, sampler.state.eligible._new_index()
    eligible = np.setdiff1d(np.arange(len(sampler)), [*gone, *sampler.state.cool_down.ids.tolist()])
    fresh.build(eligible)
    assert (index.main.start == fresh.main.start).all()
    for part, rebuilt in ((index.main, fresh.main), (index.by_weight, fresh.by_weight)):
        if part is not None:
            assert part.sums.sum(axis=0) == pytest.approx(rebuilt.sums.sum(axis=0), rel=1e-9)
    assert sampler.weights.sum() == pytest.approx(1, rel=1e-12)
    p = sampler.policy.expected(
        sampler.state.learned,
        eligible,
        sampler.round,
        sampler.budget,
        1.0,
        weights=sampler.weights[eligible],
    )
    assert sampler.probabilities()[eligible] == pytest.approx(p, rel=1e-9)
    assert sampler.probabilities().sum() == pytest.approx(sampler.budget, rel=1e-9)


def many(policy, procedure, clients):
    weights = np.random.default_rng(1).lognormal(0, 1, clients)
    return kvib.Sampler(policy, weights, 100, procedure, seed=1, cool_down=3)


@members(OPEN)
def test_thousands_of_changes(policy, procedure):
    sampler, gone = many(policy, procedure, 1000), set()
    changed(sampler, 3000, np.random.default_rng(2), gone)
    check_against_a_rebuilt_one(sampler, gone)


@pytest.mark.slow
@members([(kvib.KVib(), kvib.independent), (BY_WEIGHT, kvib.ordered)])
def test_a_million_changes(policy, procedure):
    sampler, gone = many(policy, procedure, 300_000), set()
    changed(sampler, 1_000_000, np.random.default_rng(2), gone)
    check_against_a_rebuilt_one(sampler, gone)


@pytest.mark.timing
@members(
    [
        (kvib.KVib(), kvib.independent),
        (kvib.KVib(), kvib.ordered),
        (BY_WEIGHT, kvib.independent),
    ]
)
def test_a_change_costs_the_same_among_a_hundred_times_as_many(policy, procedure):
    """N = 10^4 and 10^6. What is left is that the arrays are no longer in the cache, and their
    growth, which is paid once for many newcomers."""
    times = {}
    for clients in (10_000, 1_000_000):
        sampler, gone, rng = many(policy, procedure, clients), set(), np.random.default_rng(2)
        changed(sampler, 5000, rng, gone)  # the first growth, and compilation
        tries = []
        for _ in range(3):
            started = time.perf_counter()
            changed(sampler, 3000, rng, gone)
            tries.append(time.perf_counter() - started)
        times[clients] = min(tries)
    assert times[1_000_000] < 4 * times[10_000]


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.ordered, kvib.pivotal], ids=repr)
@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.KVib(by_weight=True), kvib.Vrb()], ids=repr)
def test_the_budget_of_a_cohort_counts_clients(policy, procedure):
    """Whatever the budget is in: Σ expected over all who could be drawn."""
    rng = np.random.default_rng(5)
    N = 60
    options = [
        {"cost": rng.lognormal(0, 1, N), "budget": 12.0},
        {"response": rng.uniform(0.2, 1, N), "over_select": True, "budget": 5.0},
        {"cost": 1e6 * rng.lognormal(0, 1, N), "cool_down": 2, "budget": 9e6},
    ]
    for option in options:
        sampler = kvib.Sampler(policy, rng.lognormal(0, 1, N), procedure=procedure, **option)
        for _ in range(8):
            p = sampler.probabilities()
            cohort = sampler.draw()
            assert cohort.requested == option["budget"]
            assert cohort.budget == pytest.approx(p.sum(), rel=1e-9)
            sampler.update(cohort, rng.lognormal(0, 1, N)[cohort.ids])


@pytest.mark.parametrize("policy", [kvib.Vrb(), kvib.Mabs(), kvib.KVib(), kvib.Avare()], ids=repr)
def test_what_is_learned_does_not_hang_on_the_unit_of_cost(policy):
    cost = np.random.default_rng(3).lognormal(0, 1, 20)
    told = []
    for unit in (1.0, 2.0**20):  # a power of two leaves the draws as they are
        sampler = kvib.Sampler(policy, np.ones(20), 6 * unit, cost=cost * unit, seed=1)
        for _ in range(30):
            cohort = sampler.draw()
            sampler.update(cohort, 1 + cohort.ids % 3)
        told.append(sampler.probabilities())
    assert told[0] == pytest.approx(told[1], rel=1e-6)


@pytest.mark.parametrize("durable", [False, True])
def test_loading_after_costs_have_fallen(durable, tmp_path):
    """The budget was within all costs once; draws are clipped, and nothing is lost."""
    arguments = (kvib.KVib(), [1, 1, 1], 6)
    options = {"keys": ["a", "b", "c"], "cost": [1, 2, 3]}
    if durable:
        sampler = kvib.journalled(tmp_path / "x.kvib", *arguments, **options)
    else:
        sampler = kvib.Sampler(*arguments, **options)
    sampler.leave("c")
    sampler.join([1], ["c"], [0.5])
    sampler.update(sampler.draw(), [1, 2, 3])
    if durable:
        sampler.close()
        again = kvib.journalled(tmp_path / "x.kvib")
    else:
        sampler.save(tmp_path / "x.npz")
        again = kvib.Sampler.load(tmp_path / "x.npz")
    assert again.budget == 6
    assert again.draw().expected.tolist() == [1, 1, 1]


def test_who_left_is_not_offline():
    """Availability is that of clients who are here: time away after leaving counts for nothing."""
    sampler = kvib.Sampler(
        kvib.Uniform(), np.ones(4), 2, availability=kvib.EstimatedRate(), keys=list("abcd")
    )
    for _ in range(20):
        sampler.draw(available=[0, 1, 2, 3])
    sampler.leave("d")
    for _ in range(60):
        sampler.draw(available=[0, 1, 2])
    sampler.join([1], ["d"])
    cohort = sampler.draw(available=[0, 1, 2, 3], budget=4)
    assert cohort.availability.tolist() == [1, 1, 1, 1]


def test_who_rests_is_not_offline():
    sampler = kvib.Sampler(
        kvib.Uniform(), np.ones(4), 2, availability=kvib.EstimatedRate(), cool_down=1
    )
    for _ in range(20):
        cohort = sampler.draw(available=[0, 1, 2, 3])
    assert cohort.availability.tolist() == [1, 1]


def test_a_policy_that_fails_loses_no_client():
    class Stubborn(kvib.KVib):
        def reweigh(self, state, ids, weights, ratio):
            if len(ids):
                raise RuntimeError("no")
            return state

    sampler = kvib.Sampler(Stubborn(), [1, 2, 3], 2)
    with pytest.raises(RuntimeError, match="no"):
        sampler.reweigh([1], [5])
    assert len(sampler.state.index) == 3
    assert (sampler.probabilities() > 0).all()


class Picky(kvib.KVib):
    """Looks at each newcomer."""

    def enter(self, state, ids, weights):
        if (weights > 1).any():
            raise ValueError("too heavy for this policy")
        return super().enter(state, ids, weights)


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.balanced], ids=repr)
def test_a_policy_that_refuses_a_newcomer_changes_nothing(procedure):
    sampler = kvib.Sampler(Picky(), [1, 2, 3], 2, procedure)
    play(sampler, 2)
    sampler.leave([1])
    refuses(sampler, "too heavy", lambda: sampler.join([1.0, 100.0]))
    play(sampler, 2)
    assert sampler.join([1.0, 2.0]).tolist() == [3, 4]
    play(sampler, 2)


def test_a_refused_newcomer_does_not_harm_a_journal(tmp_path):
    sampler = kvib.journalled(tmp_path / "run", Picky(), [1, 2, 3], 2)
    with pytest.raises(ValueError, match="too heavy"):
        sampler.join([1.0, 100.0])
    sampler.join([1.0])
    cohort = sampler.draw()
    sampler.close()
    again = kvib.journalled(tmp_path / "run", policy=Picky())
    assert again.outstanding()[0].ids.tolist() == cohort.ids.tolist()
    assert len(again) == 4

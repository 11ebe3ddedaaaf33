"""One contract, all members: every policy with every procedure. See members.py."""

import dataclasses

import numpy as np
import pytest

import kvib
from members import FIXED, IDS, PAIRS, POLICIES, PROCEDURES

N = 12
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)

pair = pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=IDS)


def norms_of(round, rng_seed=1):
    return np.random.default_rng([rng_seed, round]).lognormal(0, 1, N)


def play(sampler, rounds, **options):
    """Some rounds; returns the cohorts."""
    cohorts = []
    for _ in range(rounds):
        norms = norms_of(sampler.round)
        known = {"norms": norms} if sampler.policy.needs_norms else {}
        cohort = sampler.draw(**known, **options)
        sampler.update(cohort, norms[cohort.ids])
        cohorts.append(cohort)
    return cohorts


def new(policy, procedure, budget=4, **options):
    return kvib.Sampler(policy, WEIGHTS, budget, procedure, seed=5, **options)


def probabilities(sampler, **options):
    known = {"norms": norms_of(sampler.round)} if sampler.policy.needs_norms else {}
    return sampler.probabilities(**known, **options)


def same(a, b):
    fields = (
        "ids",
        "count",
        "expected",
        "weight",
        "answer_probability",
        "round",
        "budget",
        "guarantee",
    )
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in fields)


@pair
def test_budget_is_met_and_no_client_is_left_out(policy, procedure):
    sampler = new(policy, procedure)
    for _ in range(25):
        p = probabilities(sampler)
        assert (p > 0).all()
        assert (p <= procedure.cap).all()
        slack = 0.2 if isinstance(policy, kvib.AOCS) else 1e-12  # AOCS may miss K, by design
        assert p.sum() == pytest.approx(4, rel=slack)
        assert p.sum() <= 4 * (1 + 1e-12)
        play(sampler, 1)


@pair
def test_order_is_aligned(policy, procedure):
    sampler = new(policy, procedure)
    play(sampler, 3)
    for _ in range(20):
        p = probabilities(sampler)
        (cohort,) = play(sampler, 1)
        assert (np.diff(cohort.ids) > 0).all()
        capped = procedure.checked(p)  # those that miss the cap by rounding are at the cap
        exact = np.where(cohort.expected == procedure.cap, capped[cohort.ids], p[cohort.ids])
        assert cohort.expected.tolist() == exact.tolist()
        assert cohort.weight.tolist() == sampler.weights[cohort.ids].tolist()
        assert (cohort.count >= 1).all()
        if procedure.cap == 1:
            assert (cohort.count == 1).all()
        assert cohort.coefficients == pytest.approx(
            sampler.weights[cohort.ids] * cohort.count / p[cohort.ids]
        )


@pair
def test_resume_equals_straight_run(policy, procedure, tmp_path):
    straight = new(policy, procedure, response=kvib.EstimatedRate())
    play(straight, 9)
    outstanding = straight.draw(**({"norms": norms_of(9)} if policy.needs_norms else {}))
    straight.save(tmp_path / "state.npz")
    resumed = kvib.Sampler.load(tmp_path / "state.npz")
    assert repr(resumed) == repr(straight)
    for sampler in (straight, resumed):
        norms = norms_of(99)[outstanding.ids]
        norms[:1] = np.nan
        sampler.update(outstanding, norms)
    assert all(map(same, play(straight, 9), play(resumed, 9)))
    assert probabilities(straight).tolist() == probabilities(resumed).tolist()


@pair
def test_same_seed_same_cohorts_whatever_the_policy_object(policy, procedure):
    assert all(map(same, play(new(policy, procedure), 8), play(new(policy, procedure), 8)))


@pair
def test_missing_answers_teach_nothing(policy, procedure):
    """NaN: the sampler learns from the others as if the silent had not been drawn."""
    silent, told = (new(policy, procedure, response=0.7) for _ in range(2))
    for sampler in (silent, told):
        play(sampler, 3)
    known = {"norms": norms_of(3)} if policy.needs_norms else {}
    a, b = silent.draw(**known), told.draw(**known)
    silent.update(a, np.full(len(a), np.nan))
    assert probabilities(silent).tolist() == probabilities(told).tolist()
    if len(b) > 1:
        norms = norms_of(4)[b.ids]
        norms[0] = np.nan
        told.update(b, norms)
        assert np.isfinite(probabilities(told)).all()
    play(silent, 3)


@pair
def test_a_round_that_is_given_up_teaches_nothing(policy, procedure, tmp_path):
    """Nothing about norms and nothing about answers: all is as if it were outstanding."""
    lost, waits = (new(policy, procedure, response=kvib.EstimatedRate()) for _ in range(2))
    cohorts = []
    for sampler in (lost, waits):
        play(sampler, 3)
        cohorts.append(sampler.draw(**({"norms": norms_of(3)} if policy.needs_norms else {})))
    lost.give_up(cohorts[0])
    for call in (lost.give_up, lambda cohort: lost.update(cohort, np.ones(len(cohort)))):
        with pytest.raises(ValueError, match="round 3 was given up before"):
            call(cohorts[0])
    lost.save(tmp_path / "state.npz")
    again = kvib.Sampler.load(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="round 3 was given up before"):
        again.give_up(cohorts[0])
    for sampler in (lost, again, waits):
        play(sampler, 3)
    assert packed(lost) == packed(again)
    assert probabilities(lost).tolist() == probabilities(waits).tolist()
    everybody = np.arange(N)
    assert lost.state.rates.at(everybody).tolist() == waits.state.rates.at(everybody).tolist()
    waits.update(cohorts[1], norms_of(3)[cohorts[1].ids])


@pair
def test_changed_budget(policy, procedure):
    sampler = new(policy, procedure)
    for budget in (1, 2.5, 7, N):
        p = probabilities(sampler, budget=budget)
        slack = 0.5 if isinstance(policy, kvib.AOCS) else 1e-12
        assert p.sum() == pytest.approx(budget, rel=slack)
        (cohort,) = play(sampler, 1, budget=budget)
        assert cohort.budget == cohort.requested == budget


@pair
def test_availability(policy, procedure):
    sampler = new(policy, procedure)
    play(sampler, 3)
    mask = np.zeros(N, dtype=bool)
    mask[[1, 4, 9]] = True
    p = probabilities(sampler, available=mask, budget=2)
    assert (p[mask] > 0).all()
    assert (p[~mask] == 0).all()
    (cohort,) = play(sampler, 1, available=[9, 1, 4])
    assert set(cohort.ids) <= {1, 4, 9}
    assert (cohort.budget, cohort.requested) == (3, 4)  # clipped, and recorded
    (empty,) = play(sampler, 1, available=[])
    assert len(empty) == 0
    assert kvib.estimate(empty, []) == 0.0
    play(sampler, 2)


@pytest.mark.parametrize(
    ("policy", "procedure"),
    # with replacement K·q may exceed 1, and AOCS stops early: both by design
    [pair for pair in PAIRS if pair[1].cap == 1 and not isinstance(pair[0], kvib.AOCS)],
    ids=str,
)
def test_all_clients_when_the_budget_allows(policy, procedure):
    """K = N gives p = 1 and no variance, whatever was learned."""
    sampler = new(policy, procedure, budget=N)
    play(sampler, 4)
    assert probabilities(sampler).tolist() == [1.0] * N
    (cohort,) = play(sampler, 1)
    assert cohort.ids.tolist() == list(range(N))
    assert cohort.coefficients == pytest.approx(sampler.weights)


@pair
def test_equal_feedback_gives_uniform(policy, procedure):
    sampler = kvib.Sampler(policy, np.ones(N), 4, procedure, seed=5)
    known = {"norms": np.ones(N)} if policy.needs_norms else {}
    for _ in range(5):  # everybody answers with the same norm
        cohort = sampler.draw(**known, budget=N if procedure.cap == 1 else None)
        sampler.update(cohort, np.ones(len(cohort)))
    if procedure.cap == 1 and not isinstance(policy, kvib.AOCS):
        assert sampler.probabilities(**known) == pytest.approx(np.full(N, 4 / N), rel=1e-9)
    else:
        assert kvib.Sampler(policy, np.ones(N), 4, procedure).probabilities(**known) == (
            pytest.approx(np.full(N, 4 / N), rel=1e-9)
        )


@pytest.mark.parametrize("policy", [kvib.KVib(mix=1), kvib.Vrb(mix=1), kvib.Mabs(mix=1)], ids=repr)
def test_full_mixing_gives_uniform(policy):
    sampler = new(policy, kvib.independent)
    play(sampler, 10)
    assert sampler.probabilities() == pytest.approx(np.full(N, 4 / N))


@pytest.mark.parametrize("member", [*POLICIES, *PROCEDURES], ids=repr)
def test_repr_evaluates_back(member):
    assert eval(repr(member), vars(kvib)) == member


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_configuration_is_frozen(policy):
    for field in dataclasses.fields(policy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, field.name, 1)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_default_procedure(policy):
    sampler = kvib.Sampler(policy, WEIGHTS, 4)
    assert sampler.procedure is type(policy).procedure


@pair
def test_extreme_feedback(policy, procedure):
    """Norms that jump by 10^50, vanish, or are all zero: probabilities stay finite and positive."""
    sampler = new(policy, procedure)
    rng = np.random.default_rng(3)
    for scale in (0.0, 1e-300, 1.0, 1e50, 0.0, 1e-50, 1e59, 1.0):
        norms = scale * rng.lognormal(0, 1, N)
        known = {"norms": norms} if policy.needs_norms else {}
        cohort = sampler.draw(**known)
        sampler.update(cohort, norms[cohort.ids])
        p = sampler.probabilities(**known)
        assert np.isfinite(p).all()
        assert (p > 0).all()
        slack = 0.5 if isinstance(policy, kvib.AOCS) else 1e-9
        assert p.sum() == pytest.approx(4, rel=slack)


@pair
def test_a_single_client(policy, procedure):
    sampler = kvib.Sampler(policy, [3.0], 1, procedure)
    for _ in range(3):
        known = {"norms": [2.0]} if policy.needs_norms else {}
        cohort = sampler.draw(**known)
        sampler.update(cohort, [2.0] * len(cohort))
        assert cohort.coefficients.tolist() == [1.0]


# Clients come, go, come back and change their weight

CHANGES = {
    "leave": lambda sampler: sampler.leave([1, 7]),
    "return": lambda sampler: sampler.join([1.5], [1], cost_of(sampler, 2.0)),
    "join": lambda sampler: sampler.join([4, 0.7], newcomers(sampler), cost_of(sampler, 1.0, 3.0)),
    "reweigh": lambda sampler: sampler.reweigh([0, 5], [9.0, 0.1]),
    "leave again": lambda sampler: sampler.leave([0, N] if len(sampler) > N else [0]),
}


def cost_of(sampler, *each):
    return None if sampler.state.prices.cost is None else each


def newcomers(sampler):
    """Keys, where clients have some."""
    return None if sampler.state.population.names is None else [N, N + 1]


def arguments(sampler):
    """Of the coming draw."""
    given = {} if sampler.state.rates.always else {"available": np.arange(len(sampler))}
    if sampler.policy.needs_norms:
        given["norms"] = clients_norms(sampler)
    return given


def clients_norms(sampler):
    """Exact in single precision, as a journal keeps them."""
    rng = np.random.default_rng([1, sampler.round])
    return rng.lognormal(0, 1, len(sampler)).astype(np.float32)


def go_on(sampler, rounds):
    """Rounds of whoever is there; the cohorts."""
    cohorts = []
    for _ in range(rounds):
        norms = clients_norms(sampler)
        cohorts.append(sampler.draw(**arguments(sampler)))
        sampler.update(cohorts[-1], norms[cohorts[-1].ids])
    return cohorts


def packed(sampler):
    return {name: (array.shape, array.tobytes()) for name, array in sampler.packed().items()}


def change(sampler, name):
    """Whether the change was made; one that is refused leaves everything as it was."""
    before = packed(sampler)
    try:
        CHANGES[name](sampler)
    except ValueError:
        assert packed(sampler) == before
        return False
    return True


def check_probabilities(sampler, here):
    p = sampler.probabilities(**arguments(sampler))
    able = np.setdiff1d(here, sampler.state.cool_down.ids)
    assert np.flatnonzero(p).tolist() == able.tolist()
    price = sampler.state.prices.of(np.arange(len(sampler)))
    most = sampler.state.prices.requested(None, len(sampler))
    if not sampler.state.prices.differ:
        most = min(most, len(able))
    slack = 0.5 if isinstance(sampler.policy, kvib.AOCS) else 1e-9
    assert price @ p == pytest.approx(min(most, price[able].sum()), rel=slack)
    assert sampler.weights.sum() == pytest.approx(1)
    assert np.flatnonzero(sampler.weights).tolist() == here


def changed(sampler):
    """After every change, with rounds in between; those that were made, and who is here now."""
    here, made = set(range(N)), []
    go_on(sampler, 3)
    for name in CHANGES:
        if not change(sampler, name):
            continue
        made.append(name)
        here -= {"leave": {1, 7}, "leave again": {0, 12}}.get(name, set())
        here |= {"return": {1}, "join": {N, N + 1}}.get(name, set())
        check_probabilities(sampler, sorted(here))
        go_on(sampler, 2)
    return made, sorted(here)


def possible(policy, options=""):
    if options in OF_EACH:
        return []
    return ["leave", "leave again"] if isinstance(policy, FIXED) else list(CHANGES)


def check_resumed(sampler, again):
    assert packed(sampler) == packed(again)
    assert all(map(same, go_on(sampler, 3), go_on(again, 3)))
    assert packed(sampler) == packed(again)


@pair
def test_changes_of_the_population(policy, procedure, tmp_path):
    sampler = new(policy, procedure)
    made, here = changed(sampler)
    assert made == possible(policy)
    sampler.save(tmp_path / "state.npz")
    check_resumed(sampler, kvib.Sampler.load(tmp_path / "state.npz"))
    check_probabilities(sampler, here)


@pair
def test_changes_of_the_population_in_a_journal(policy, procedure, tmp_path):
    check_in_a_journal(tmp_path, policy, procedure)


def check_in_a_journal(tmp_path, policy, procedure, options=""):
    """What is refused is not written; what is written can be opened, and goes on."""
    path, given = tmp_path / "run.kvib", (policy, WEIGHTS, 4, procedure)
    others = {"seed": 5, "snapshot_every": 3} | OPTIONS.get(options, {})
    with kvib.journalled(path, *given, **others) as durable:
        made, here = changed(durable)
        assert made == possible(policy, options)
        events = durable.recorder.file.last
        assert not any(change(durable, name) for name in CHANGES if name not in made)
        assert durable.recorder.file.last == events
        left = packed(durable)
    with kvib.journalled(path) as durable:
        assert packed(durable) == left
        check_resumed(durable, kvib.Sampler.unpacked(durable.packed()))
        check_probabilities(durable, here)


OPTIONS = {
    "cost": {"cost": np.arange(1.0, N + 1) / 4},
    "keys": {"keys": list(range(N))},
    "cool_down": {"cool_down": 1},
    "response": {"response": 0.7},
    "response learned": {"response": kvib.EstimatedRate()},
    "over_select": {"response": 0.7, "over_select": True},
    "over_select, learned": {"response": kvib.EstimatedRate(), "over_select": True},
    "availability": {"availability": 0.8},
    "availability learned": {"availability": kvib.EstimatedRate()},
    "response of each": {"response": np.linspace(0.5, 1, N)},
    "availability of each": {"availability": np.linspace(0.5, 1, N)},
    "variables": {"variables": np.arange(2.0 * N).reshape(N, 2)},
    "sketch": {"sketch": 4},
    "estimator": {"estimator": kvib.Difference()},
}
OF_EACH = list(OPTIONS)[9:]
"""What has an entry per client that newcomers cannot be given."""

with_options = pytest.mark.parametrize("options", OPTIONS)


@with_options
@pytest.mark.filterwarnings("ignore:sketch|estimator")
@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_changes_of_the_population_with_options(procedure, options):
    policies = [kvib.KVib(), kvib.Forecast(), kvib.Mabs()]
    if procedure is kvib.without_replacement:  # with costs probabilities differ
        policies = [] if options in ("cost", "over_select") else [kvib.Uniform()]
    for policy in policies:
        sampler = new(policy, procedure, **OPTIONS[options])
        made, here = changed(sampler)
        assert made == possible(policy, options)
        check_resumed(sampler, kvib.Sampler.unpacked(sampler.packed()))
        check_probabilities(sampler, here)


@with_options
@pytest.mark.filterwarnings("ignore:sketch|estimator")
@pytest.mark.parametrize("procedure", [kvib.independent, kvib.ordered, kvib.balanced], ids=repr)
def test_changes_of_the_population_with_options_in_a_journal(procedure, options, tmp_path):
    if options == "estimator":  # refused from the beginning
        return
    check_in_a_journal(tmp_path, kvib.Forecast(), procedure, options)

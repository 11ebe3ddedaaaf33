"""Exact before statistical: every outcome of the real code, enumerated."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.analysis import metrics
from kvib.clients import rates
from members import EQUAL_ONLY, IDS, PAIRS, POLICIES, PROCEDURES

N, DIM, ROUNDS = 5, 3, 4
WEIGHTS = np.array([3.0, 1.0, 0.5, 2.0, 6.0])


def trained(policy, procedure, budget, **options):
    """A sampler after several rounds of random feedback, and the updates of the coming round."""
    rng = np.random.default_rng(7)
    sampler = kvib.Sampler(policy, WEIGHTS, budget, procedure, seed=3, **options)
    for _ in range(ROUNDS):
        norms = rng.lognormal(0, 1.5, N)
        cohort = sampler.draw(range(N), norms=norms if policy.needs_norms else None)
        sampler.update(cohort, norms[cohort.ids])
    return sampler, rng.normal(size=(N, DIM)) * rng.lognormal(0, 1, N)[:, None]


def every_draw(monkeypatch, sampler, **arguments):
    """(probability, cohort) of everything the next draw can give."""
    before = sampler.state.rounds.round

    def draw(rng):
        sampler.state.rounds.round = before
        sampler.state.drawing.generator = lambda *_: rng
        return sampler.draw(**arguments)

    if sampler.procedure is kvib.ordered:
        yield from every_start(draw, sampler.probabilities(**arguments))
    else:
        yield from outcomes(draw)


def every_start(draw, p):
    """What depends on one uniform number changes only where it meets a sum of probabilities."""
    sums = [sum(part) for n in range(len(p) + 1) for part in itertools.combinations(p, n)]
    cuts = np.unique(np.concatenate([np.mod(sums, 1.0), [0.0, 1.0]]))

    class Start:
        def __init__(self, value):
            self.random = lambda: value

    for low, high in itertools.pairwise(cuts):
        if high - low > 1e-13:
            yield high - low, draw(Start((low + high) / 2))


def moments(draws, updates, coefficients=kvib.unbiased):
    """Mean and variance of the estimate, mean count of every client."""
    mean, square, count, mass = np.zeros(DIM), 0.0, np.zeros(N), 0.0
    expected = np.zeros(N)
    for probability, cohort in draws:
        d = kvib.estimate(cohort, updates[cohort.ids], coefficients)
        mean += probability * d
        square += probability * (d @ d)
        count[cohort.ids] += probability * cohort.count
        expected[cohort.ids] = cohort.expected
        mass += probability
    assert mass == pytest.approx(1, abs=1e-12)
    return mean, square - mean @ mean, count, expected


@pytest.mark.parametrize("budget", [2, 2.6])
@pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=IDS)
def test_every_policy_and_procedure_is_unbiased(monkeypatch, policy, procedure, budget):
    sampler, updates = trained(policy, procedure, budget)
    norms = np.linalg.norm(updates, axis=1) if policy.needs_norms else None
    probabilities = sampler.probabilities(norms=norms)
    mean, variance, count, expected = moments(
        every_draw(monkeypatch, sampler, norms=norms), updates
    )
    contributions = sampler.weights[:, None] * updates
    assert mean == pytest.approx(contributions.sum(axis=0), abs=1e-10)
    assert count == pytest.approx(probabilities, abs=1e-10)
    assert expected == pytest.approx(probabilities, abs=1e-10)

    gram = contributions @ contributions.T
    measured = metrics.variance(
        probabilities,
        procedure=procedure,
        gram=gram,
        draws=4000,
        rng=np.random.default_rng(0),
        variables=sampler.state.eligible.balanced_on(np.arange(len(sampler))),
    )
    # exact, or Monte Carlo with a false-alarm rate of 4e-8 per combination
    assert variance == pytest.approx(measured.value, abs=1e-10 + 5.5 * measured.error)


ADVERSARIES = {
    "jumps by 1000": lambda t, p: np.full(N, 1000.0 if t % 7 > 3 else 1.0),
    "alternates": lambda t, p: np.where((np.arange(N) + t) % 2, 1e3, 1e-3),
    "vanishes": lambda t, p: np.where(np.arange(N) < t / 3, 0.0, 1e-200),
    "large where we do not look": lambda t, p: np.where(p == p.min(), 1e6, 1e-6),
}
"""Norms of round t, given the probabilities of that round."""


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("procedure", [p for p in PROCEDURES if p not in EQUAL_ONLY], ids=repr)
def test_no_feedback_makes_a_forecast_biased(monkeypatch, procedure, adversary):
    """However wrong it is led to predict."""
    sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, 2, procedure, seed=3)
    for t in range(20):
        norms = ADVERSARIES[adversary](t, sampler.probabilities())
        cohort = sampler.draw()
        sampler.update(cohort, norms[cohort.ids])
    updates = np.random.default_rng(5).normal(size=(N, DIM))
    p = sampler.probabilities()
    mean, _, count, expected = moments(every_draw(monkeypatch, sampler), updates)
    assert mean == pytest.approx(sampler.weights @ updates, abs=1e-10)
    assert count == pytest.approx(p, abs=1e-10)
    assert expected == pytest.approx(p, abs=1e-10)


RANDOM_ORDER = (kvib.pivotal, kvib.systematic, kvib.balanced, kvib.neighbours)
"""Procedures without known second moments for which the approximate variance was made."""


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
@pytest.mark.parametrize("budget", [1, 2, 2.4, 3.7])
def test_cohorts_know_their_own_variance(procedure, budget):
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(N, DIM)) + 1
    equal = procedure is kvib.without_replacement
    p = kvib.waterfill(np.ones(N) if equal else np.sqrt(WEIGHTS), budget, cap=procedure.cap)
    mean, square, guess, exact, seen = np.zeros(DIM), 0.0, 0.0, True, 0.0
    for probability, cohort in outcomes(lambda r: procedure(p, r)):
        d = kvib.estimate(cohort, updates[cohort.ids])
        mean, square = mean + probability * d, square + probability * (d @ d)
        if len(cohort):
            estimate = kvib.estimated_variance(cohort, updates[cohort.ids])
            exact &= estimate.exact
            if not math.isnan(estimate.value):
                guess += probability * estimate.value
                seen += probability
    variance = square - mean @ mean
    if procedure.pairs is None:
        assert not exact
        if budget > 1:  # good to tens of percent even for five clients, in random order
            good = 0.45 if procedure in RANDOM_ORDER else 2.5
            assert guess / seen == pytest.approx(variance, rel=good)
    elif procedure is kvib.independent or budget >= 2:
        assert exact
        assert guess == pytest.approx(variance, abs=1e-10)
    else:  # one draw shows no pair of clients
        assert seen == 0


def estimates(procedure, p, updates, response=1.0):
    """(probability, estimate, its own variance) of everything a round can give."""

    def played(rng):
        cohort = procedure(p, rng)
        object.__setattr__(cohort, "answer_probability", np.full(len(cohort), response))
        heard = [response == 1 or rng.random() < response for _ in cohort.ids]
        answers = [updates[i] if came else None for i, came in zip(cohort.ids, heard, strict=True)]
        d = kvib.estimate(cohort, answers, like=np.zeros(DIM))
        return d, kvib.estimated_variance(cohort, answers)

    return [(chance, *both) for chance, both in outcomes(played) if chance > 1e-13]


BUDGETS = [
    (clients, budget)
    for clients in (1, 2, 4)
    for budget in (0.4, 0.9, 1, 1.5, 2, 2.4, 3, 3.6, 4)
    if budget <= clients
]


@pytest.mark.parametrize(("clients", "budget"), BUDGETS)
@pytest.mark.parametrize(
    ("procedure", "response"),
    [(p, 1.0) for p in PROCEDURES] + [(p, 0.6) for p in PROCEDURES if p.pairs],
    ids=repr,
)
def test_a_variance_is_known_on_average_or_not_at_all(procedure, response, clients, budget):
    """Never a 0 that is not the mean, never an exact NaN."""
    updates = np.random.default_rng(1).normal(size=(clients, DIM)) + 1
    equal = procedure in EQUAL_ONLY
    for scores in (np.ones(clients), np.array([9.0, 1.0, 2.0, 0.5])[:clients]):
        p = kvib.waterfill(np.ones(clients) if equal else scores, budget, cap=procedure.cap)
        rounds = estimates(procedure, p, updates, response)
        mean = sum(chance * d for chance, d, _ in rounds)
        variance = sum(chance * d @ d for chance, d, _ in rounds) - mean @ mean
        values = [estimate.value for *_, estimate in rounds]
        exact = {estimate.exact for *_, estimate in rounds}
        if procedure.pairs is None:
            assert exact == {False}
            if variance > 1e-12:
                assert all(math.isnan(value) or value > 0 for value in values)
        elif exact == {True}:
            guess = sum(chance * estimate.value for chance, _, estimate in rounds)
            assert guess == pytest.approx(variance, abs=1e-10)
        else:
            assert exact == {False}
            assert np.isnan(values).all()
            free = np.count_nonzero((p > 0) & (p < 1) | (procedure.cap > 1))
            assert procedure is not kvib.independent
            assert free > 1
            assert p[p < 1].sum() <= 1 + 1e-12  # one draw, or none, among those not certain


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_a_round_without_anybody_has_no_variance(procedure):
    policy = kvib.Uniform() if procedure in EQUAL_ONLY else kvib.KVib()
    cohort = kvib.Sampler(policy, WEIGHTS, 2, procedure).draw(available=[])
    assert kvib.estimated_variance(cohort, []).value == 0


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_no_variance_where_a_certain_answer_is_lost(procedure):
    policy = kvib.Uniform() if procedure in EQUAL_ONLY else kvib.KVib()
    sampler = kvib.Sampler(policy, WEIGHTS, 4, procedure, response=[1, 0.5, 1, 1, 1], seed=1)
    cohort = sampler.draw()
    silent = np.flatnonzero(cohort.ids != 1)[0]
    answers = [None if k == silent else np.ones(DIM) for k in range(len(cohort))]
    value, exact = kvib.estimated_variance(cohort, answers)
    assert math.isnan(value)
    assert not exact


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_of_what_is_no_number_is_exact(bad):
    cohort = kvib.independent([0.5, 1.0, 1.0], np.random.default_rng(0))
    updates = np.where(cohort.ids[:, None] == 2, bad, 1.0)
    value, exact = kvib.estimated_variance(cohort, updates)
    assert math.isnan(value)
    assert not exact


def test_variance_with_replacement_without_moments():
    """As from a journal: two clients drawn once each were not drawn for certain."""
    drawn = [kvib.with_replacement([1.0, 1.0], np.random.default_rng(k)) for k in range(9)]
    assert {len(cohort) for cohort in drawn} == {1, 2}
    for cohort in drawn:
        bare = dataclasses.replace(cohort, pairs=None)
        assert math.isnan(kvib.estimated_variance(bare, np.ones((len(bare), DIM))).value)


def test_no_variance_of_a_cohort_without_a_design():
    made = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.1, 0.2], weight=[0.5, 0.5])
    value, exact = kvib.estimated_variance(made, np.ones((2, DIM)))
    assert math.isnan(value)
    assert not exact


@pytest.mark.parametrize("procedure", [p for p in PROCEDURES if p.pairs], ids=repr)
def test_variance_estimate_counts_silence(procedure):
    """Clients are there and answer with known probabilities: the estimate is still exact."""
    rng = np.random.default_rng(2)
    updates = rng.normal(size=(4, DIM)) + 1
    a, r = np.array([0.6, 1.0, 1.0, 0.8]), np.array([0.5, 0.9, 1.0, 0.7])
    equal = procedure is kvib.without_replacement
    scores = np.ones(4) if equal else np.sqrt(WEIGHTS[:4])

    def round_with_silence(rng):
        there = np.array([i for i in range(4) if rng.random() < a[i]])
        p = kvib.waterfill(scores[there], 1.7, cap=procedure.cap)
        cohort = procedure(p, rng, ids=there, weights=np.full(len(there), 0.25))
        object.__setattr__(cohort, "answer_probability", (a * r)[cohort.ids])
        object.__setattr__(cohort, "availability", a[cohort.ids])
        answers = [updates[i] if rng.random() < r[i] else None for i in cohort.ids]
        d = kvib.estimate(cohort, answers, like=np.zeros(DIM))
        return d, kvib.estimated_variance(cohort, answers).value

    mean, square, guess = np.zeros(DIM), 0.0, 0.0
    for probability, (d, v) in outcomes(round_with_silence):
        mean, square, guess = (
            mean + probability * d,
            square + probability * d @ d,
            guess + probability * v,
        )
    assert mean == pytest.approx(updates.mean(axis=0), abs=1e-10)
    assert guess == pytest.approx(square - mean @ mean, abs=1e-10)


@pytest.mark.parametrize("procedure", [p for p in PROCEDURES if p.pairs], ids=repr)
@pytest.mark.parametrize("budget", [2, 2.6])
def test_joint_inclusion_probabilities(procedure, budget):
    equal = procedure is kvib.without_replacement
    p = kvib.waterfill(np.ones(N) if equal else WEIGHTS, budget, cap=procedure.cap)
    joint = np.zeros((N, N))
    for probability, cohort in outcomes(lambda r: procedure(p, r)):
        counts = np.zeros(N)
        counts[cohort.ids] = cohort.count
        joint += probability * np.outer(counts, counts)
    assert joint == pytest.approx(metrics.joint(p, procedure), abs=1e-10)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_unbiased_with_availability_and_response(monkeypatch, policy):
    """Clients are there with probability a and answer with probability r, both known."""
    a, r = np.array([0.5, 1, 1, 0.8, 1]), np.array([1, 0.6, 1, 1, 0.9])
    sampler, updates = trained(policy, kvib.independent, 2, availability=a, response=0.999)
    sampler.state.rates.response = rates.start(r, N, "response")
    norms = np.linalg.norm(updates, axis=1) if policy.needs_norms else None
    mean = np.zeros(DIM)
    for present in itertools.product([True, False], repeat=N):
        there = np.array(present)
        chance = np.prod(np.where(there, a, 1 - a))
        if chance == 0:
            continue
        for probability, cohort in every_draw(monkeypatch, sampler, available=there, norms=norms):
            # the expectation over independent answers, term by term
            answers = updates[cohort.ids] * r[cohort.ids, None]
            d = kvib.estimate(cohort, answers) if len(cohort) else np.zeros(DIM)
            mean += chance * probability * d
    assert mean == pytest.approx(sampler.weights @ updates, abs=1e-10)


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_self_normalised_aggregation_is_biased(monkeypatch, procedure):
    policy = kvib.Uniform() if procedure is kvib.without_replacement else kvib.KVib(mix=0.3)
    sampler, updates = trained(policy, procedure, 2)
    mean, *_ = moments(every_draw(monkeypatch, sampler), updates, kvib.self_normalised)
    assert np.abs(mean - sampler.weights @ updates).max() > 1e-3


@pytest.mark.parametrize("rule", [kvib.PowerOfChoice(candidates=3), kvib.DivFL()], ids=repr)
def test_selectors_are_biased(monkeypatch, rule):
    rng = np.random.default_rng(4)
    updates = rng.normal(size=(N, DIM))
    signals = updates if isinstance(rule, kvib.DivFL) else np.linalg.norm(updates, axis=1)
    selector = kvib.Selector(rule, WEIGHTS, 2)

    def draw(r):
        selector = kvib.Selector(rule, WEIGHTS, 2)
        monkeypatch.setattr("kvib.selectors.selector.generator", lambda *_: r)
        return selector.draw(signals=signals)

    mean, *_ = moments(outcomes(draw), updates, kvib.self_normalised)
    assert np.abs(mean - selector.weights @ updates).max() > 1e-2
    with pytest.raises(ValueError, match="self_normalised"):
        kvib.estimate(next(outcomes(draw))[1], updates[:2])


@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_sizes(procedure):
    """Fixed-size designs draw ⌊K⌋ or ⌈K⌉, whole budgets exactly K."""
    for budget in (1, 2, 3, 2.4):
        equal = procedure is kvib.without_replacement
        p = kvib.waterfill(np.ones(N) if equal else WEIGHTS, budget, cap=procedure.cap)
        sizes = {
            int(cohort.count.sum())
            for probability, cohort in outcomes(lambda r: procedure(p, r))  # noqa: B023
            if probability > 1e-13
        }
        if procedure is kvib.independent:
            assert len(sizes) > 2
        else:
            assert sizes == {math.floor(budget), math.ceil(budget)}

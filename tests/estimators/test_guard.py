"""The guard: silent in calm runs, a bound where a client explodes, honest about what it cut."""

import numpy as np
import pytest

import kvib

N, K, DIM = 40, 6, 30
EVERYBODY = np.ones(K, dtype=bool)
BASE = np.random.default_rng(0).normal(size=(N, DIM))
WEIGHTS = np.random.default_rng(1).lognormal(0, 1, N)


def new(policy=None, procedure=kvib.pivotal, *, guard=None, weights=WEIGHTS, **options):
    policy = kvib.Forecast() if policy is None else policy
    return kvib.Sampler(policy, weights, K, procedure, guard=guard, seed=4, **options)


def calm(round):
    return BASE + 0.3 * np.random.default_rng([2, round]).normal(size=BASE.shape)


def one_round(sampler, updates):
    """(cohort, the estimation, d) of one round with all updates at hand."""
    cohort = sampler.draw()
    estimation = sampler.begin(cohort)
    estimation.add(np.ones(len(cohort), dtype=bool), updates[cohort.ids])
    return cohort, estimation, estimation.finish()


@pytest.mark.parametrize(
    ("policy", "procedure"),
    [
        (kvib.Forecast(), kvib.pivotal),
        (kvib.Forecast(), kvib.balanced),
        (kvib.Forecast(), kvib.independent),
        (kvib.BySize(), kvib.with_replacement),
        (kvib.KVib(), kvib.pivotal),
    ],
    ids=repr,
)
def test_silent_in_a_calm_run(policy, procedure):
    guarded = new(policy, procedure, guard=kvib.Guard())
    plain = new(policy, procedure)
    for t in range(150):
        _, estimation, d = one_round(guarded, calm(t))
        assert estimation.cut == 0
        assert d.tolist() == one_round(plain, calm(t))[2].tolist()
    assert guarded.state.step_length.value > 0
    assert np.isnan(plain.state.step_length.value)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_silent_in_a_calm_run_of_few_clients(budget):
    """One of them is most of a step; norms vary by a factor of two from round to round."""
    rng = np.random.default_rng(0)
    for seed in range(2):
        sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, budget, guard=kvib.Guard(), seed=seed)
        for _ in range(100):
            one_round(sampler, BASE * rng.lognormal(0, 0.6, (N, 1)))
            assert sampler.cut == 0


def test_a_round_says_what_was_cut_off():
    sampler = new(guard=kvib.Guard())
    for t in range(20):
        one_round(sampler, calm(t))
    assert sampler.cut == 0
    cohort = sampler.draw()
    updates = calm(20)[cohort.ids]
    updates[0] *= 1e4
    sampler.step(cohort, updates)
    assert sampler.cut > 0
    one_round(sampler, calm(21))
    assert sampler.cut == 0


@pytest.mark.filterwarnings("ignore:.*did not answer")
def test_the_bound_of_a_mean_of_those_who_answered():
    sampler = new(guard=kvib.Guard(2.0))
    for t in range(20):
        one_round(sampler, calm(t))
    cohort, usual = sampler.draw(), sampler.state.step_length.value
    updates = [1e4 * calm(20)[i] if k < 2 else None for k, i in enumerate(cohort.ids)]
    d = sampler.step(cohort, updates, kvib.self_normalised)
    assert np.linalg.norm(d) <= 2 * 2 * usual * (1 + 1e-9)


@pytest.mark.parametrize("changes", [1.0, 0.3, 0.0], ids=["new", "noisy", "constant"])
def test_silent_in_a_calm_run_with_memory(changes):
    """A client that is first drawn when all others are well remembered is nobody's explosion."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sampler = new(guard=kvib.Guard(), estimator=kvib.Difference())
        for _ in range(120):
            _, estimation, _ = one_round(sampler, BASE + changes * rng.normal(size=BASE.shape))
            assert estimation.cut == 0


def test_silent_while_training_converges():
    """Norms that fall by 2 % a round, or rise by 2 %."""
    for rate in (0.98, 1.02):
        sampler = new(guard=kvib.Guard())
        assert all(one_round(sampler, calm(t) * rate**t)[1].cut == 0 for t in range(150))


def exploded(sampler, rounds=40, factor=1e6):
    """A calm run, then a round in which the first of the drawn explodes."""
    for t in range(rounds):
        one_round(sampler, calm(t))
    usual, cohort = sampler.state.step_length.value, sampler.draw()
    updates = calm(rounds)[cohort.ids]
    others = cohort.coefficients[1:] @ updates[1:]
    updates[0] *= factor
    estimation = sampler.begin(cohort)
    estimation.add(EVERYBODY, updates)
    return usual, cohort, updates, others, estimation, estimation.finish()


@pytest.mark.parametrize("limit", [0.5, 2.0, 10.0])
def test_one_client_moves_the_model_by_at_most_the_limit(limit):
    sampler = new(guard=kvib.Guard(limit))
    usual, cohort, updates, others, estimation, d = exploded(sampler)
    moved = np.linalg.norm(d - others)
    assert moved <= limit * usual * (1 + 1e-9)
    # the others are as they were, the direction of the exploded one is kept
    assert moved == pytest.approx(limit * usual)
    assert (d - others) / moved == pytest.approx(updates[0] / np.linalg.norm(updates[0]))
    # the cut is exactly what is missing, and bounds the bias
    missing = np.linalg.norm(cohort.coefficients @ updates - d)
    assert missing == pytest.approx(estimation.cut)
    # the policy learns of the shortened update, so that the client is not drawn ever after
    assert estimation.norms[0] == pytest.approx(limit * usual / cohort.coefficients[0])
    assert np.isfinite(sampler.probabilities()).all()


def test_several_explosions():
    """All clients of a round explode: each is shortened, the cut bounds the bias of them all."""
    sampler = new(guard=kvib.Guard())
    for t in range(40):
        one_round(sampler, calm(t))
    usual, cohort = sampler.state.step_length.value, sampler.draw()
    updates = calm(40)[cohort.ids] * 1e6
    estimation = sampler.begin(cohort)
    for k in range(K):  # in parts
        estimation.add(np.arange(K) == k, updates[k : k + 1])
    d = estimation.finish()
    assert np.linalg.norm(d) <= K * 2 * usual * (1 + 1e-9)
    assert np.linalg.norm(cohort.coefficients @ updates - d) <= estimation.cut * (1 + 1e-9)


def test_the_usual_step_recovers():
    """After an explosion it is back within a tenth of where it was, in 50 rounds."""
    sampler = new(guard=kvib.Guard())
    usual, *_ = exploded(sampler)
    assert sampler.state.step_length.value < 1.5 * usual
    cuts = [one_round(sampler, calm(50 + t))[1].cut for t in range(50)]
    assert max(cuts) == 0
    assert sampler.state.step_length.value == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("budget", [1, 3, K])
def test_steps_may_grow_for_good(budget):
    """All norms a thousand times as large from now on: the guard lets go within 120 rounds."""
    sampler = kvib.Sampler(
        kvib.Forecast(), WEIGHTS, budget, kvib.pivotal, guard=kvib.Guard(limit=3), seed=4
    )
    for t in range(40):
        one_round(sampler, calm(t))
    cuts = [one_round(sampler, 1000 * calm(t))[1].cut for t in range(40, 220)]
    assert cuts[0] > 0
    assert max(cuts[120:]) == 0


def test_a_recommended_sampler_follows_steps_that_grow():
    sampler = kvib.recommended(np.ones(20), 4)
    for t in range(60):
        grown = (100 if t >= 20 else 1) * calm(t)
        cohort = sampler.draw()
        sampler.step(cohort, grown[cohort.ids])
    assert sampler.state.step_length.value == pytest.approx(
        100 * np.linalg.norm(BASE[:20], axis=1).mean(), rel=0.3
    )


def test_a_client_cannot_raise_its_own_limit():
    """The largest client, p = 1, explodes for good: never more than ten times a calm step."""
    weights = np.where(np.arange(N) == 0, N, 1.0)
    sampler = new(guard=kvib.Guard(), weights=weights)
    for t in range(40):
        one_round(sampler, calm(t))
    usual = sampler.state.step_length.value
    for t in range(40, 120):
        updates = calm(t)
        updates[0] *= 1e6
        cohort, _, d = one_round(sampler, updates)
        assert 0 in cohort.ids
        assert np.linalg.norm(d) < 10 * usual


def test_memory_does_not_let_an_explosion_through():
    """What was cut off must not come back by way of Σλh in the rounds after."""
    sampler = new(guard=kvib.Guard(), estimator=kvib.Difference())
    for _ in range(40):
        one_round(sampler, BASE)
    calm_step = np.linalg.norm(WEIGHTS / WEIGHTS.sum() @ BASE)
    usual, cohort = sampler.state.step_length.value, sampler.draw()
    updates = BASE[cohort.ids].copy()
    updates[0] *= 1e6
    estimation = sampler.begin(cohort)
    estimation.add(EVERYBODY, updates)
    assert np.linalg.norm(estimation.finish()) < 2 * calm_step + 3 * usual
    for _ in range(30):
        _, _, d = one_round(sampler, BASE)
        assert np.linalg.norm(d) < 2 * calm_step + 3 * usual
    assert sampler.state.memory.beta > 0.5  # one explosion does not make the memory worthless


def first_round(factor, exploding, parts, weights=None, policy=None):
    """A first round in which one client explodes; (sampler, cohort, cut, d)."""
    sampler = new(policy, guard=kvib.Guard(), weights=WEIGHTS if weights is None else weights)
    cohort = sampler.draw()
    updates = calm(0)[cohort.ids]
    updates[exploding] *= factor
    estimation = sampler.begin(cohort)
    for part in parts:
        at = np.isin(np.arange(K), part)
        estimation.add(at, updates[at])
    return sampler, cohort, estimation.cut, estimation.finish()


AT_ONCE, ONE_BY_ONE = [range(K)], [[k] for k in range(K)]


@pytest.mark.parametrize("parts", [AT_ONCE, ONE_BY_ONE], ids=["at once", "one by one"])
@pytest.mark.parametrize("policy", [kvib.Forecast(), kvib.Uniform()], ids=repr)
def test_an_explosion_in_the_first_round(policy, parts):
    """It is seen by the others' norms: it adds 30 of them, and the usual step is the calm one's."""
    sampler, cohort, cut, d = first_round(1e6, K - 1, parts, policy=policy)
    norms = np.linalg.norm(calm(0)[cohort.ids], axis=1)
    assert cut > 1e3 * sampler.state.step_length.value
    longest = cohort.coefficients[-1] * 30 * np.median(norms) * 1.1  # it is in the median too
    assert np.linalg.norm(d) < cohort.coefficients @ norms + longest
    assert sampler.state.step_length.value == pytest.approx(cohort.coefficients[:-1] @ norms[:-1])
    cuts = [one_round(sampler, calm(t))[1].cut for t in range(1, 30)]
    if policy == kvib.Forecast():
        assert max(cuts) == 0


@pytest.mark.parametrize("early", [0, 1])
def test_what_gets_through_in_the_first_round_is_not_usual(early):
    """The first two updates that come one by one cannot be judged; nobody measures by them."""
    sampler, cohort, cut, d = first_round(1e6, early, ONE_BY_ONE)
    norms = np.linalg.norm(calm(0)[cohort.ids], axis=1)
    assert cut == 0
    assert np.linalg.norm(d) > 1e4
    others = np.arange(K) != early
    assert sampler.state.step_length.value == pytest.approx(
        cohort.coefficients[others] @ norms[others]
    )


@pytest.mark.parametrize("spread", [0.3, 0.6, 0.9])
def test_a_calm_first_round_is_left_alone(spread):
    """Norms whose logarithms spread as on real tasks (0.6), or half as much again."""
    for seed in range(100):
        scale = np.random.default_rng(seed).lognormal(0, spread, (N, 1))
        for policy in (kvib.Forecast(), kvib.Uniform()):
            sampler = kvib.Sampler(policy, WEIGHTS, K, kvib.pivotal, guard=kvib.Guard(), seed=seed)
            cohort, estimation, _ = one_round(sampler, scale * calm(0))
            assert estimation.cut == 0
            norms = np.linalg.norm((scale * calm(0))[cohort.ids], axis=1)
            assert sampler.state.step_length.value == pytest.approx(cohort.coefficients @ norms)


def test_a_first_round_of_zeros_and_of_two():
    """Nothing to measure by: nothing is cut off."""
    for updates in (0 * BASE, np.where(np.arange(N)[:, None] % 7, 0.0, BASE)):
        assert one_round(new(guard=kvib.Guard()), updates)[1].cut == 0
    pair = kvib.Sampler(kvib.Uniform(), WEIGHTS, 2, kvib.pivotal, guard=kvib.Guard())
    assert one_round(pair, BASE * 10.0 ** np.arange(N)[:, None])[1].cut == 0


BOTH = [None, kvib.Difference()]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("parts", [1, K], ids=["at once", "one by one"])
@pytest.mark.parametrize(
    ("estimator", "coefficients"),
    [
        (None, kvib.unbiased),
        (None, kvib.self_normalised),
        (kvib.Difference(), kvib.unbiased),
    ],
    ids=["plain", "mean", "memory"],
)
def test_what_is_no_number_is_left_out(bad, estimator, coefficients, parts):
    """As if it had not answered: same step, same lessons; what it might have added is reported."""
    silent, sampler = (
        new(guard=kvib.Guard(), estimator=estimator, response=0.9, sketch=4) for _ in range(2)
    )
    for t in range(5):
        one_round(silent, calm(t))
        one_round(sampler, calm(t))
    usual = sampler.state.step_length.value
    cohort = sampler.draw()
    updates = calm(5)[cohort.ids]
    updates[1, 3] = bad
    estimation = sampler.begin(cohort, coefficients)
    for part in np.array_split(np.arange(K), parts):
        at = np.isin(np.arange(K), part)
        estimation.add(at, updates[at])
    assert estimation.cut == pytest.approx(20 / K * usual)
    assert np.flatnonzero(estimation.not_finite).tolist() == [1]
    with pytest.raises(ValueError, match="added before"):
        estimation.add(estimation.not_finite, updates[[0]])
    with pytest.warns(UserWarning, match=f"round 5 are not finite.* answered: {cohort.ids[1]};"):
        d = estimation.finish()
    given = [None if k == 1 else u for k, u in enumerate(updates)]
    assert np.allclose(d, silent.step(silent.draw(), given, coefficients))
    assert sampler.state.step_length.value == pytest.approx(silent.state.step_length.value)
    assert np.allclose(sampler.probabilities(), silent.probabilities())
    assert one_round(sampler, calm(6))[1].cut == 0


@pytest.mark.parametrize("parts", [AT_ONCE, ONE_BY_ONE], ids=["at once", "one by one"])
def test_what_is_no_number_in_the_first_round(parts):
    """Its bound is known when others have come."""
    with pytest.warns(UserWarning, match="not finite"):
        sampler, cohort, cut, _ = first_round(np.nan, 0, parts)
    norms = np.linalg.norm(calm(0)[cohort.ids[1:]], axis=1)
    assert cut == pytest.approx(cohort.coefficients[0] * 30 * np.median(norms))
    assert sampler.cut == cut


def test_a_mean_without_what_is_no_number():
    """Nobody adds more than two usual steps, and the largest weight is not shared out to others."""
    weights = [90, *([5] * 11)]
    sampler = kvib.Sampler(kvib.BySize(), weights, 12, kvib.pivotal, guard=kvib.Guard())
    updates = np.ones((12, 3))
    for _ in range(5):
        sampler.step(sampler.draw(), updates, kvib.self_normalised)
    usual = sampler.state.step_length.value
    updates[0], updates[1] = np.nan, 1e6
    with pytest.warns(UserWarning, match="not finite"):
        d = sampler.step(sampler.draw(), updates, kvib.self_normalised)
    assert np.linalg.norm(d) <= (2 + 1) * usual * (1 + 1e-9)
    assert sampler.cut > 1e3


@pytest.mark.parametrize("estimator", BOTH, ids=["plain", "memory"])
@pytest.mark.parametrize("guard", [kvib.Guard(), kvib.Guard(limit=0.5)], ids=repr)
def test_where_most_are_no_numbers_the_round_is_refused(guard, estimator):
    """Of those who answered; the state stays as it was."""
    sampler = new(guard=guard, estimator=estimator, response=0.5)
    for t in range(5):
        one_round(sampler, calm(t))
    cohort, usual, p = sampler.draw(), sampler.state.step_length.value, sampler.probabilities()
    answers = [None, None, None, np.full(DIM, np.nan), np.full(DIM, np.inf), calm(5)[0]]
    with pytest.raises(kvib.NotFiniteError, match="the model that exploded; go back"):
        sampler.step(cohort, answers)
    assert sampler.state.step_length.value == usual
    assert sampler.probabilities().tolist() == p.tolist()
    answers[4] = calm(5)[1]
    with pytest.warns(UserWarning, match="not finite"):
        assert np.isfinite(sampler.step(cohort, answers)).all()


def test_who_sent_no_numbers_is_not_called_silent():
    sampler = new(guard=kvib.Guard())  # everybody always answers
    updates = calm(0)
    cohort = sampler.draw()
    updates[cohort.ids[2]] = np.inf
    with pytest.warns(UserWarning, match="not finite") as told:
        sampler.step(cohort, updates[cohort.ids])
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_journal_keeps_who_sent_no_numbers_as_silent(tmp_path):
    """After a crash it is as it was, and says nothing again."""
    path = tmp_path / "journal.db"
    sampler = kvib.recommended(WEIGHTS, K, seed=4, journal=path)
    for t in range(6):
        cohort = sampler.draw()
        updates = calm(t)[cohort.ids]
        updates[t] = np.nan
        with pytest.warns(UserWarning, match="not finite"):
            sampler.step(cohort, updates)
    p, usual = sampler.probabilities(), sampler.state.step_length.value
    sampler.close()
    again = kvib.recommended(WEIGHTS, K, seed=4, journal=path)
    assert again.probabilities().tolist() == p.tolist()
    assert again.state.step_length.value == usual


@pytest.mark.parametrize("journal", [False, True])
def test_norms_alone_are_reported(journal, tmp_path):
    """Guard and sketch look at updates."""
    path = tmp_path / "journal.db" if journal else None
    sampler = kvib.recommended(WEIGHTS, K, seed=4, journal=path)
    cohort = sampler.draw()
    with pytest.warns(UserWarning, match="guard and sketch of this sampler see nothing") as told:
        sampler.update(cohort, np.ones(len(cohort)))
    assert len(told) == 1
    assert told[0].filename == __file__
    empty = sampler.draw(available=[])
    sampler.update(empty, [])
    if journal:
        sampler.close()
        assert kvib.recommended(WEIGHTS, K, seed=4, journal=path).round == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("estimator", BOTH, ids=["plain", "memory"])
def test_numbers_that_are_none_are_refused(bad, estimator):
    """As `update` refuses infinite norms, and nothing changes: the client is reported as None."""
    sampler = new(estimator=estimator, response=0.9)
    for t in range(5):
        one_round(sampler, calm(t))
    usual, p = sampler.state.step_length.value, sampler.probabilities()
    cohort = sampler.draw()
    updates = calm(5)[cohort.ids]
    broken = updates.copy()
    broken[1, 3] = bad
    with pytest.raises(ValueError, match=f"client {cohort.ids[1]}"):
        sampler.step(cohort, broken)
    assert np.array_equal(sampler.state.step_length.value, usual, equal_nan=True)
    assert sampler.probabilities().tolist() == p.tolist()
    d = sampler.step(cohort, [None if k == 1 else u for k, u in enumerate(updates)])
    assert np.isfinite(d).all()
    for t in range(6, 12):
        assert np.isfinite(one_round(sampler, calm(t))[2]).all()


def test_a_first_round_that_is_not_a_number_leaves_no_trace():
    sampler = new(estimator=kvib.Difference())
    cohort = sampler.draw()
    broken = calm(0)[cohort.ids]
    broken[0, 0] = np.inf
    with pytest.raises(ValueError, match="norm inf"):
        sampler.step(cohort, broken)
    for t in range(1, 6):
        assert np.isfinite(one_round(sampler, calm(t))[2]).all()


def test_zero_updates():
    sampler = new(guard=kvib.Guard())
    for t in range(5):
        _, estimation, d = one_round(sampler, calm(t) * (t > 2))
        assert np.isfinite(d).all()
        assert estimation.cut == 0
    assert sampler.state.step_length.value > 0
    usual = sampler.state.step_length.value
    one_round(sampler, 0 * BASE)
    assert sampler.state.step_length.value == usual


def test_saved_and_loaded(tmp_path):
    sampler = new(guard=kvib.Guard(limit=1.5))
    sampler.save(tmp_path / "fresh.npz")
    assert np.isnan(kvib.Sampler.load(tmp_path / "fresh.npz").state.step_length.value)
    for t in range(10):
        one_round(sampler, calm(t))
    sampler.save(tmp_path / "state.npz")
    loaded = kvib.Sampler.load(tmp_path / "state.npz")
    assert loaded.guard == kvib.Guard(limit=1.5)
    assert loaded.state.step_length.value == sampler.state.step_length.value
    for t in range(10, 20):
        updates = calm(t) * (1e6 if t == 15 else 1)
        (_, a, x), (_, b, y) = one_round(sampler, updates), one_round(loaded, updates)
        assert x.tolist() == y.tolist()
        assert a.cut == b.cut
        assert (a.cut > 0) == (t == 15) or t > 15
    assert loaded.state.step_length.value == sampler.state.step_length.value


def test_missing_answers_are_no_share():
    """The usual step counts those who answered, divided by their chance to."""
    sampler = new(guard=kvib.Guard(), response=0.5)
    rng = np.random.default_rng(0)
    for t in range(60):
        cohort = sampler.draw()
        updates = [u if rng.random() < 0.5 else None for u in calm(t)[cohort.ids]]
        sampler.step(cohort, updates)
    wanted = sampler.weights @ np.linalg.norm(calm(0), axis=1)
    assert sampler.state.step_length.value == pytest.approx(
        wanted, rel=0.4
    )  # a mean of ten rounds of three


def test_with_self_normalised_coefficients():
    sampler = new(guard=kvib.Guard())
    for t in range(30):
        cohort = sampler.draw()
        sampler.step(cohort, calm(t)[cohort.ids], kvib.self_normalised)
    usual, cohort = sampler.state.step_length.value, sampler.draw()
    updates = calm(30)[cohort.ids]
    updates[0] *= 1e6
    assert np.linalg.norm(sampler.step(cohort, updates, kvib.self_normalised)) < 4 * usual


@pytest.mark.parametrize("limit", [0, -1, np.nan])
def test_bad_limits(limit):
    with pytest.raises(ValueError, match=f"limit={limit} is not a positive number"):
        kvib.Guard(limit)


def test_repr_evaluates_back():
    assert eval(repr(kvib.Guard(3.0)), vars(kvib)) == kvib.Guard(3.0)


# Updates that are added elsewhere


@pytest.mark.parametrize("coefficients", [kvib.unbiased, kvib.self_normalised])
@pytest.mark.parametrize("guard", [None, kvib.Guard()], ids=repr)
def test_norms_and_a_sum_do_where_updates_lie_elsewhere(guard, coefficients):
    """`weigh` gives the factors with which `add` adds, one client exploding and one silent."""
    parts, fired = new(guard=guard, response=kvib.EstimatedRate()), 0
    for t in range(12):
        whole = kvib.Sampler.unpacked(parts.packed())
        steps, cuts, learned = [], [], []
        for sampler in (whole, parts):
            cohort = sampler.draw()
            came = np.arange(len(cohort)) != t % len(cohort)
            some, estimation = calm(t)[cohort.ids[came]], sampler.begin(cohort, coefficients)
            some[0] *= 1e4 if t % 4 == 3 else 1
            if sampler is whole:
                estimation.add(came, some)
                d = estimation.finish()
            else:
                factors = estimation.weigh(came, np.linalg.norm(some, axis=1))
                d = estimation.finish(factors @ some)
            steps.append(d)
            cuts.append(estimation.cut)
            learned.append(estimation.norms)
            fired += estimation.cut > 0
        assert steps[0] == pytest.approx(steps[1], rel=1e-12)
        assert cuts[0] == pytest.approx(cuts[1], rel=1e-12)
        assert learned[0] == pytest.approx(learned[1], rel=1e-12, nan_ok=True)
    assert (fired > 0) == (guard is not None)


def test_what_is_not_finite_has_no_factor():
    sampler = new(guard=kvib.Guard())
    cohort = sampler.draw()
    estimation, lengths = sampler.begin(cohort), np.ones(len(cohort))
    lengths[1] = np.nan
    factors = estimation.weigh(np.ones(len(cohort), bool), lengths)
    assert factors[1] == 0
    assert (np.delete(factors, 1) == np.delete(cohort.coefficients, 1)).all()
    with pytest.warns(UserWarning, match="are not finite, and left out"):
        estimation.finish(np.zeros(3))
    plain = new()
    cohort = plain.draw()
    with pytest.raises(ValueError, match="norm nan of client"):
        plain.begin(cohort).weigh(np.ones(len(cohort), bool), lengths)


def test_who_remembers_updates_must_see_them():
    sampler = new(estimator=kvib.Difference())
    cohort = sampler.draw()
    with pytest.raises(ValueError, match="give the updates to add"):
        sampler.begin(cohort).weigh(np.ones(len(cohort), bool), np.ones(len(cohort)))

"""The recommended combination, the steps of `Sampler.step`, and the diagnosis."""

import numpy as np
import pytest
import torch

import kvib
from kvib.analysis import metrics

N, K = 30, 5
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)
BASE = np.random.default_rng(1).normal(size=(N, 24))


def noisy(round):
    return BASE + 0.3 * np.random.default_rng([2, round]).normal(size=BASE.shape)


def play(sampler, rounds, updates=noisy):
    steps = []
    for _ in range(rounds):
        cohort = sampler.draw()
        steps.append(sampler.step(cohort, updates(cohort.round)[cohort.ids]))
    return steps


@pytest.mark.parametrize("remember", [False, True])
def test_recommended(remember):
    sampler = kvib.recommended(WEIGHTS, K, remember=remember, seed=7)
    assert sampler.policy == kvib.Forecast()
    assert sampler.procedure is kvib.balanced
    assert sampler.guard == kvib.Guard()
    assert sampler.estimator == (kvib.Difference() if remember else None)
    assert sampler.state.sketches.size == 32
    assert sampler.seed == 7
    for _ in range(30):
        cohort = sampler.draw()
        assert len(cohort) == K
        sampler.step(cohort, noisy(cohort.round)[cohort.ids])


def test_options_are_the_samplers():
    sampler = kvib.recommended(
        WEIGHTS, K, sketch=4, guard=None, response=0.8, variables=WEIGHTS, seed=2
    )
    assert (sampler.guard, sampler.state.sketches.size, sampler.seed) == (None, 4, 2)
    assert sampler.state.eligible.variables.shape == (N, 1)
    assert sampler.draw().answer_probability.tolist() == [0.8] * K
    other = kvib.recommended(WEIGHTS, K, procedure=kvib.pivotal)
    assert other.procedure is kvib.pivotal


@pytest.mark.parametrize("remember", [False, True])
def test_resume_equals_straight_run(remember, tmp_path):
    straight = kvib.recommended(WEIGHTS, K, remember=remember, seed=3)
    play(straight, 12)
    straight.save(tmp_path / "state.npz")
    resumed = kvib.Sampler.load(tmp_path / "state.npz")
    assert repr(resumed) == repr(straight)
    for a, b in zip(play(straight, 12), play(resumed, 12), strict=True):
        assert a.tolist() == b.tolist()
    assert resumed.probabilities().tolist() == straight.probabilities().tolist()
    assert kvib.diagnose(resumed) == kvib.diagnose(straight)


def test_without_memory_step_is_estimate_and_update():
    # independent: the last duel of a pivotal draw may turn on the last digit of a norm
    both = [kvib.Sampler(kvib.Forecast(), WEIGHTS, K, kvib.independent) for _ in range(2)]
    for _ in range(10):
        a, b = (sampler.draw() for sampler in both)
        updates = noisy(a.round)[a.ids]
        d = both[0].step(a, updates)
        assert a.ids.tolist() == b.ids.tolist()
        assert d == pytest.approx(kvib.estimate(b, updates), rel=1e-12)
        both[1].update(b, kvib.norms(updates))
        assert both[0].probabilities() == pytest.approx(both[1].probabilities(), rel=1e-9)


UPDATES = noisy(0)[:K].reshape(K, 4, 6)
FORMS = {
    "array": (UPDATES, np.ndarray),
    "list of arrays": (list(UPDATES), np.ndarray),
    "tuple": (tuple(UPDATES), np.ndarray),
    "float32": (UPDATES.astype(np.float32), np.ndarray),
    "tensor": (torch.tensor(UPDATES), torch.Tensor),
    "list of tensors": ([torch.tensor(u) for u in UPDATES], torch.Tensor),
    "single tensors": ([torch.tensor(u).float() for u in UPDATES], torch.Tensor),
    "parameters": ([torch.tensor(u, requires_grad=True) for u in UPDATES], torch.Tensor),
    "mapping": (dict(enumerate(UPDATES)), np.ndarray),
    "not contiguous": (np.asfortranarray(UPDATES)[:, :, ::-1][:, :, ::-1], np.ndarray),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("remember", [False, True], ids=["plain", "memory"])
def test_forms_of_updates(remember, form):
    """The same step in the kind and shape of what came; nothing that came is changed."""
    updates, kind = FORMS[form]
    sampler = kvib.recommended(np.ones(N), K, remember=remember, sketch=5)
    for _ in range(3):
        cohort = sampler.draw()
        given = updates
        if form == "mapping":
            given = {int(i): updates[k] for k, i in enumerate(cohort.ids)}
        known = 0.0 if sampler.state.memory is None else np.asarray(sampler.state.memory.known())
        d = sampler.step(cohort, given)
        assert isinstance(d, kind)
        assert d.shape == (4, 6)
        if np.all(known == 0):
            want = np.tensordot(cohort.coefficients, UPDATES, axes=1)
            got = d.detach().numpy() if kind is torch.Tensor else d
            assert got == pytest.approx(want, rel=1e-5)
    rows = updates.values() if form == "mapping" else updates
    kept = [u.detach().numpy() if kind is torch.Tensor else u for u in rows]
    assert np.asarray(kept) == pytest.approx(UPDATES, rel=1e-6)


@pytest.mark.parametrize(
    "numbers", [[[1.0, 1.0], [2.0, 4.0]], [[1, 1], [2, 4]], np.array([[1, 1], [2, 4]])], ids=str
)
def test_lists_of_numbers(numbers):
    """Whole numbers are averaged as numbers, as kvib.estimate does."""
    sampler = kvib.recommended([1, 1, 1, 1], 2, sketch=2)
    assert sampler.step(sampler.draw(), numbers) == pytest.approx([1.5, 2.5])


def test_whole_numbers_in_tensors():
    sampler = kvib.recommended([1, 1, 1, 1], 2, sketch=2)
    cohort = sampler.draw()
    d = sampler.step(cohort, torch.tensor([[1, 1], [2, 4]]))
    assert d.tolist() == pytest.approx([1.5, 2.5])


@pytest.mark.parametrize("remember", [False, True], ids=["plain", "memory"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(kind, remember, tmp_path):
    """Norms are formed in double precision, as kvib.norms does: 300² is no half."""
    sampler = kvib.recommended(np.ones(N), K, remember=remember, sketch=4)
    rng = np.random.default_rng(0)
    for _ in range(4):
        cohort = sampler.draw()
        updates = torch.tensor(100 * rng.normal(size=(K, 12))).to(kind)
        want = kvib.norms(list(updates))
        estimation = sampler.begin(cohort)
        residuals = estimation.add(np.ones(K, dtype=bool), updates)
        if not remember:
            assert estimation.norms == pytest.approx(want, rel=1e-6)
        assert residuals.shape == (K, 12)
        assert torch.isfinite(estimation.finish()).all()
    sampler.save(tmp_path / "state.npz")
    assert kvib.Sampler.load(tmp_path / "state.npz").round == 4


def test_self_normalised_steps_count_those_who_answered():
    """As kvib.estimate does: the coefficients of the answers sum to 1."""
    sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, K, response=0.7)
    cohort = sampler.draw()
    updates = [None, *noisy(0)[cohort.ids[1:]]]
    want = kvib.estimate(cohort, updates, kvib.self_normalised)
    assert sampler.step(cohort, updates, kvib.self_normalised) == pytest.approx(want)


def test_an_update_counts_once():
    """The same client added twice, or by position instead of a mask: refused."""
    sampler = kvib.recommended(WEIGHTS, K)
    cohort = sampler.draw()
    first = np.arange(K) == 0
    estimation = sampler.begin(cohort)
    estimation.add(first, BASE[:1])
    with pytest.raises(ValueError, match=r"twice|before"):
        estimation.add(first, BASE[:1])
    with pytest.raises(ValueError, match=r"mask|boolean"):
        estimation.add(np.array([1, 2]), BASE[:2])
    with pytest.raises(ValueError, match=r"2 updates for|2 rows for"):
        estimation.add(np.arange(K) == 1, BASE[:2])


def test_an_empty_cohort():
    for remember in (False, True):
        sampler = kvib.recommended(WEIGHTS, K, remember=remember)
        assert sampler.step(sampler.draw(available=[]), []) == 0
        play(sampler, 3)
        sampler.step(sampler.draw(available=[]), [])
        play(sampler, 3)


def learned(weights, updates, rounds=60, budget=8, **options):
    sampler = kvib.recommended(weights, budget, **options)
    play(sampler, rounds, updates)
    return sampler


def test_differing_sizes_call_for_a_policy():
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0, 1.5, 80)
    sampler = learned(sizes, lambda t: rng.normal(size=(80, 60)) + 0.0)
    told = kvib.diagnose(sampler)
    assert told.policy < 0.5
    assert told.size == pytest.approx(told.policy, rel=0.3)  # norms are alike: sizes tell all
    assert told.memory > 0.8
    assert told.procedure > 0.5
    assert "most to gain: probabilities that follow norms (kvib.Forecast)" in str(told)


def test_differing_norms_call_for_a_policy_too():
    """Equal sizes: what the server knows without learning gains nothing."""
    rng = np.random.default_rng(0)
    scale = rng.lognormal(0, 1.5, (80, 1))
    told = kvib.diagnose(learned(np.ones(80), lambda t: scale * rng.normal(size=(80, 60))))
    assert told.policy < 0.6
    assert told.size == pytest.approx(1)


def test_a_shared_direction_calls_for_a_procedure():
    """Equal norms that point the same way: all noise is in how many are drawn."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=60)
    told = kvib.diagnose(
        learned(np.ones(80), lambda t: shared + 0.3 * rng.normal(size=(80, 60)), sketch=60)
    )
    assert told.procedure < 0.4
    assert told.policy == pytest.approx(1, abs=0.1)


def test_orthogonal_updates_gain_nothing_from_a_procedure():
    rng = np.random.default_rng(0)
    told = kvib.diagnose(learned(np.ones(60), lambda t: rng.normal(size=(60, 500)), sketch=300))
    assert told.procedure == pytest.approx(1, abs=0.15)
    assert told.memory == pytest.approx(1, abs=0.1)


def test_persistent_updates_call_for_memory():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(40, 200))
    sampler = learned(np.ones(40), lambda t: base)
    told = kvib.diagnose(sampler)
    assert told.memory < 0.05
    assert "most to gain: remembered updates (estimator=kvib.Difference())" in str(told)
    assert told.seen == np.isfinite(sampler.state.sketches.rows).all(axis=1).mean() > 0.9
    halved = kvib.diagnose(learned(np.ones(40), lambda t: base + rng.normal(size=base.shape)))
    # g = b + noise as large: the last update explains (1/2)² of it
    assert halved.memory == pytest.approx(0.75, abs=0.1)


def test_memory_is_worth_its_forecast():
    """Variance of differences / variance without, measured: the foretold share, to a third."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(30, 100))

    def updates(round):
        return base + 0.7 * np.random.default_rng([4, round]).normal(size=base.shape)

    errors = []
    for estimator in (None, kvib.Difference()):
        sampler = kvib.Sampler(
            kvib.Uniform(), np.ones(30), 10, kvib.independent, sketch=100, estimator=estimator
        )
        off = [d - updates(t).mean(axis=0) for t, d in enumerate(play(sampler, 250, updates))]
        errors.append((np.array(off[50:]) ** 2).sum(axis=1).mean())
    foretold = 1 - sampler.state.sketches.resemblance
    assert errors[1] / errors[0] == pytest.approx(foretold, rel=0.33)


def measured(sampler, updates):
    """Variance of a fixed size / of independent draws, with all updates at hand: 400 draws."""
    p, weighted = sampler.probabilities(), sampler.weights[:, None] * updates
    gram = weighted @ weighted.T
    fixed = metrics.variance(
        p, procedure=kvib.pivotal, gram=gram, draws=400, rng=np.random.default_rng(1)
    )
    return fixed.value / metrics.variance(p, procedure=kvib.independent, gram=gram).value


@pytest.mark.parametrize("common", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("rounds", [3, 20])
def test_a_fixed_size_is_worth_its_forecast_early(common, rounds):
    """3 % or 18 % of 400 clients, who share a direction more or less: told to a tenth.

    Sketches of 32 numbers would tell how much of it is shared to a fifth only.
    """
    rng = np.random.default_rng(0)
    sizes, shared = rng.lognormal(0, 0.7, 400), rng.normal(size=100)
    updates = common * shared + rng.normal(size=(400, 100))
    sampler = learned(sizes, lambda t: updates, rounds, budget=4, sketch=100)
    told = kvib.diagnose(sampler)
    assert told.seen < 0.2
    assert told.procedure == pytest.approx(measured(sampler, updates), abs=0.1)


@pytest.mark.parametrize(("groups", "noise"), [(4, 0.3), (200, 0.5)])
def test_balanced_draws_are_worth_their_forecast(groups, noise):
    """Clients in groups that pull the same way, a few or each its own: told to a fifth."""
    directions = np.random.default_rng(0).normal(size=(groups, 2000))
    own = np.repeat(directions - directions.mean(axis=0), 200 // groups, axis=0)
    sampler = learned(
        np.ones(200),
        lambda t: own + noise * np.random.default_rng([9, t]).normal(size=own.shape),
        rounds=30,
        budget=20,
    )
    updates = own + noise * np.random.default_rng(99).normal(size=own.shape)
    p, weighted = sampler.probabilities(), sampler.weights[:, None] * updates
    how = {"gram": weighted @ weighted.T, "draws": 100, "rng": np.random.default_rng(1)}
    on = sampler.state.eligible.balanced_on(np.arange(200))
    found = metrics.variance(p, procedure=kvib.balanced, variables=on, **how).value
    alone = metrics.variance(p, procedure=kvib.independent, **how).value
    told = kvib.diagnose(sampler)
    assert told.balanced == pytest.approx(found / alone, abs=0.2)
    if groups == 4:
        assert "most to gain: draws balanced on sketches (kvib.balanced)" in str(told)
        assert told.procedure > 0.8  # a fixed size alone gains nothing there


def test_nothing_to_gain():
    rng = np.random.default_rng(0)
    told = kvib.diagnose(learned(np.ones(60), lambda t: rng.normal(size=(60, 500)), sketch=64))
    assert min(told.policy, told.procedure, told.memory) > 0.9
    everybody = kvib.recommended(np.ones(5), 5)
    for _ in range(5):
        everybody.step(everybody.draw(), rng.normal(size=(5, 8)))
    told = str(kvib.diagnose(everybody))
    assert "most to gain: nothing much by any of them" in told
    assert "use step()" not in told


def test_memory_is_worth_little_before_clients_come_back():
    """Constant updates of 1,000 clients: all that is not new after 20 rounds of 10, which is 18 %.

    The figure is of the last ten rounds or so, when it was less.
    """
    own = np.random.default_rng(0).normal(size=(1000, 64))
    sampler = learned(np.ones(1000), lambda t: own, rounds=20, budget=10, remember=True)
    left = (
        np.square(sampler.state.memory.residuals(np.arange(1000), own)).sum() / np.square(own).sum()
    )
    told = kvib.diagnose(learned(np.ones(1000), lambda t: own, rounds=20, budget=10))
    assert left - 0.02 < told.memory < left + 0.1
    assert told.returning == pytest.approx(0, abs=0.01)
    assert f"{told.memory:.2f} so far, 0.00 of clients that came back" in str(told)


def test_no_client_returned_yet():
    told = kvib.diagnose(learned(np.ones(1000), lambda t: np.ones((1000, 4)), 2, budget=2))
    assert told.memory == 1
    assert np.isnan(told.returning)
    assert "came back" not in str(told)


def test_budgets_in_units_of_cost():
    """Five of fifty clients, whatever a client costs."""
    sizes = np.random.default_rng(0).lognormal(0, 1, 50)
    told = []
    for cost in (1.0, 100.0):
        sampler = kvib.Sampler(kvib.Forecast(), sizes, 5 * cost, cost=np.full(50, cost))
        for _ in range(10):
            cohort = sampler.draw()
            sampler.update(cohort, np.ones(len(cohort)))
        told.append(kvib.diagnose(sampler))
    assert told[0].policy == pytest.approx(told[1].policy, rel=1e-6)
    assert told[0].policy < 0.7


def test_clients_that_left_do_not_count():
    """Those who stay are alike, and who left was not."""
    sizes = np.concatenate([np.full(10, 1000.0), np.ones(40)])
    sampler = kvib.Sampler(kvib.Forecast(), sizes, 5)
    for round in range(20):
        if round == 10:
            assert kvib.diagnose(sampler).policy < 0.3
            sampler.leave(range(10))
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))
    assert kvib.diagnose(sampler).policy == pytest.approx(1, abs=0.05)


def test_with_availability():
    """Each draw is told who is there; the diagnosis is of everybody."""
    sampler = kvib.recommended(WEIGHTS, K, availability=0.8, sketch=8)
    rng = np.random.default_rng(0)
    for round in range(20):
        cohort = sampler.draw(available=rng.random(N) < 0.8)
        sampler.step(cohort, noisy(round)[cohort.ids])
    assert 0 < kvib.diagnose(sampler).policy < 1


def test_sketches_saved_before_first_updates_were_counted():
    sampler = learned(WEIGHTS, noisy, rounds=10)
    old = sampler.packed()
    old["sketches.returns"] = old["sketches.returns"][:3]
    told = kvib.diagnose(kvib.Sampler.unpacked(old))
    assert told.memory == told.returning == kvib.diagnose(sampler).returning


def test_before_any_round():
    sampler = kvib.recommended(WEIGHTS, K)
    with pytest.raises(ValueError, match="nothing was seen yet; diagnose after a few rounds"):
        kvib.diagnose(sampler)


def test_without_sketches():
    sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, K)
    play(sampler, 10)
    told = kvib.diagnose(sampler)
    assert np.isnan(told.procedure)
    assert np.isnan(told.memory)
    assert 0 < told.policy < 1
    text = str(told)
    assert text.count("unknown: give the sampler sketch=32 and use step()") == 3
    assert "most to gain: probabilities that follow norms" in text
    assert "nan" not in text.lower()


def test_of_another_policy():
    sampler = kvib.Sampler(kvib.KVib(), WEIGHTS, K)
    with pytest.raises(ValueError, match=r"kvib.Forecast\(\) does"):
        kvib.diagnose(sampler)


def test_a_diagnosis_changes_nothing():
    sampler = learned(WEIGHTS, noisy, rounds=10)
    before = {name: array.tobytes() for name, array in sampler.packed().items()}
    assert kvib.diagnose(sampler) == kvib.diagnose(sampler)
    assert {name: array.tobytes() for name, array in sampler.packed().items()} == before


def test_where_nothing_is_to_gain():
    """Everybody is drawn: no lever gains."""
    sampler = learned(np.ones(6), lambda t: BASE[:6] + 0 * t, rounds=8, budget=6)
    told = kvib.diagnose(sampler)
    assert told.policy == told.procedure == told.size == 1


def test_recommended_in_a_journal(tmp_path):
    """Ended in the middle of a round, it goes on as one that never stopped."""
    updates = np.random.default_rng(0).normal(size=(12, 6))

    def rounds(sampler, many):
        drawn = []
        for _ in range(many):
            cohort = sampler.draw()
            sampler.step(cohort, updates[cohort.ids])
            drawn.append(cohort.ids.tolist())
        return drawn

    straight = rounds(kvib.recommended(np.ones(12), 3, seed=2), 8)
    path = tmp_path / "run.kvib"
    with kvib.recommended(np.ones(12), 3, seed=2, journal=path) as sampler:
        before = rounds(sampler, 5)
    with kvib.recommended(np.ones(12), 3, seed=2, journal=path) as sampler:
        assert sampler.guard == kvib.Guard()
        assert [*before, *rounds(sampler, 3)] == straight

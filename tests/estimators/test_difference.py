"""The estimator that remembers: unbiased whatever it remembers, and better where that is right."""

import gc
import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch

import kvib
from enumeration import outcomes
from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic
from test_unbiased import every_draw

N, DIM = 4, 4
WEIGHTS = np.array([3.0, 1.0, 0.5, 6.0])
RNG = np.random.default_rng(2)
PERSISTENT = RNG.normal(size=(N, DIM)) + 1
NEXT = PERSISTENT + 0.3 * RNG.normal(size=(N, DIM))
"""Updates of the round that is enumerated."""

MEMORIES = [
    kvib.LastUpdates(),
    kvib.LastUpdates("float16"),
    kvib.GroupMeans(groups=2),
    kvib.LargestEntries(kept=2),
]
DRAWS = [kvib.independent, kvib.pivotal, kvib.balanced, kvib.with_replacement]

SHORT = ["LastUpdates", "half", "GroupMeans", "LargestEntries"]
every_memory = pytest.mark.parametrize("memory", MEMORIES, ids=SHORT)

SMALL = 1e-6
"""Σλh is summed up from float32 changes, each wrong by up to 6e-8 of its size, which is below 1
here; some ten of them have been made. βh is rounded likewise. Everything else is float64."""


def new(memory, procedure=kvib.pivotal, budget=2, **options):
    options = {"variables": PERSISTENT[:, :1], "seed": 3, **options}
    return kvib.Sampler(
        kvib.Forecast(), WEIGHTS, budget, procedure, estimator=kvib.Difference(memory), **options
    )


def noisy(round):
    return PERSISTENT + 0.3 * np.random.default_rng([5, round]).normal(size=(N, DIM))


def play(sampler, rounds, updates=noisy):
    """Some rounds of `step`; returns the steps."""
    steps = []
    for _ in range(rounds):
        cohort = sampler.draw()
        steps.append(sampler.step(cohort, updates(cohort.round)[cohort.ids]))
    return steps


def trained(memory, procedure=kvib.pivotal, rounds=6, **options):
    sampler = new(memory, procedure, **options)
    play(sampler, rounds)
    return sampler


def packed(sampler):
    """A copy that further rounds of the sampler do not change."""
    return {name: np.array(array) for name, array in sampler.packed().items()}


def restored(sampler):
    return kvib.Sampler.unpacked(packed(sampler))


def as_if_drawn(sampler, cohort):
    """The sampler's next cohort, but with these clients."""
    return sampler.state.rounds.open(cohort)


def mean_step(monkeypatch, make, play_round):
    """E[d] over every outcome of the next draw; `make` gives equal samplers, one per cohort.

    Outcomes with the same clients are played once.
    """
    chances, cohorts = {}, {}
    for probability, cohort in every_draw(monkeypatch, make()):
        drawn = (*cohort.ids, *cohort.count)
        chances[drawn] = chances.get(drawn, 0.0) + probability
        cohorts[drawn] = cohort
    monkeypatch.undo()
    assert sum(chances.values()) == pytest.approx(1, abs=1e-12)
    steps = {}
    for drawn, cohort in cohorts.items():
        sampler = make()
        steps[drawn] = play_round(sampler, as_if_drawn(sampler, cohort))
    return sum(chances[drawn] * steps[drawn] for drawn in chances)


def remembered_by(sampler):
    """h of all clients, as the sampler recalls them, [N, d]."""
    return np.asarray(sampler.state.memory._store.recall(np.arange(len(sampler))), np.float64)


@pytest.mark.parametrize("procedure", DRAWS, ids=repr)
@every_memory
def test_unbiased(monkeypatch, memory, procedure):
    def make():
        return trained(memory, procedure)

    sampler = make()
    assert sampler.state.memory.beta > 0.2
    assert np.abs(remembered_by(sampler)).max() > 0.5
    mean = mean_step(monkeypatch, make, lambda s, cohort: s.step(cohort, NEXT[cohort.ids]))
    assert mean == pytest.approx(sampler.weights @ NEXT, abs=SMALL)


@every_memory
def test_unbiased_after_loading(monkeypatch, memory):
    """The first step of a restored sampler is one like any other."""
    saved = trained(memory, kvib.independent)
    assert saved.state.memory.beta > 0.2
    mean = mean_step(
        monkeypatch, lambda: restored(saved), lambda s, cohort: s.step(cohort, NEXT[cohort.ids])
    )
    assert mean == pytest.approx(saved.weights @ NEXT, abs=SMALL)


@every_memory
def test_unbiased_with_missing_answers(monkeypatch, memory):
    """Clients answer with known probabilities: the mean over draws and answers is exact."""
    r = np.array([1.0, 0.6, 0.9, 0.5])

    def make():
        return trained(memory, response=r)

    def every_answer(sampler, cohort):
        mean = np.zeros(DIM)
        for answers in itertools.product([True, False], repeat=len(cohort)):
            chance = np.prod(np.where(answers, r[cohort.ids], 1 - r[cohort.ids]))
            if chance > 0:
                fresh = make()
                updates = [NEXT[i] if a else None for i, a in zip(cohort.ids, answers, strict=True)]
                mean += chance * fresh.step(as_if_drawn(fresh, cohort), updates)
        return mean

    mean = mean_step(monkeypatch, make, every_answer)
    assert mean == pytest.approx(make().weights @ NEXT, abs=SMALL)


@every_memory
def test_unbiased_with_several_cohorts_outstanding(monkeypatch, memory):
    """A cohort's answers come after those of a later cohort have changed the memory."""

    def overtaken(sampler, cohort):
        later = sampler.draw()
        sampler.step(later, noisy(later.round)[later.ids])
        return sampler.step(cohort, NEXT[cohort.ids])

    mean = mean_step(monkeypatch, lambda: trained(memory, kvib.independent), overtaken)
    assert mean == pytest.approx(trained(memory).weights @ NEXT, abs=SMALL)


@pytest.mark.parametrize("overtaken", ["before add", "parts mixed"])
@every_memory
def test_unbiased_with_estimates_that_overlap(monkeypatch, memory, overtaken):
    """Two rounds of `begin`, `add`, `finish` at once: each stays with what it began with."""

    def overlapping(sampler, cohort):
        later = sampler.draw()
        other = 3 * noisy(later.round)  # the memory is worth less for having seen these
        half = np.arange(len(cohort)) < len(cohort) // 2
        everybody = np.ones(len(later), dtype=bool)
        first, second = sampler.begin(cohort), sampler.begin(later)
        if overtaken == "before add":
            second.add(everybody, other[later.ids])
            second.finish()
            first.add(half, NEXT[cohort.ids[half]])
        else:
            first.add(half, NEXT[cohort.ids[half]])
            second.add(everybody, other[later.ids])
        first.add(~half, NEXT[cohort.ids[~half]])
        return first.finish()

    mean = mean_step(monkeypatch, lambda: trained(memory, kvib.independent), overlapping)
    assert mean == pytest.approx(trained(memory).weights @ NEXT, abs=SMALL)


def enumerated(monkeypatch, make, play_round, **arguments):
    """E[d] over every outcome of the next draw, each played on by a sampler of its own.

    Outcomes with the same clients are played once.
    """
    steps = {}

    def once(rng):
        sampler = make()
        usual = sampler.state.drawing.generator
        sampler.state.drawing.generator = lambda *_: rng
        cohort = sampler.draw(**arguments)
        sampler.state.drawing.generator = usual
        drawn = tuple(cohort.ids)
        if drawn not in steps:
            steps[drawn] = play_round(sampler, cohort)
        return steps[drawn]

    mass, mean = 0.0, np.zeros(DIM)
    for probability, d in outcomes(once):
        mass += probability
        mean += probability * d
    assert mass == pytest.approx(1, abs=1e-12)
    return mean


def experienced(memory, procedure, **options):
    """What restores a sampler that has played six rounds, all clients being there."""
    sampler = new(memory, procedure, **options)
    for _ in range(6):
        cohort = sampler.draw(available=np.arange(N))
        sampler.step(cohort, noisy(cohort.round)[cohort.ids])
    assert sampler.state.memory.beta > 0.05
    saved = packed(sampler)
    return lambda: kvib.Sampler.unpacked(saved)


def next_step(sampler, cohort):
    return sampler.step(cohort, NEXT[cohort.ids], like=NEXT[0])


AWAY = [
    {"available": [0, 3]},
    {"available": [1]},  # the shorter list is recalled, this one or the other
    {"available": np.array([True, False, True, True])},
    {"absent": [2]},
    {"absent": [0, 1, 3]},
    {"available": [0, 1, 3], "absent": [1]},
    {"available": []},
]


@pytest.mark.parametrize("away", AWAY, ids=str)
@pytest.mark.parametrize("procedure", [kvib.conditional_poisson, kvib.pivotal], ids=repr)
@every_memory
def test_unbiased_for_those_who_can_be_drawn(monkeypatch, memory, procedure, away):
    """As the estimate without memory: what is remembered of the others does not come in."""
    make = experienced(memory, procedure, budget=1.5)
    p = make().probabilities(**away)
    here = p > 0
    mean = enumerated(monkeypatch, make, next_step, **away)
    assert mean == pytest.approx(make().weights[here] @ NEXT[here], abs=SMALL)


@pytest.mark.parametrize("cool_down", [0, 1])
def test_unbiased_when_drawn_by_index(monkeypatch, cool_down):
    """Where a draw does not look at those who can be drawn."""
    make = experienced(kvib.LastUpdates(), kvib.independent, budget=1, cool_down=cool_down)
    assert make().state.index is not None
    here = make().probabilities(absent=[2]) > 0
    mean = enumerated(monkeypatch, make, next_step, absent=[2])
    assert mean == pytest.approx(make().weights[here] @ NEXT[here], abs=SMALL)


@pytest.mark.parametrize("away", [{}, {"absent": [2]}, {"available": [0, 1, 3]}], ids=str)
@every_memory
def test_unbiased_for_those_who_do_not_wait(monkeypatch, memory, away):
    make = experienced(memory, kvib.pivotal, budget=1, cool_down=1)
    sampler = make()
    here = sampler.probabilities(**away) > 0
    assert len(sampler.state.cool_down.ids) == 1
    assert not here[sampler.state.cool_down.ids].any()
    mean = enumerated(monkeypatch, make, next_step, **away)
    assert mean == pytest.approx(sampler.weights[here] @ NEXT[here], abs=SMALL)


@pytest.mark.parametrize("cool_down", [0, 1])
@every_memory
def test_unbiased_for_all_where_availability_is_known(monkeypatch, memory, cool_down):
    """Over who is there and who is drawn; still not for those who wait."""
    a = np.array([0.5, 1.0, 0.7, 0.9])
    options = {"availability": a, "budget": 1, "cool_down": cool_down}
    make = experienced(memory, kvib.pivotal, **options)
    resting, mean = make().state.cool_down.ids, np.zeros(DIM)
    assert len(resting) == cool_down
    for there in itertools.product([True, False], repeat=N):
        chance = np.prod(np.where(there, a, 1 - a))
        if chance > 0:
            mean += chance * enumerated(monkeypatch, make, next_step, available=np.array(there))
    stand = ~np.isin(np.arange(N), resting)
    assert mean == pytest.approx(make().weights[stand] @ NEXT[stand], abs=SMALL)


@every_memory
def test_unbiased_while_clients_at_work_wait(monkeypatch, memory):
    """Who is drawn next depends on who is at work, and so does memory: begun before, it is safe."""
    make = experienced(memory, kvib.pivotal, budget=1, cool_down=1)
    here = make().probabilities() > 0

    def overtaken(sampler, cohort):
        estimation = sampler.begin(cohort)
        later = sampler.draw()
        sampler.step(later, 3 * noisy(later.round)[later.ids])
        estimation.add(np.ones(len(cohort), dtype=bool), NEXT[cohort.ids])
        return estimation.finish()

    mean = enumerated(monkeypatch, make, overtaken)
    assert mean == pytest.approx(make().weights[here] @ NEXT[here], abs=SMALL)


@every_memory
def test_what_is_left_out_is_summed_in_blocks(monkeypatch, memory):
    sampler = trained(memory)
    ids, weight = np.array([0, 2, 3]), np.array([0.5, 0.1, 2.0])
    wanted = weight @ remembered_by(sampler)[ids]
    for numbers in (1, 2 * DIM, 2**22):
        monkeypatch.setattr("kvib.estimators.memory.BLOCK", numbers)
        assert sampler.state.memory._store.sum(ids, weight) == pytest.approx(wanted, abs=SMALL)


def test_a_cohort_that_was_kept_elsewhere():
    """Pickled, it still says whom it leaves out; one of an older kvib leaves out nobody."""
    make = experienced(kvib.LastUpdates(), kvib.independent, budget=1.5)
    steps = []
    for kept in (lambda c: c, lambda c: pickle.loads(pickle.dumps(c))):
        sampler = make()
        cohort = kept(sampler.draw(available=[0, 3]))
        assert cohort.excluded.tolist() == [1, 2]
        assert cohort.take(np.ones(len(cohort), bool)).excluded.tolist() == [1, 2]
        steps.append(next_step(sampler, cohort).tolist())
    assert steps[0] == steps[1]
    sampler = make()
    cohort = sampler.draw()
    del cohort.__dict__["excluded"]
    again = pickle.loads(pickle.dumps(cohort))
    assert again.excluded is None
    straight = make()
    assert next_step(sampler, again).tolist() == next_step(straight, straight.draw()).tolist()


def test_cohorts_without_memory_do_not_list_the_others():
    sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, 2)
    assert sampler.draw(available=[0, 3]).excluded is None


def test_check_in_needs_to_know_who_asks():
    sampler = new(kvib.LastUpdates(), kvib.independent)
    with pytest.raises(ValueError, match=r"give Sampler\(availability=…\) the probability"):
        sampler.admit(0)
    asked = new(kvib.LastUpdates(), kvib.independent, availability=0.8, cool_down=1)
    admitted = [i for i in range(N) if asked.admit(i)]
    asked.step(asked.gather(admitted), NEXT[admitted])
    assert asked.gather([]).excluded.tolist() == admitted


@every_memory
def test_total_is_what_all_clients_are_remembered_by(memory):
    sampler = new(memory)
    for _ in range(25):
        play(sampler, 1)
        total = sampler.state.memory._store.total
        assert total == pytest.approx(sampler.weights @ remembered_by(sampler), abs=SMALL)
    again = restored(sampler)
    cohort = again.draw()
    again.state.memory.residuals(cohort.ids, NEXT[cohort.ids])  # shows it what updates look like
    assert again.state.memory._store.total == pytest.approx(
        again.weights @ remembered_by(again), abs=SMALL
    )
    assert remembered_by(again).tolist() == remembered_by(sampler).tolist()
    assert again.state.memory.known() == pytest.approx(sampler.state.memory.known(), abs=1e-12)


def test_the_total_survives_an_explosion():
    """A client that was once 10^9 times too large leaves no trace in Σλh when it is replaced."""
    sampler = new(kvib.LastUpdates(), kvib.pivotal, budget=4)
    for round in range(4):
        updates = noisy(round).astype(np.float32)
        if round == 1:
            updates[2] *= 1e9
        sampler.step(sampler.draw(), updates)
    total = sampler.state.memory._store.total
    assert total == pytest.approx(sampler.weights @ remembered_by(sampler), abs=1e-4)


@pytest.mark.parametrize(
    "memory", [kvib.LastUpdates("float16"), kvib.LargestEntries(kept=2)], ids=repr
)
def test_updates_too_large_for_half_precision(memory):
    """65,504 is the largest; beyond it a memory is wrong, but still a number."""
    sampler = new(memory, budget=4)
    steps = play(sampler, 8, lambda t: noisy(t) * (1e6 if t == 3 else 1))
    assert np.isfinite(steps).all()
    assert np.isfinite(sampler.state.memory._store.total).all()


@every_memory
def test_beta_is_fixed_before_and_between_0_and_1(memory):
    sampler = new(memory)
    assert sampler.state.memory.beta == 0
    for scale in (1.0, 3.0, -2.0, 1e-6, 1e4, 1.0):
        for _ in range(5):
            cohort = sampler.draw()
            before = sampler.state.memory.beta
            estimation = sampler.begin(cohort)
            estimation.add(
                np.ones(len(cohort), dtype=bool), scale * noisy(cohort.round)[cohort.ids]
            )
            assert sampler.state.memory.beta == before
            estimation.finish()
            assert 0 <= sampler.state.memory.beta <= 1


@pytest.mark.parametrize(
    "memory",
    [kvib.LastUpdates(), kvib.LargestEntries(kept=40), kvib.GroupMeans(groups=30)],
    ids=repr,
)
def test_constant_updates_need_no_sampling(memory):
    """β → 1 like t/(t + 2), and d → D: after 300 rounds it is a hundredth as far off."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(20, 40))
    weights = rng.lognormal(0, 1, 20)
    D = weights / weights.sum() @ updates
    errors = {}
    for estimator in (None, kvib.Difference(memory)):
        sampler = kvib.Sampler(kvib.Forecast(), weights, 6, seed=1, estimator=estimator)
        off = play(sampler, 300, lambda t: updates)[250:] - D
        errors[estimator] = np.sqrt((off**2).sum(axis=1).mean())
    assert 0.95 < sampler.state.memory.beta <= 1
    limit = 0.02 if isinstance(memory, kvib.LastUpdates) else 0.1
    assert errors[kvib.Difference(memory)] < limit * errors[None]


@every_memory
def test_unrelated_updates_are_not_trusted(memory):
    """Independent every round: β stays near 0, and nothing is lost (1,000 entries, 5 errors)."""
    rng = np.random.default_rng(0)
    sampler = new(memory)
    play(sampler, 60, lambda t: rng.normal(size=(N, 1000)))
    assert sampler.state.memory.beta < 0.1


def test_less_noise_from_persistent_updates():
    """Clients that differ persistently, with 30 % noise: a third of the squared error or less."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(20, 50))
    errors = []
    for estimator in (None, kvib.Difference()):
        sampler = kvib.Sampler(kvib.Forecast(), np.ones(20), 8, seed=2, estimator=estimator)
        off = []
        for t in range(120):
            updates = base + 0.3 * np.random.default_rng([3, t]).normal(size=base.shape)
            cohort = sampler.draw()
            off.append(sampler.step(cohort, updates[cohort.ids]) - updates.mean(axis=0))
        errors.append((np.array(off[20:]) ** 2).sum(axis=1).mean())
    assert errors[1] < errors[0] / 3


def test_a_memory_on_disk(tmp_path):
    """Beyond its limit the memory lies in a file, and says the same; the file goes with it."""
    inside = trained(kvib.LastUpdates())
    outside = trained(kvib.LastUpdates(limit=0, folder=str(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 1
    for a, b in zip(play(inside, 5), play(outside, 5), strict=True):
        assert type(b) is np.ndarray
        assert a.tolist() == b.tolist()
    del outside
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_disk(tmp_path):
    """Of tensors too, whose steps stay tensors."""
    store = kvib.LastUpdates(limit=0, folder=str(tmp_path))
    inside, outside = new(kvib.LastUpdates()), new(store)
    for _ in range(6):
        cohorts = inside.draw(), outside.draw()
        updates = torch.tensor(noisy(cohorts[0].round)[cohorts[0].ids])
        a, b = (one.step(c, updates) for one, c in zip((inside, outside), cohorts, strict=True))
        assert isinstance(b, torch.Tensor)
        assert a.tolist() == b.tolist()
    assert len(list(tmp_path.iterdir())) == 1
    assert isinstance(outside.state.memory._store._rows, np.memmap)


def test_the_file_is_closed_by_the_garbage_collector_too():
    sampler = trained(kvib.LastUpdates(limit=0))
    cycle = [sampler]
    cycle.append(cycle)
    del sampler, cycle
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(warning.message) for warning in told] == []


@every_memory
def test_tensors_as_arrays(memory):
    """torch gives the same steps as NumPy, in the kind and shape of the updates."""
    # independent: the last duel of a pivotal draw may turn on the last digit of a norm
    arrays, tensors = new(memory, kvib.independent), new(memory, kvib.independent)
    for _ in range(12):
        a, b = arrays.draw(), tensors.draw()
        assert a.ids.tolist() == b.ids.tolist()
        updates = noisy(a.round)[a.ids].reshape(-1, 2, 2)
        want = arrays.step(a, updates)
        told = tensors.step(b, torch.tensor(updates))
        if len(a) == 0:
            continue
        assert told.shape == (2, 2)
        assert told.dtype == torch.float64
        assert told.numpy() == pytest.approx(want, abs=SMALL)
        assert arrays.state.memory.beta == pytest.approx(tensors.state.memory.beta, abs=1e-6)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_single_precision_stays_single(kind):
    sampler = new(kvib.LastUpdates())
    for _ in range(4):
        cohort = sampler.draw()
        updates = noisy(cohort.round)[cohort.ids].astype(np.float32)
        d = sampler.step(cohort, updates if kind == "array" else torch.tensor(updates))
    assert str(d.dtype).removeprefix("torch.") == "float32"
    assert str(sampler.state.memory._store._rows.dtype).removeprefix("torch.") == "float32"


def test_float32_is_kept_of_double_tensors():
    """`precision` is what the memory takes, whatever updates come in."""
    sampler = new(kvib.LastUpdates())
    cohort = sampler.draw()
    sampler.step(cohort, torch.tensor(NEXT[cohort.ids]))
    assert sampler.state.memory._store._rows.dtype == torch.float32


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["arrays", "tensors"])
@pytest.mark.parametrize("memory", [*MEMORIES, kvib.LastUpdates(limit=0)], ids=[*SHORT, "on disk"])
def test_resume_equals_straight_run(memory, kind, tmp_path):
    """Bit for bit, from a file; weights whose normalising again would change the last digit."""

    class Updates:
        def __init__(self, round):
            self.all = noisy(round).astype(np.float32)

        def __getitem__(self, ids):
            return kind(self.all[ids])

    straight = new(memory, kvib.balanced, sketch=2, guard=kvib.Guard())
    play(straight, 7, Updates)
    straight.save(tmp_path / "state.npz")
    resumed = kvib.Sampler.load(tmp_path / "state.npz")
    assert resumed.estimator == straight.estimator
    assert resumed.state.memory.beta == straight.state.memory.beta > 0
    for a, b in zip(play(straight, 7, Updates), play(resumed, 7, Updates), strict=True):
        assert a.tolist() == b.tolist()
    resumed.save(tmp_path / "again.npz")  # also where it has not yet been played on
    kvib.Sampler.load(tmp_path / "again.npz").save(tmp_path / "third.npz")
    third = kvib.Sampler.load(tmp_path / "third.npz")
    (a,), (b,) = play(straight, 1, Updates), play(third, 1, Updates)
    assert a.tolist() == b.tolist()


def test_resume_with_many_clients(tmp_path):
    """Σλh of groups is formed from weights exactly as saved."""
    rng = np.random.default_rng(0)
    weights, updates = rng.lognormal(0, 2, 997), rng.normal(size=(997, 6))
    straight = kvib.Sampler(
        kvib.Forecast(), weights, 50, estimator=kvib.Difference(kvib.GroupMeans(groups=4))
    )
    play(straight, 6, lambda t: updates)
    straight.save(tmp_path / "state.npz")
    resumed = kvib.Sampler.load(tmp_path / "state.npz")
    play(straight, 1, lambda t: updates), play(resumed, 1, lambda t: updates)
    assert straight.state.memory._store.total.tolist() == resumed.state.memory._store.total.tolist()


def test_a_simulation_resumes(tmp_path):
    """Stopped and started again, with memory: the model that the straight run has."""
    task, local = synthetic(clients=12, seed=2), LocalSGD(learning_rate=0.05, batch_size=32)
    models = []
    for stops in ([8], [4, 8]):
        for rounds in stops:
            sampler = kvib.recommended(task.weights, 4, remember=True, sketch=4)
            engine = LinearEngine(task, local, threads=1)
            simulation = Simulation(task, engine, sampler, local, evaluate_every=0)
            list(simulation.run(rounds, tmp_path / str(len(stops))))
        models.append(simulation.model)
    assert models[0].tolist() == models[1].tolist()


def test_a_packed_state_is_a_copy():
    """What was packed does not change when the sampler goes on; two copies share nothing."""
    sampler = trained(kvib.GroupMeans(groups=2), sketch=2)
    before, kept = packed(sampler), sampler.packed()
    play(sampler, 3)
    assert changed(before, kept) == []
    copy = kvib.Sampler.unpacked(kept)
    want = copy.probabilities().tolist()
    play(kvib.Sampler.unpacked(kept), 3)
    assert copy.probabilities().tolist() == want


@every_memory
def test_parts_equal_the_whole(memory):
    """`begin` and `add` in any order: the same d, norms, β and, for rows of their own, memory."""
    whole, parts = (trained(memory, kvib.with_replacement, budget=4, sketch=2) for _ in range(2))
    rng = np.random.default_rng(0)
    for _ in range(8):
        a, b = whole.draw(), parts.draw()
        updates = noisy(a.round)[a.ids]
        d = whole.step(a, updates)
        estimation = parts.begin(b)
        order = rng.permutation(len(b))
        if isinstance(memory, kvib.GroupMeans):
            order = np.arange(len(b))  # groups form in the order of arrival
        for k in order:
            at = np.arange(len(b)) == k
            residuals = estimation.add(at, updates[at])
            assert estimation.norms[k] == pytest.approx(np.linalg.norm(residuals))
        assert estimation.finish() == pytest.approx(d, abs=SMALL)
        assert parts.state.memory.beta == pytest.approx(whole.state.memory.beta, abs=SMALL)
        assert parts.probabilities() == pytest.approx(whole.probabilities(), abs=SMALL)
        assert remembered_by(parts) == pytest.approx(remembered_by(whole), abs=1e-12)


def test_the_policy_learns_what_is_new():
    sampler = trained(kvib.LastUpdates(), rounds=8)
    cohort = sampler.draw()
    beta, h = sampler.state.memory.beta, remembered_by(sampler)[cohort.ids]
    estimation = sampler.begin(cohort)
    updates = noisy(cohort.round)[cohort.ids]
    residuals = estimation.add(np.ones(2, dtype=bool), updates)
    assert residuals == pytest.approx(updates - beta * h, abs=SMALL)
    assert estimation.norms == pytest.approx(np.linalg.norm(residuals, axis=1))


def test_missing_answers():
    """None: the others count as usual, the silent are remembered as before."""
    sampler = trained(kvib.LastUpdates(), response=0.8, budget=3)
    cohort = sampler.draw()
    before, beta = remembered_by(sampler), sampler.state.memory.beta
    updates = list(noisy(cohort.round)[cohort.ids])
    updates[1] = None
    known = beta * sampler.weights @ before
    d = sampler.step(cohort, updates)
    at = [0, 2]
    factors = cohort.coefficients[at]
    new_parts = np.array([updates[k] - beta * before[cohort.ids[k]] for k in at])
    assert d == pytest.approx(known + factors @ new_parts, abs=SMALL)
    after = remembered_by(sampler)
    assert after[cohort.ids[1]].tolist() == before[cohort.ids[1]].tolist()
    assert after[cohort.ids[0]] == pytest.approx(updates[0], rel=1e-6)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["arrays", "tensors"])
@pytest.mark.parametrize("loaded", [False, True])
def test_no_client_answers(loaded, kind):
    """Then d is what is remembered, in the form of the model where that is told."""
    sampler = new(kvib.LastUpdates(), response=0.8)
    for _ in range(6):
        cohort = sampler.draw()
        sampler.step(cohort, kind(noisy(cohort.round)[cohort.ids].reshape(-1, 2, 2)))
    want = sampler.state.memory.beta * sampler.weights @ remembered_by(sampler)
    for like in (None, kind(np.zeros((2, 2), np.float32))):
        one = restored(sampler) if loaded else sampler
        cohort = one.draw()
        d = one.step(cohort, [None] * len(cohort), like=like)
        assert np.ravel(d) == pytest.approx(want, abs=SMALL)
        assert like is None or (d.shape, d.dtype, type(d)) == (like.shape, like.dtype, type(like))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["arrays", "tensors"])
@pytest.mark.parametrize("estimator", [None, kvib.Difference()], ids=["plain", "memory"])
def test_no_client_can_be_drawn(estimator, kind):
    """The estimate stands for nobody: 0, in the form of the model where that is told."""
    sampler = kvib.Sampler(kvib.Forecast(), WEIGHTS, 2, estimator=estimator)
    play(sampler, 6)
    assert not np.any(sampler.step(sampler.draw(available=[]), []))
    like = kind(np.ones((2, 2), np.float32))
    d = sampler.step(sampler.draw(available=[]), [], like=like)
    assert (d.shape, d.dtype, type(d)) == (like.shape, like.dtype, type(like))
    assert d.tolist() == [[0, 0], [0, 0]]


def refused(sampler, call, message):
    """The call raises, and changes nothing."""
    before, now = packed(sampler), sampler.state.memory._current.tolist()
    with pytest.raises(ValueError, match=message):
        call()
    assert changed(before, sampler.packed()) == []
    assert sampler.state.memory._current.tolist() == now


def changed(before, after):
    return [name for name in before if before[name].tobytes() != after[name].tobytes()]


@every_memory
def test_refused_steps_change_nothing(memory):
    sampler = trained(memory)
    cohort = sampler.draw()
    updates = NEXT[cohort.ids]
    other = trained(memory).draw()
    refused(sampler, lambda: sampler.step(other, NEXT[other.ids]), "drawn by another sampler")
    refused(sampler, lambda: sampler.step(cohort, updates[:1]), "1 updates for a cohort of 2")
    wide = np.ones((2, DIM + 1))
    refused(sampler, lambda: sampler.step(cohort, wide), "of one model|width|shape")
    large = updates * [[1], [1e200]]
    refused(sampler, lambda: sampler.step(cohort, large), "norm .* of client")
    sampler.step(cohort, updates)
    refused(sampler, lambda: sampler.step(cohort, updates + 1), "updated before")


@every_memory
def test_refused_while_nothing_is_trusted_yet(memory):
    """β is 0 then, and nothing is recalled: updates of another model are refused all the same."""
    sampler = trained(memory, rounds=1)
    assert sampler.state.memory.beta == 0
    cohort = sampler.draw()
    wide = np.ones((len(cohort), DIM + 1))
    refused(sampler, lambda: sampler.step(cohort, wide), "of one model")
    sampler.step(cohort, NEXT[cohort.ids])


@pytest.mark.parametrize(
    ("procedure", "budget", "response"),
    [(kvib.pivotal, 20, 0.5), (kvib.with_replacement, 20, 1.0)],
    ids=["silence", "with replacement"],
)
def test_noise_of_those_who_are_drawn_for_certain(procedure, budget, response):
    """Everybody is expected once, and still there is something to remember for."""
    own, rng = np.random.default_rng(0).normal(size=(20, 6)), np.random.default_rng(1)
    given = {"estimator": kvib.Difference(), "response": response, "seed": 0}
    sampler = kvib.Sampler(kvib.Uniform(), np.ones(20), budget, procedure, **given)
    for _ in range(60):
        cohort = sampler.draw()
        heard = rng.random(len(cohort)) < response
        answers = zip(cohort.ids, heard, strict=True)
        sampler.step(cohort, [own[i] if came else None for i, came in answers])
    assert sampler.state.memory.beta > 0.9


def test_self_normalised_is_refused():
    sampler = trained(kvib.LastUpdates())
    cohort = sampler.draw()
    for call in (sampler.step, lambda c, u, how: sampler.begin(c, how)):
        with pytest.raises(ValueError, match=r"for coefficients=kvib.unbiased only"):
            call(cohort, NEXT[cohort.ids], kvib.self_normalised)
    sampler.step(cohort, NEXT[cohort.ids])


@pytest.mark.parametrize(
    "nested",
    [
        lambda g: {"w": g},
        lambda g: [g[:2], g[2:]],
        lambda g: (g, {"b": g}),
    ],
)
def test_nested_updates_are_refused(nested):
    sampler = trained(kvib.LastUpdates())
    cohort = sampler.draw()
    updates = [nested(NEXT[i]) for i in cohort.ids]
    refused(sampler, lambda: sampler.step(cohort, updates), "join the parts of a nested update")


def test_bad_configuration():
    with pytest.raises(ValueError, match="precision 'float8' is not one of float32, float16"):
        kvib.LastUpdates("float8")
    for bad in (lambda: kvib.GroupMeans(groups=0), lambda: kvib.GroupMeans(rate=0)):
        with pytest.raises(ValueError, match=r"groups=0|rate=0"):
            bad()
    with pytest.raises(ValueError, match="kept=0"):
        kvib.LargestEntries(kept=0)


@pytest.mark.parametrize("config", [*MEMORIES, *map(kvib.Difference, MEMORIES)], ids=repr)
def test_repr_evaluates_back(config):
    assert eval(repr(config), vars(kvib)) == config

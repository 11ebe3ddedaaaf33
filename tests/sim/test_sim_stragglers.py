"""Clients that are away, stay silent or wait: the step is right on average, its measures exact."""

import math
import warnings

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.analysis import metrics
from kvib.sim import ClientData, LocalSGD, Simulation, Task
from kvib.sim.engines.base import BaseEngine
from kvib.sim.engines.engine import Evaluation, Summed
from kvib.sim.local import local_batches
from members import IDS, PAIRS

pytestmark = pytest.mark.filterwarnings("ignore:.*cool_down")  # clients that wait for long

LOCAL = LocalSGD(0.5, batch_size=1)
RESPONSE, AVAILABILITY = np.array([0.5, 0.9, 0.3, 0.7]), np.array([0.8, 0.4, 1.0, 0.6])


class Quadratic(BaseEngine):
    """Client i pulls the model halfway to its own centre, in double precision."""

    chunk = 100

    def __init__(self, task, local):
        self.task, self.local = task, local

    def initial(self, seed):
        return np.full(self.task.train.x.shape[1], 3.0)

    def updates(self, model, batches):
        return self.local.learning_rate * (model - self.task.train.x[batches.samples])

    def evaluate(self, model, split):
        return Evaluation(float(((model - self.task.train.x) ** 2).mean()), math.nan)

    def to_numpy(self, vector):
        return vector

    def from_numpy(self, array):
        return array


class Chunks(Quadratic):
    chunk = 1


class Far(Quadratic):
    """Only sums come back."""

    remote = True


def task(clients, dim=2):
    """One sample per client: its centre."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(clients, dim)) * rng.lognormal(0, 1, (clients, 1))
    train = ClientData(x, np.zeros(clients), np.ones(clients, int))
    weights = rng.lognormal(0, 1, clients)
    return Task("quadratic", train, (x, np.zeros(clients)), lambda: None, weights=weights)


TASK = task(4)


def new(
    policy=None,
    procedure=kvib.independent,
    budget=2,
    *,
    clients=4,
    engine=Quadratic,
    seed=0,
    before=0,
    coefficients=kvib.unbiased,
    truth=None,
    exact=1,
    **options,
):
    """A simulation after some rounds."""
    given = TASK if clients == 4 else task(clients)
    sampler = kvib.Sampler(
        policy or kvib.BySize(), given.weights, budget, procedure, seed=seed, **options
    )
    simulation = Simulation(
        given,
        engine(given, LOCAL),
        sampler,
        LOCAL,
        coefficients=coefficients,
        seed=seed,
        evaluate_every=0,
        exact_every=exact,
        **truth or {},
    )
    for _ in range(before):
        simulation.round()
    return simulation


def full_step(simulation):
    """What full participation would do to the model."""
    everyone = np.arange(len(simulation.task))
    batches = local_batches(
        simulation.task.train, everyone, LOCAL, simulation.seed, simulation.sampler.round
    )
    return simulation.sampler.weights @ simulation.engine.updates(simulation.model, batches)


def step(simulation):
    before = simulation.model
    record = simulation.round()
    return before - simulation.model, record


# Every outcome of a round


def every_round(monkeypatch, **given):
    """(probability, step, record) of all that the next round of a simulation can be."""

    def play(rng):
        with monkeypatch.context() as patched:
            simulation = new(**given)
            simulation.sampler.state.drawing.generator = lambda *_: rng
            patched.setattr("kvib.sim.stragglers.generator", lambda *_: rng)
            return step(simulation)

    yield from ((probability, *found) for probability, found in outcomes(play))


def moments(found):
    """Mean and variance of the step, means of recorded variance and squared bias."""
    chance = np.array([probability for probability, _, _ in found])
    steps = np.array([d for _, d, _ in found])
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    mean = chance @ steps
    variance = chance @ ((steps - mean) ** 2).sum(axis=1)
    return mean, variance, chance @ [r.variance for _, _, r in found], found[0][2].bias


LEARNED, MEMORY = kvib.EstimatedRate(), kvib.Difference()
SILENCE, ABSENCE = {"response": RESPONSE[:3]}, {"availability": AVAILABILITY[:3]}
SCENARIOS = {
    "silence": {"response": RESPONSE, "clients": 4},
    "absence": {"availability": AVAILABILITY, "clients": 4},
    "both": SILENCE | ABSENCE,
    "one rate for all": {"response": 0.5, "budget": 3},
    "with replacement": {"procedure": kvib.with_replacement, **SILENCE},
    "with replacement, both": {"procedure": kvib.with_replacement, **SILENCE, **ABSENCE},
    "without replacement, both": {
        "policy": kvib.Uniform(),
        "procedure": kvib.without_replacement,
        **SILENCE,
        **ABSENCE,
    },
    "conditional Poisson, both": {"procedure": kvib.conditional_poisson, **SILENCE, **ABSENCE},
    "more are asked": {"over_select": True, "budget": 1, **SILENCE},
    "after learning": {"policy": kvib.KVib(), "before": 5, **SILENCE},
    "memory": {"estimator": MEMORY, "before": 4, **SILENCE},
    "memory, both": {"estimator": MEMORY, "before": 4, **SILENCE, **ABSENCE},
    "the oracle, both": {"policy": kvib.Optimal(), **SILENCE, **ABSENCE},
}
"""The sampler knows the true rates."""


def rounding(given):
    """Memories are kept in single precision."""
    return 1e-10 if given.get("estimator") is None else 1e-7


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_outcome_of_a_round_with_known_rates(monkeypatch, scenario):
    """Mean and variance of the real step, over all coins, are what theory and the record say."""
    given = {"clients": 3, **SCENARIOS[scenario]}
    mean, variance, measured, bias = moments(list(every_round(monkeypatch, **given)))
    assert mean == pytest.approx(full_step(new(**given)), abs=rounding(given))
    assert bias == 0
    assert variance > 1e-3
    assert measured == pytest.approx(variance, abs=rounding(given))


WRONG = {
    "silence that is not known": {"truth": SILENCE},
    "wrong rates": {"truth": SILENCE, "response": 0.5},
    "wrong rates of absence": {"truth": ABSENCE, "availability": 0.7},
    "learned silence": {"truth": SILENCE, "response": LEARNED, "before": 5},
    "memory, wrong rates": {
        "truth": SILENCE | ABSENCE,
        "response": 0.5,
        "availability": 0.7,
        "estimator": MEMORY,
        "before": 4,
    },
    "some wait": {"cool_down": 1, "before": 1},
    "some wait, memory": {"cool_down": 1, "estimator": MEMORY, "before": 4, **SILENCE},
    "all at once": {
        "truth": SILENCE | ABSENCE,
        "response": 0.8,
        "availability": 0.7,
        "cool_down": 1,
        "before": 1,
    },
}


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("scenario", WRONG)
def test_every_outcome_of_a_round_with_a_bias(monkeypatch, scenario):
    """Where the mean is not the full step, the record says by how much."""
    given = {"clients": 3, **WRONG[scenario]}
    mean, variance, measured, bias = moments(list(every_round(monkeypatch, **given)))
    off = np.linalg.norm(mean - full_step(new(**given)))
    assert off > 1e-3
    assert bias == pytest.approx(off, abs=rounding(given))
    assert measured == pytest.approx(variance, abs=rounding(given))


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["plain", "memory"])
def test_without_rates_the_estimate_is_for_those_present(monkeypatch, memory):
    """Its variance is that given who is there; its bias is to the step of all."""
    before = 0 if memory is None else 4
    given = {"clients": 3, "truth": ABSENCE, "estimator": memory, "before": before, **SILENCE}
    found = list(every_round(monkeypatch, **given))
    mean, _, measured, bias = moments(found)
    off = np.linalg.norm(mean - full_step(new(**given)))
    assert bias == pytest.approx(off, abs=rounding(given))
    assert bias > 1e-3
    groups = {}  # outcomes with the same clients there, who are told by their cost
    for probability, d, record in found:
        groups.setdefault(round(record.sampling_cost, 9), []).append((probability, d))
    assert len(groups) == 4  # the third client is always there
    within = 0.0
    for group in groups.values():
        chance, steps = np.array([p for p, _ in group]), np.array([d for _, d in group])
        middle = chance @ steps / chance.sum()
        within += chance @ ((steps - middle) ** 2).sum(axis=1)
    assert measured == pytest.approx(within, abs=rounding(given))


# Many seeds


MANY = 2000
ALL = {"response": RESPONSE, "availability": AVAILABILITY}
STATISTICAL = {
    "response": {"response": RESPONSE},
    "availability": {"availability": AVAILABILITY},
    "both": ALL,
    "both, pivotal": {"procedure": kvib.pivotal, **ALL},
    "everybody is asked": {"response": 0.5, "budget": 4},
}


@pytest.mark.parametrize("scenario", STATISTICAL)
def test_the_mean_over_2000_seeds_is_the_full_step(scenario):
    """With a false-alarm rate of 4e-8 per number."""
    given = STATISTICAL[scenario]
    played = [step(new(seed=seed, exact=0, **given)) for seed in range(MANY)]
    steps, wanted = np.array([d for d, _ in played]), full_step(new(**given))
    error = steps.std(axis=0, ddof=1) / math.sqrt(MANY)
    assert (np.abs(steps.mean(axis=0) - wanted) < 5.5 * error).all()
    assert (error > 0).all()
    squares = ((steps - wanted) ** 2).sum(axis=1)
    exact = [step(new(seed=seed, **given))[1].variance for seed in range(60)]
    error = math.hypot(squares.std(ddof=1) / math.sqrt(MANY), np.std(exact, ddof=1) / math.sqrt(60))
    assert abs(squares.mean() - np.mean(exact)) < 5.5 * error
    answered = [record.answered / max(record.clients, 1) for _, record in played]
    assert np.mean(answered) < 0.9 or "response" not in given


def test_ignored_silence_shortens_steps():
    """K = N, half of them silent: half of the full step on average, and the record says so."""
    given = {"truth": {"response": 0.5}, "budget": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        played = [step(new(seed=seed, **given)) for seed in range(400)]
    steps, wanted = np.array([d for d, _ in played]), full_step(new(**given))
    error = steps.std(axis=0, ddof=1) / math.sqrt(len(steps))
    assert (np.abs(steps.mean(axis=0) - wanted / 2) < 5.5 * error).all()
    assert played[0][1].bias == pytest.approx(np.linalg.norm(wanted) / 2)


# Records and exact measures


def test_records_say_who_was_there_and_who_answered():
    simulation = new(exact=0, clients=30, budget=10, response=0.6, availability=0.7, cool_down=1)
    records = [simulation.round() for _ in range(60)]
    there, asked, heard = (
        np.array([getattr(r, name) for r in records])
        for name in ("available", "clients", "answered")
    )
    for r in records:
        assert r.answered == np.count_nonzero(~np.isnan(r.norms))
    assert (asked <= there).all()
    assert (heard <= asked).all()
    waiting = np.concatenate([[0], asked[:-1]])  # they could not be drawn again
    assert (there <= 30 - waiting).all()
    chance = 0.7 * (30 - waiting).sum()
    assert abs(there.sum() - chance) < 5.5 * math.sqrt(0.3 * chance)
    chance = 0.6 * asked.sum()
    assert abs(heard.sum() - chance) < 5.5 * math.sqrt(0.4 * chance)


def test_all_samplers_of_a_seed_meet_the_same_coins():
    """A client that answers one sampler answers the other too, and where both draw it, both hear
    it: comparisons are of samplers, not of luck."""
    truth = {"response": 0.5, "availability": 0.6}
    runs = [
        new(p, kvib.independent, 12, clients=30, exact=0, **truth)
        for p in (kvib.BySize(), kvib.Uniform())
    ]
    for _ in range(10):
        a, b = (run.round() for run in runs)
        assert a.available == b.available
        both, at, also = np.intersect1d(a.ids, b.ids, return_indices=True)
        assert len(both)
        assert np.isnan(a.norms[at]).tolist() == np.isnan(b.norms[also]).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"response": RESPONSE},
        {"availability": AVAILABILITY},
        ALL,
        {"cool_down": 1},
        {"response": RESPONSE, "over_select": True, "budget": 1.5},
        {"cost": np.array([1.0, 4.0, 2.0, 0.5])},
        {"response": RESPONSE, "over_select": True, "cost": np.array([1.0, 4.0, 2.0, 0.5])},
    ],
    ids=lambda options: ", ".join(options),
)
def test_the_oracle_has_no_regret_whatever_is_drawn(options):
    simulation = new(kvib.Optimal(), **options)
    for _ in range(6):
        r = simulation.round()
        assert r.sampling_cost - r.optimal_sampling_cost == pytest.approx(
            0, abs=1e-9 * r.sampling_cost
        )
        assert r.variance == pytest.approx(r.optimal_variance)
        assert r.quality == pytest.approx(0, abs=1e-9 * r.sampling_cost)
    other = new(kvib.Uniform(), **options)
    for _ in range(6):
        r = other.round()
        assert r.sampling_cost >= r.optimal_sampling_cost * (1 - 1e-12)
        assert 0 <= r.optimal_variance <= r.variance * (1 + 1e-12)
        assert math.isfinite(r.quality)


@pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=IDS)
def test_every_policy_and_procedure_meets_stragglers(policy, procedure):
    options = {"response": np.linspace(0.3, 1, 9), "availability": np.linspace(1, 0.4, 9)}
    simulation = new(policy, procedure, 3, clients=9, cool_down=1, **options)
    for _ in range(4):
        r = simulation.round()
        names = (
            "variance",
            "bias",
            "sampling_cost",
            "optimal_sampling_cost",
            "optimal_variance",
            "quality",
        )
        assert all(0 <= getattr(r, name) < math.inf for name in names)
        if procedure is not kvib.with_replacement:  # which may draw a client more than once
            assert r.sampling_cost >= r.optimal_sampling_cost * (1 - 1e-9)


def test_cost_and_regret_of_silence():
    simulation = new(kvib.BySize(), response=RESPONSE)
    p, weights = simulation.sampler.probabilities(), simulation.sampler.weights
    batches = local_batches(TASK.train, np.arange(4), LOCAL, 0, 0)
    pi = weights * np.linalg.norm(simulation.engine.updates(simulation.model, batches), axis=1)
    record = simulation.round()
    assert record.sampling_cost == pytest.approx((pi**2 / (RESPONSE * p)).sum())
    assert record.optimal_sampling_cost == pytest.approx(
        metrics.optimal_sampling_cost(pi, 2, RESPONSE)
    )
    assert record.variance == pytest.approx((pi**2 * (1 / (RESPONSE * p) - 1)).sum())
    assert record.optimal_factor == pytest.approx(metrics.optimal_factor(pi, 2, RESPONSE))


def test_a_mean_has_no_exact_variance():
    with pytest.warns(UserWarning, match="did not answer"):
        records = [
            new(coefficients=kvib.self_normalised, seed=s, truth={"response": 0.5}).round()
            for s in range(3)
        ]
    for r in records:
        assert math.isnan(r.variance)
        assert math.isnan(r.bias)
        assert math.isfinite(r.sampling_cost)


def test_availability_that_is_learned_has_no_exact_variance():
    """The draw counts who is there before it divides by how often they are."""
    simulation = new(availability=LEARNED, truth={"availability": 0.7})
    for _ in range(3):
        r = simulation.round()
        assert math.isnan(r.variance)
        assert math.isnan(r.bias)
        assert math.isfinite(r.sampling_cost)
    always = new(availability=LEARNED).round()  # there is nothing to learn
    assert always.variance == new().round().variance


# Rounds without anybody


SILENT = {
    "silent": {"response": 1e-9},
    "away": {"availability": 1e-9},
    "silent, pivotal": {"response": 1e-9, "procedure": kvib.pivotal},
    "away, with replacement": {"availability": 1e-9, "procedure": kvib.with_replacement},
    "silent, remembered": {"response": 1e-9, "estimator": MEMORY},
    "silent, guarded": {"response": 1e-9, "guard": kvib.Guard(), "sketch": 2},
    "silent, a mean": {"response": 1e-9, "coefficients": kvib.self_normalised},
    "away, the oracle": {"availability": 1e-9, "policy": kvib.Optimal()},
}
"""Hardly anybody answers, or is there."""


@pytest.mark.parametrize("engine", [Quadratic, Chunks, Far])
@pytest.mark.parametrize("options", SILENT)
def test_a_round_without_answers_leaves_the_model(engine, options):
    simulation = new(engine=engine, **SILENT[options])
    before = simulation.model
    for _ in range(3):
        record = simulation.round()
        assert record.answered == record.step_norm == 0
        assert (simulation.model == before).all()
        finite = (
            "sampling_cost",
            "optimal_sampling_cost",
            "optimal_variance",
            "quality",
            "optimal_factor",
        )
        assert all(math.isfinite(getattr(record, name)) for name in finite)
        assert not record.estimated_variance > 0  # 0, or not known


@pytest.mark.filterwarnings("ignore:.*did not answer")
def test_no_answers_with_a_memory():
    """What is remembered is the step, as in a round in which nobody was drawn."""
    simulation = new(estimator=MEMORY, before=6)
    known = simulation.sampler.state.memory.known()
    assert np.linalg.norm(known) > 0
    simulation._stragglers.response[:] = 1e-9
    d, record = step(simulation)
    assert record.answered == 0
    assert d == pytest.approx(known)


@pytest.mark.parametrize("engine", ["linear", "torch"])
def test_a_step_from_memory_has_the_models_precision(tmp_path, engine):
    """Also after a restart, when the memory has not seen yet what kind of updates there are."""
    from kvib.sim import LinearEngine, SoftmaxRegression

    rng, sizes = np.random.default_rng(0), np.arange(1, 9)
    x = rng.normal(size=(36, 5)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)
    given = Task("small", ClientData(x, y, sizes), (x, y), SoftmaxRegression(5, 3), 3)
    local = LocalSGD(0.1, batch_size=8)

    def begun():
        made = LinearEngine(given, local)
        if engine == "torch":
            pytest.importorskip("torch")
            from kvib.sim.engines.torch_engine import TorchEngine

            made = TorchEngine(given, local)
        sampler = kvib.Sampler(kvib.BySize(), given.weights, 3, estimator=MEMORY, response=0.4)
        return Simulation(given, made, sampler, local)

    def play(simulation, rounds):
        for _ in range(rounds):
            simulation._stragglers.response[:] = 1e-9 if simulation.sampler.round > 5 else 0.4
            record = simulation.round()
        return record

    straight, first, second = begun(), begun(), begun()
    kind = straight.model.dtype
    record = play(straight, 9)
    assert record.answered == 0 < record.step_norm
    assert straight.model.dtype == kind
    play(first, 6)
    first.save(tmp_path / "checkpoint.npz")
    second.load(tmp_path / "checkpoint.npz")
    play(second, 3)
    a, b = (s.engine.to_numpy(s.model).tobytes() for s in (straight, second))
    assert a == b


def test_clients_that_all_wait():
    simulation = new(budget=4, cool_down=1)
    for t in range(4):
        record = simulation.round()
        assert record.available == record.clients == (0 if t % 2 else 4)
        assert (record.step_norm == 0) == bool(t % 2)
        names = (
            "variance",
            "sampling_cost",
            "optimal_sampling_cost",
            "optimal_variance",
            "quality",
            "bias",
        )
        assert all(math.isfinite(getattr(record, name)) for name in names)
    assert record.bias == pytest.approx(np.linalg.norm(full_step(simulation)))


# Engines


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("coefficients", [kvib.unbiased, kvib.self_normalised])
@pytest.mark.parametrize("availability", [1.0, 0.7])
def test_every_path_leaves_out_the_same_clients(coefficients, availability):
    """Together, one by one, far away, and far away with a guard that looks at each."""
    truth = {"response": 0.5, "availability": availability}
    ways = [
        {"engine": Quadratic},
        {"engine": Chunks},
        {"engine": Far},
        {"engine": Far, "guard": kvib.Guard(1e9)},
    ]
    runs = [
        new(coefficients=coefficients, clients=12, budget=6, truth=truth, **way) for way in ways
    ]
    silent = 0
    for _ in range(6):
        first, *others = [run.round() for run in runs]
        silent += first.clients - first.answered
        for other in others:
            assert first.ids.tolist() == other.ids.tolist()
            np.testing.assert_allclose(first.norms, other.norms)
            assert first.step_norm == pytest.approx(other.step_norm)
            np.testing.assert_allclose([first.variance, first.bias], [other.variance, other.bias])
    assert silent > 5
    for run in runs[1:]:
        assert run.model == pytest.approx(runs[0].model)


class Losing(Far):
    """A cluster that loses the first client of every call."""

    def summed(self, model, batches, coefficients):
        norms, total = super().summed(model, batches, coefficients)
        if len(norms):
            lost = self.updates(model, batches.part(np.array([0])))[0]
            norms[0], total = math.nan, total - coefficients[0] * lost
        return Summed(norms, total)


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("coefficients", [kvib.unbiased, kvib.self_normalised])
def test_clients_that_a_cluster_loses_are_silent_too(coefficients):
    given = {"coefficients": coefficients, "clients": 12, "budget": 8, "exact": 0}
    simulation = new(engine=Losing, truth={"response": 0.6}, **given)
    for _ in range(5):
        before, cohort = simulation.model, new_draw(simulation)
        d, record = step(simulation)
        batches = local_batches(simulation.task.train, cohort.ids, LOCAL, 0, record.round)
        updates = simulation.engine.updates(before, batches)
        heard = ~np.isnan(record.norms)
        given = [u if came else None for u, came in zip(updates, heard, strict=True)]
        assert d == pytest.approx(kvib.estimate(cohort, given, coefficients))
        coins = simulation._stragglers.answering(cohort.ids, 0, record.round)
        assert heard.sum() == coins.sum() - 1


def new_draw(simulation):
    """The cohort that comes next."""
    alike = kvib.Sampler.unpacked(simulation.sampler.packed())
    return alike.draw()


# What is refused


def test_the_truth_is_not_learned():
    with pytest.raises(ValueError, match=r"response of a simulation is the truth.*give a number"):
        new(truth={"response": LEARNED})
    with pytest.raises(ValueError, match=r"availability has shape \(3,\) for 4 clients"):
        new(truth={"availability": [0.5, 0.5, 0.5]})
    with pytest.raises(ValueError, match="response must be probabilities from"):
        new(truth={"response": 1.5})
    with pytest.raises(ValueError, match="response must be probabilities from"):
        new(truth={"response": math.nan})

"""Biased selectors in the round loop: what they ask, what they cost, how they go on."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

import kvib
from kvib.sim import ClientData, LinearEngine, LocalSGD, Record, Simulation, SoftmaxRegression, Task
from kvib.sim.local import local_batches

LOCAL = LocalSGD(0.1, batch_size=8)
N, K, ROUNDS = 12, 3, 7
RULES = {"Power-of-Choice": kvib.PowerOfChoice(candidates=5), "DivFL": kvib.DivFL()}


def small_task(classes=3):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, N)
    x = rng.normal(size=(sizes.sum() + 40, 5)).astype(np.float32)
    y = np.argmax(x[:, :classes], axis=1)
    train = ClientData(x[:-40], y[:-40], sizes)
    return Task("small", train, (x[-40:], y[-40:]), SoftmaxRegression(5, classes), classes)


def torch_engine(task, local):
    torch = pytest.importorskip("torch")
    from kvib.sim.engines.torch_engine import TorchEngine

    torch.set_num_threads(1)
    return TorchEngine(task, local)


def new(rule, engine=LinearEngine, *, seed=1, **options):
    task = small_task()
    selector = kvib.Selector(rule, task.weights, K, seed=seed)
    return Simulation(task, engine(task, LOCAL), selector, LOCAL, **options)


def outcome(simulation):
    """Model and all fields of all records, as bytes."""
    rows = [
        [np.asarray(getattr(record, f.name)).tobytes() for f in fields(Record)]
        for record in simulation.records
    ]
    return simulation.engine.to_numpy(simulation.model).tobytes(), rows


def client_losses(task, model):
    """Cross-entropy of every client, as a textbook writes it."""
    weights, bias = model[:-3].reshape(3, 5), model[-3:]
    found = []
    for i in range(len(task)):
        at = slice(task.train.starts[i], task.train.starts[i] + task.train.sizes[i])
        logits = task.train.x[at].astype(float) @ weights.T + bias
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        found.append(-logits[np.arange(len(logits)), task.train.y[at]].mean())
    return np.array(found)


@pytest.mark.parametrize("engine", [LinearEngine, torch_engine])
def test_engines_tell_the_losses_of_clients(engine):
    task = small_task()
    made = engine(task, LOCAL)
    model = np.random.default_rng(1).normal(size=18).astype(np.float32)
    here, ids = made.from_numpy(model), np.array([2, 7, 11])
    wanted = client_losses(task, model.astype(float))
    np.testing.assert_allclose(made.losses(here, ids), wanted[ids], rtol=1e-5)
    np.testing.assert_allclose(made.losses(here, np.arange(N)), wanted, rtol=1e-5)
    assert made.losses(here, ids[:0]).shape == (0,)
    whole = made.evaluate(here, "train").loss
    assert whole == pytest.approx(np.average(wanted, weights=task.train.sizes), rel=1e-5)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_records_of_a_selector(rule):
    simulation = new(rule, exact_every=1, train_loss_every=1)
    records = list(simulation.run(rounds=ROUNDS))
    assert simulation.guarantee == "biased"
    for record in records:
        assert record.clients == record.answered == K
        assert record.asked == (5 if rule == RULES["Power-of-Choice"] else 0)
        assert math.isfinite(record.train_loss)
        for name in (
            "variance",
            "bias",
            "sampling_cost",
            "optimal_sampling_cost",
            "quality",
            "estimated_variance",
        ):
            assert math.isnan(getattr(record, name))  # there are no probabilities
    assert records[-1].loss < records[0].loss


def test_power_of_choice_takes_the_highest_losses():
    simulation = new(RULES["Power-of-Choice"])
    simulation.round()  # all losses are equal before it
    for _ in range(4):
        losses = client_losses(simulation.task, simulation.model.astype(float))
        asked = simulation.sampler.asks()
        record = simulation.round()
        highest = asked[np.argsort(-losses[asked])[:K]]
        assert record.ids.tolist() == sorted(highest.tolist())


def test_a_step_is_the_mean_of_the_chosen():
    simulation = new(kvib.DivFL())
    for t in range(3):
        before, task = simulation.model.astype(float), simulation.task
        batches = local_batches(task.train, np.arange(N), LOCAL, 0, t)
        updates = simulation.engine.updates(simulation.model, batches).astype(float)
        record = simulation.round()
        share = task.weights[record.ids] / task.weights[record.ids].sum()
        np.testing.assert_allclose(
            simulation.model, before - share @ updates[record.ids], rtol=1e-4, atol=1e-6
        )


def test_divfl_learns_from_exact_sketches_of_small_models():
    """A model with fewer numbers than the sketch: all distances stay as they are."""
    sketched, whole = (
        new(kvib.DivFL()),
        kvib.Selector(kvib.DivFL(), small_task().weights, K, seed=1),
    )
    for t in range(ROUNDS):
        model, cohort = sketched.model, whole.draw()
        batches = local_batches(sketched.task.train, cohort.ids, LOCAL, 0, t)
        whole.update(cohort, list(sketched.engine.updates(model, batches).astype(float)))
        assert sketched.round().ids.tolist() == cohort.ids.tolist()


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_chunks_change_nothing_but_digits(rule, chunk):
    whole, cut = new(rule), new(rule)
    cut.engine.chunk = chunk
    for a, b in zip(whole.run(rounds=ROUNDS), cut.run(rounds=ROUNDS), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.step_norm == pytest.approx(b.step_norm, rel=1e-4)


@pytest.mark.parametrize("engine", [LinearEngine, torch_engine])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("rates", [{}, {"response": 0.6, "availability": 0.7}], ids=["", "silent"])
def test_interrupted_after_any_round(tmp_path, rule, engine, rates):
    straight = new(rule, engine, **rates)
    list(straight.run(rounds=ROUNDS))
    for stop in range(1, ROUNDS):
        first = new(rule, engine, **rates)
        for record in first.run(rounds=ROUNDS, folder=tmp_path / f"{stop}", checkpoint_seconds=0):
            if record.round + 1 == stop:
                break
        second = new(rule, engine, **rates)
        rest = [r.round for r in second.run(rounds=ROUNDS, folder=tmp_path / f"{stop}")]
        assert rest == list(range(stop, ROUNDS))
        assert outcome(second) == outcome(straight)


def test_another_selector_does_not_go_on(tmp_path):
    list(new(kvib.DivFL()).run(rounds=2, folder=tmp_path))
    with pytest.raises(ValueError, match="of another run: selector differ"):
        list(new(RULES["Power-of-Choice"]).run(rounds=3, folder=tmp_path))
    task = small_task()
    sampler = kvib.Sampler(kvib.Uniform(), task.weights, K)
    plain = Simulation(task, LinearEngine(task, LOCAL), sampler, LOCAL)
    with pytest.raises(ValueError, match="of another run"):
        list(plain.run(rounds=3, folder=tmp_path))


def test_packed_selectors():
    selector = kvib.Selector(kvib.DivFL(), [1, 2, 3, 4], 2, seed=3)
    first = selector.draw()
    selector.update(first, [np.ones(3), np.zeros(3)])
    open_round = selector.draw()
    again = kvib.Selector(kvib.DivFL(), [1, 2, 3, 4], 2, seed=3).unpacked(selector.packed())
    assert again.round == selector.round == 2
    for one in (selector, again):
        one.update(open_round, [np.ones(3), np.full(3, 2.0)])
    assert again.draw().ids.tolist() == selector.draw().ids.tolist()
    with pytest.raises(ValueError, match="seed differ"):
        kvib.Selector(kvib.DivFL(), [1, 2, 3, 4], 2).unpacked(selector.packed())
    with pytest.raises(ValueError, match="weights differ"):
        kvib.Selector(kvib.DivFL(), [1, 2, 3, 5], 2, seed=3).unpacked(selector.packed())


def test_selectors_are_not_unbiased():
    with pytest.raises(ValueError, match="self_normalised"):
        new(kvib.DivFL(), coefficients=kvib.unbiased).round()


def test_an_engine_without_losses_says_so():
    class Plain(LinearEngine):
        def losses(self, model, ids):
            return super(LinearEngine, self).losses(model, ids)

    new(kvib.DivFL(), Plain).round()
    with pytest.raises(ValueError, match="Plain does not tell the losses of single clients"):
        new(RULES["Power-of-Choice"], Plain).round()


@dataclass(frozen=True)
class Newest:
    """A rule of one's own: the clients with the highest ids."""

    needs: ClassVar[str] = "nothing"
    sketch: ClassVar[int] = 0

    def start(self, weights, budget):
        return kvib.DivFL().start(weights, budget)

    def asks(self, state, ids, size, rng):
        return ids[:0]

    def choose(self, state, ids, size, rng):
        return ids[-size:]

    def observe(self, state, ids, signals):
        return state


def test_rules_of_ones_own():
    (record,) = new(Newest()).run(rounds=1)
    assert record.ids.tolist() == [9, 10, 11]


def test_signals_of_some_clients():
    selector = kvib.Selector(kvib.PowerOfChoice(candidates=4), [1, 1, 1, 1], 2)
    assert selector.asks().tolist() == [0, 1, 2, 3]
    assert selector.asks(available=[1, 3]).tolist() == [1, 3]
    assert selector.asks(available=[]).tolist() == []
    assert selector.draw(signals={3: 5.0, 0: 4.0, 1: 1.0, 2: 0.0}).ids.tolist() == [0, 3]
    assert selector.draw(signals={2: 9.0}).ids.tolist() == [2, 3]
    with pytest.raises(ValueError, match="unknown client id 7"):
        selector.draw(signals={7: 1.0})

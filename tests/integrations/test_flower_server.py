"""Flower: how the server adds replies, what it holds, and what a round says of its variance."""

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import LocalGrid, numbers, one_round, partitions, record, shifting_app
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as strategies

import kvib
from kvib import compiled
from kvib.estimators.variance import Spread
from kvib.integrations.flower import UnbiasedSampling, Visible
from kvib.integrations.flower.records import Unwritten, unwritten, written

N = 6
SIZES = [10.0, 20, 30, 40, 5, 100]
RNG = np.random.default_rng(1)
MODEL = {"w": RNG.normal(size=(20, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
UPDATES = [
    {name: RNG.normal(size=array.shape).astype(np.float32) for name, array in MODEL.items()}
    for _ in range(N)
]


def grid_of(sizes=SIZES, **options):
    return LocalGrid(shifting_app(UPDATES, sizes, **options), partitions(len(sizes)))


def node_of(grid, partition):
    return sorted(grid.contexts)[partition]


def wrapped(budget=4, inner=None, **options):
    inner = inner or strategies.FedAvg(min_available_nodes=1, min_train_nodes=1)
    return UnbiasedSampling(inner, budget=budget, **{"guard": None, **options})


def not_finite(reply):
    reply.content["arrays"]["b"] = Array(np.full(3, np.nan, np.float32))
    return reply


class Streaming(Visible):
    """As a server adds that cannot hold all replies."""

    def begin(self, round, model):
        return super().begin(round, model, held=False)


@pytest.mark.parametrize("procedure", [kvib.independent, kvib.pivotal], ids=repr)
def test_replies_add_up_however_many_wait(procedure, monkeypatch):
    """With bad ones among them; the variance of pivotal draws is for who adds all at once."""
    ends = []
    for updates, block in (
        (Visible(), 1),
        (Streaming(), 1),
        (Streaming(), 130),
        (Streaming(), 1e9),
    ):
        # an update has 63 numbers
        monkeypatch.setattr("kvib.integrations.kit.combining.BLOCK", block)
        strategy = wrapped(3, guard=kvib.Guard(), procedure=procedure, updates=updates)
        grid = grid_of()
        grid.fails = {node_of(grid, 2): not_finite}
        for t in range(1, 7):
            arrays, metrics = one_round(strategy, grid, record(**MODEL), t)
        ends.append(np.concatenate([a.ravel() for a in numbers(arrays).values()]))
        seen = updates == Visible() or procedure is kvib.independent
        assert math.isnan(metrics["kvib-variance"]) != seen
    for end in ends[1:]:
        assert end == pytest.approx(ends[0], rel=1e-6)  # single precision


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_bits_do_not_hang_on_the_order_of_arrival(way, monkeypatch):
    if way == "interpreted":
        monkeypatch.setattr(compiled, "available", lambda: False)
    ends = []
    for seed in range(4):
        strategy, grid, x = wrapped(budget=3), grid_of(), record(**MODEL)
        rng = np.random.default_rng(seed)
        for t in range(1, 5):
            messages = strategy.configure_train(t, x, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            x, metrics = strategy.aggregate_train(t, [replies[i] for i in rng.permutation(3)])
        ends.append((b"".join(array.data for array in x.values()), dict(metrics)))
        assert metrics["kvib-variance"] > 0
    assert all(end == ends[0] for end in ends)


def test_interpreted_steps_are_the_compiled_ones(monkeypatch):
    ends = []
    for available in (True, False):
        monkeypatch.setattr(compiled, "available", lambda available=available: available)
        strategy, grid, x = wrapped(), grid_of(), record(**MODEL)
        for t in range(1, 6):
            x, metrics = one_round(strategy, grid, x, t)
        ends.append((numbers(x)["w"], metrics["kvib-variance"]))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-6)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-9)


# What the wrapped strategy is handed


def test_the_estimate_is_written_on_demand():
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    lazy, plain = Unwritten(array), Array(array)
    assert lazy.numpy() is array
    for name in ("data", "dtype", "shape", "stype"):
        assert getattr(lazy, name) == getattr(plain, name)
    record = written(unwritten({"w": array}))
    assert type(record["w"]) is Array
    assert record["w"].data == plain.data
    assert ArrayRecord(dict(unwritten({"w": array})))["w"].data == plain.data


class AsItCame(strategies.FedAvg):
    """Returns what it was given."""

    def aggregate_train(self, server_round, replies):
        [reply] = replies
        [given] = reply.content.array_records.values()
        return given, super().aggregate_train(server_round, replies)[1]


def test_what_a_strategy_passes_on_can_be_sent():
    strategy = wrapped(inner=AsItCame(min_available_nodes=1, min_train_nodes=1))
    grid = grid_of()
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    assert all(type(array) is Array for array in arrays.values())
    other = wrapped()
    expected, _ = one_round(other, grid_of(), record(**MODEL))
    assert {n: a.data for n, a in arrays.items()} == {n: a.data for n, a in expected.items()}


# What is known of the variance


PROCEDURES = [
    kvib.independent,
    kvib.pivotal,
    kvib.systematic,
    kvib.with_replacement,
    kvib.without_replacement,
    kvib.neighbours,
]
RATES = [1.0, 0.8, kvib.EstimatedRate()]


def cohorts(procedure, response, availability):
    """Of all sizes up to four clients, at once and after three rounds with silence."""
    rng = np.random.default_rng(2)
    policy = kvib.Uniform() if procedure is kvib.without_replacement else kvib.BySize()
    for n, budget, rounds in itertools.product((1, 2, 3, 4), (1, 1.5, 2, 3, 4), (0, 3)):
        if budget > n or (procedure is kvib.without_replacement and budget == 1.5):
            continue
        options = {"response": response, "availability": availability, "seed": 1}
        sampler = kvib.Sampler(policy, np.arange(1.0, n + 1) ** 2, budget, procedure, **options)
        for _ in range(rounds):
            cohort = sampler.draw(np.arange(n))
            silent = rng.random(len(cohort)) < (0.0 if response == 1.0 else 0.3)
            sampler.update(cohort, np.where(silent, np.nan, 1.0))
        yield sampler.draw(np.arange(n))


@pytest.mark.parametrize("availability", RATES, ids=repr)
@pytest.mark.parametrize("response", RATES, ids=repr)
@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_a_running_sum_says_what_all_inner_products_say(procedure, response, availability):
    """Also whether it is known, for everybody who may be silent; 0 is said of no unknown noise."""
    rng = np.random.default_rng(3)
    for cohort in cohorts(procedure, response, availability):
        updates, spread = rng.normal(size=(len(cohort), 3)), Spread(cohort)
        for outcome in itertools.product([False, True], repeat=len(cohort)):
            came = np.array(outcome, bool)
            norms = np.where(came, np.linalg.norm(updates, axis=1), np.nan)
            total = spread.weights[came] @ updates[came]
            value = spread.value(norms, float(total @ total))
            answered = [
                update if here else None for update, here in zip(updates, came, strict=True)
            ]
            expected = kvib.estimated_variance(cohort, answered)
            assert value == pytest.approx(expected.value, rel=1e-9, abs=1e-12, nan_ok=True)
            lost = ~came & (cohort.answer_probability == cohort.availability)
            if lost.any():
                assert math.isnan(value)
            if not came.all() and cohort.guarantee != "unbiased":
                assert not abs(value) < 1e-12


def test_nothing_is_known_where_a_large_client_is_silent():
    """49 % of λ, and all who came were drawn for certain."""
    sizes = [49.0, 17, 17, 17]
    for budget in (2, 4):
        strategy, grid = wrapped(budget=budget), grid_of(sizes)
        x, seen = record(**MODEL), 0
        for t in range(1, 6):
            grid.fails = {} if t == 1 else {node_of(grid, 0): 2}
            _, metrics = one_round(strategy, grid, x, t)
            silent = t > 1 and 0 in strategy.cohort.ids
            seen += silent
            if silent:
                assert metrics["kvib-variance"] != 0
            if (
                silent
                and (strategy.cohort.answer_probability == strategy.cohort.availability).all()
            ):
                assert math.isnan(metrics["kvib-variance"])
            if budget == 4 and t == 1:
                assert metrics["kvib-variance"] == 0  # all were drawn, and all came
        assert seen

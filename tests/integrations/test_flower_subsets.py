"""Flower: clients that send some of the model's arrays only, as adapters and personal heads do."""

import math

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import LocalGrid, numbers, one_round, partitions, record, shifting_app
from flwr.serverapp import strategy as strategies

import kvib
from kvib.integrations.flower import Hidden, UnbiasedSampling, scaled_update

SIZES = [10.0, 20, 30, 40, 5]
N = len(SIZES)
RNG = np.random.default_rng(8)
MODEL = {
    "base": np.arange(4.0),
    "adapter.a": np.ones((2, 3)),
    "adapter.b": np.zeros(3),
    "bn.running_var": np.ones(2),
    "bn.num_batches_tracked": np.int64(3),
    "head": np.full(2, 5.0),
}
UPDATES = [
    {name: RNG.integers(-9, 9, np.shape(array)) / 8 for name, array in MODEL.items()}
    for _ in range(N)
]  # x − (x − g) is exactly g then
ADAPTERS = ["adapter.a", "adapter.b"]
AVERAGING = [
    strategies.FedAvg,
    strategies.FedAvgM,
    strategies.FedAdam,
    strategies.FedYogi,
    strategies.FedAdagrad,
    strategies.FedProx,
]


def only(names):
    def change(reply):
        sent = reply.content["arrays"]
        for name in [name for name in sent if name not in names]:
            del sent[name]
        return reply

    return change


def grid_of(*names, **options):
    """Every client sends these arrays."""
    grid = LocalGrid(shifting_app(UPDATES, SIZES, **options), partitions(N))
    grid.fails = dict.fromkeys(grid.contexts, only(names))
    return grid


def node_of(grid, partition):
    return sorted(grid.contexts)[partition]


def wrapped(inner=strategies.FedAvg, budget=3, **options):
    options = {"guard": None, **options}
    strategy = inner(min_available_nodes=1, min_train_nodes=1)
    return UnbiasedSampling(strategy, budget=budget, **options)


def estimated(cohort, names):
    updates = [{name: UPDATES[i][name] for name in names} for i in cohort.ids]
    step = kvib.estimate(cohort, updates)
    return {name: MODEL[name] - step[name] for name in names}


def lengths(cohort, names):
    return [math.hypot(*(kvib.norm(UPDATES[i][name]) for name in names)) for i in cohort.ids]


def test_the_step_is_taken_on_what_was_sent_and_the_rest_stays(tmp_path):
    journal = tmp_path / "run.kvib"
    strategy, grid, x = wrapped(journal=journal), grid_of(*ADAPTERS), record(**MODEL)
    for t in range(1, 5):
        arrays, metrics = one_round(strategy, grid, x, t)
        moved = numbers(arrays)
        assert list(moved) == list(MODEL)
        for name, expected in estimated(strategy.cohort, ADAPTERS).items():
            assert moved[name] == pytest.approx(expected, rel=1e-14)
        for name in MODEL.keys() - set(ADAPTERS):
            assert np.array_equal(moved[name], MODEL[name])
            assert moved[name].dtype == np.asarray(MODEL[name]).dtype
        assert metrics["kvib-missing"] == 0
        assert strategy.refused == {}
    strategy.close()
    for logged in kvib.journal.read(journal).rounds():
        assert logged.norms == pytest.approx(lengths(logged.cohort, ADAPTERS), rel=1e-6)


@pytest.mark.parametrize("inner", AVERAGING, ids=lambda kind: kind.__name__)
def test_every_strategy_keeps_what_was_not_sent(inner):
    """Over rounds, with momentum from a first round in which all arrays came."""
    strategy, grid, x = wrapped(inner), grid_of(*MODEL), record(**MODEL)
    x, _ = one_round(strategy, grid, x, 1)
    first = numbers(x)
    assert not np.array_equal(first["base"], MODEL["base"])
    grid.fails = dict.fromkeys(grid.contexts, only([*ADAPTERS, "bn.running_var"]))
    for t in range(2, 5):
        before = numbers(x)
        x, _ = one_round(strategy, grid, x, t)
        sent = numbers(grid.sent[-1].content["arrays"])  # to clients: the whole model
        assert sent.keys() == MODEL.keys()
        for name in MODEL.keys() - {*ADAPTERS, "bn.running_var"}:
            assert np.array_equal(numbers(x)[name], first[name])
        assert not np.array_equal(numbers(x)["adapter.a"], before["adapter.a"])


def test_strategies_step_as_with_that_part_alone():
    for inner in AVERAGING:
        part = {name: MODEL[name] for name in ADAPTERS}
        alone, grid = wrapped(inner), LocalGrid(shifting_app(UPDATES, SIZES), partitions(N))
        grid.app = shifting_app([{n: u[n] for n in ADAPTERS} for u in UPDATES], SIZES)
        whole, some = wrapped(inner), grid_of(*ADAPTERS)
        x, y = record(**part), record(**MODEL)
        for t in range(1, 4):
            x, _ = one_round(alone, grid, x, t)
            y, _ = one_round(whole, some, y, t)
            for name, array in numbers(x).items():
                assert numbers(y)[name] == pytest.approx(array, rel=1e-13)


def test_buffers_that_are_sent_are_averaged():
    names = ["adapter.a", "bn.running_var", "bn.num_batches_tracked"]
    strategy, grid = wrapped(strategies.FedAdam), grid_of(*names)
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    cohort, moved = strategy.cohort, numbers(arrays)
    share = kvib.self_normalised(cohort)
    mean = sum(
        s * (1 - UPDATES[i]["bn.running_var"]) for s, i in zip(share, cohort.ids, strict=True)
    )
    assert moved["bn.running_var"] == pytest.approx(mean)
    assert moved["bn.num_batches_tracked"].dtype == np.int64
    assert np.array_equal(moved["head"], MODEL["head"])


def test_one_client_that_sends_less_is_refused_alone():
    strategy, grid = wrapped(budget=5), grid_of(*ADAPTERS)
    grid.fails[node_of(grid, 2)] = only(["adapter.b"])
    arrays, metrics = one_round(strategy, grid, record(**MODEL))
    assert strategy.refused == {
        2: "it sent 'adapter.b', and most replies have 'adapter.a', 'adapter.b': array "
        "'adapter.a' is not in both"
    }
    assert metrics["kvib-missing"] == 1
    cohort = strategy.cohort
    answered = cohort.take(cohort.ids != 2)
    for name, expected in estimated(answered, ADAPTERS).items():
        assert numbers(arrays)[name] == pytest.approx(expected)


def test_of_two_the_one_that_sends_more_counts():
    strategy, grid = wrapped(budget=2), grid_of(*MODEL)
    sent = {}
    for i in range(N):
        names = ["head"] if i % 2 else ["head", "base"]
        sent[i], grid.fails[node_of(grid, i)] = names, only(names)
    for t in range(1, 12):
        arrays, _ = one_round(strategy, grid, record(**MODEL), t)
        kinds = {len(sent[i]) for i in strategy.cohort.ids.tolist()}
        if len(kinds) == 2:
            refused = [i for i in strategy.cohort.ids.tolist() if i % 2]
            assert list(strategy.refused) == refused
            assert not np.array_equal(numbers(arrays)["base"], MODEL["base"])
            return
    pytest.fail("no round had both kinds")


def test_unknown_names_are_refused_and_have_no_vote():
    def more(reply):
        reply.content["arrays"]["mine"] = reply.content["arrays"]["head"]
        return reply

    strategy, grid = wrapped(budget=5), grid_of(*MODEL)
    grid.fails |= {node_of(grid, i): more for i in (0, 1, 2)}
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    assert sorted(strategy.refused) == [0, 1, 2]
    assert set(strategy.refused.values()) == {"array 'mine' is not in both its model and ours"}
    assert not np.array_equal(numbers(arrays)["head"], MODEL["head"])


def test_replies_without_arrays_are_refused():
    strategy, grid = wrapped(budget=5), grid_of(*MODEL)
    grid.fails |= {node_of(grid, i): only([]) for i in (0, 1, 2)}
    one_round(strategy, grid, record(**MODEL))
    assert sorted(strategy.refused) == [0, 1, 2]
    assert all("it sent no arrays, and most" in why for why in strategy.refused.values())
    assert all("and 3 more" in why for why in strategy.refused.values())  # of six, three are named
    grid.fails = dict.fromkeys(grid.contexts, only([]))
    arrays, _ = one_round(strategy, grid, record(**MODEL), 2)
    assert len(strategy.refused) == 5
    assert all(np.array_equal(array, MODEL[name]) for name, array in numbers(arrays).items())


def leaving_out(names):
    """A mod before which `scaled_update` stands: the client itself sends only these."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        return only(names)(reply) if message.metadata.message_type == "train" else reply

    return mod


def test_hidden_updates_of_a_part():
    names = [*ADAPTERS, "bn.running_var"]
    app = shifting_app(UPDATES, SIZES, mods=[scaled_update, leaving_out(names)])
    grid, learned = LocalGrid(app, partitions(N)), []
    strategy = wrapped(updates=Hidden(), procedure=kvib.independent)
    for t in range(1, 6):
        arrays, metrics = one_round(strategy, grid, record(**MODEL), t)
        cohort, moved = strategy.cohort, numbers(arrays)
        assert strategy.refused == {}
        if not len(cohort):
            continue
        for name, expected in estimated(cohort, ADAPTERS).items():
            assert moved[name] == pytest.approx(expected)
        share = kvib.self_normalised(cohort)
        mean = sum(
            s * (1 - UPDATES[i]["bn.running_var"]) for s, i in zip(share, cohort.ids, strict=True)
        )
        assert moved["bn.running_var"] == pytest.approx(mean)
        for name in ("base", "head", "bn.num_batches_tracked"):
            assert np.array_equal(moved[name], MODEL[name])
        noise = kvib.estimated_variance(
            cohort, [{n: UPDATES[i][n] for n in ADAPTERS} for i in cohort.ids]
        )
        assert metrics["kvib-variance"] == pytest.approx(noise.value)
        learned.append(len(cohort))
    assert learned

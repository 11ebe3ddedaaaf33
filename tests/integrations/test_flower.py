"""Flower: what the wrapped strategy is given, who is who, and what goes wrong."""

import gc
import importlib
import io
import itertools
import logging
import math
import re
import tomllib
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from places import ROOT

pytest.importorskip("flwr")

import flwr
from flower_grid import (
    LocalGrid,
    numbers,
    one_round,
    partitions,
    record,
    reply_with,
    shifting_app,
)
from flwr.app import Array, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import FLOWER_LOGGER
from flwr.server import strategy as legacy
from flwr.serverapp import strategy as strategies

import kvib
from enumeration import outcomes
from kvib.integrations.flower import (
    EstimateAvailability,
    Hidden,
    KVibFedAvg,
    Renormalise,
    UnbiasedSampling,
    introduce,
    scaled_update,
)
from kvib.integrations.kit import Introduction, Round, averaged

SIZES = [10.0, 20, 30, 40, 5]
N = len(SIZES)
RNG = np.random.default_rng(5)
UPDATES = [
    {"w": RNG.integers(-99, 99, (2, 3)) / 64, "b": RNG.integers(-99, 99, 3) / 64 * i}
    for i in range(N)
]  # x − (x − g) is exactly g then
MODEL = {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(3)}
AVERAGING = [
    strategies.FedAvg,
    strategies.FedAvgM,
    strategies.FedAdam,
    strategies.FedYogi,
    strategies.FedAdagrad,
    strategies.FedProx,
]

WITHOUT_DIMENSIONS = () if tuple(map(int, flwr.__version__.split(".")[:2])) >= (1, 28) else (1,)
"""Shape of a counter. Before 1.28 Flower's optimisers fail on arrays without dimensions."""


def fleet(n=N, **options):
    return LocalGrid(shifting_app(UPDATES, SIZES, **options), partitions(n))


def fedavg(**options):
    return strategies.FedAvg(**{"min_available_nodes": 1, "min_train_nodes": 1, **options})


def sampling(strategy=None, policy=None, budget=2, **options):
    options = {"guard": None, **options}
    return UnbiasedSampling(strategy or fedavg(), policy, budget=budget, **options)


def node_of(grid, partition):
    return sorted(grid.contexts)[partition]


def flat(arrays):
    return np.concatenate([a.ravel() for _, a in sorted(numbers(arrays).items())])


def estimated(cohort, ids=None):
    """x − kvib.estimate of those who answered."""
    answers = {int(i): UPDATES[i] for i in cohort.ids if ids is None or i in ids}
    step = kvib.estimate(cohort, answers, like=MODEL)
    return flat(record(**{name: MODEL[name] - step[name] for name in MODEL}))


# The estimate


PROCEDURES = [
    kvib.independent,
    kvib.pivotal,
    kvib.systematic,
    kvib.with_replacement,
    kvib.without_replacement,
]


@pytest.mark.parametrize("budget", [2, 2.5, 1])
@pytest.mark.parametrize("procedure", PROCEDURES, ids=repr)
def test_the_step_is_the_estimate(procedure, budget):
    """And its variance that of all inner products, told from one running sum."""
    if procedure is kvib.without_replacement and budget == 2.5:
        pytest.skip("draws whole numbers of clients")
    policy = kvib.Uniform() if procedure is kvib.without_replacement else None
    strategy, grid = sampling(policy=policy, procedure=procedure, budget=budget), fleet()
    x = record(**MODEL)
    for t in range(1, 6):
        arrays, metrics = one_round(strategy, grid, x, t)
        cohort = strategy.cohort
        assert flat(arrays) == pytest.approx(estimated(cohort), rel=1e-14)
        assert metrics["kvib-cohort"] == len(cohort)
        assert metrics["kvib-coefficients"] == pytest.approx(cohort.coefficients.sum())
        assert metrics["kvib-missing"] == 0
        assert metrics["kvib-round"] == t - 1
        expected = kvib.estimated_variance(cohort, [UPDATES[i] for i in cohort.ids]).value
        assert metrics["kvib-variance"] == pytest.approx(expected, nan_ok=True)


def test_the_journal_keeps_the_variance(tmp_path):
    strategy, grid = sampling(journal=tmp_path / "run.kvib", budget=3), fleet()
    said = [one_round(strategy, grid, record(**MODEL), t)[1]["kvib-variance"] for t in range(1, 6)]
    strategy.close()
    assert np.isfinite(said).all()
    assert kvib.journal.read(tmp_path / "run.kvib").table().variance == pytest.approx(said)


def test_conditional_poisson_has_its_variance_approximated():
    """As if nobody knew the second moments, without the inner products of all pairs."""
    strategy, grid = sampling(procedure=kvib.conditional_poisson, budget=3), fleet()
    for t in range(1, 4):
        _, metrics = one_round(strategy, grid, record(**MODEL), t)
        cohort = replace(strategy.cohort, pairs=None)
        expected = kvib.estimated_variance(cohort, [UPDATES[i] for i in cohort.ids]).value
        assert metrics["kvib-variance"] == pytest.approx(expected)


def test_the_variance_counts_silence_and_absence():
    strategy, grid = sampling(budget=4), fleet()
    x = record(**MODEL)
    one_round(strategy, grid, x)
    grid.fails = {node_of(grid, 1): 2}
    grid.online.discard(node_of(grid, 0))
    for t in range(2, 6):
        _, metrics = one_round(strategy, grid, x, t)
        cohort = strategy.cohort
        came = {int(i): UPDATES[i] for i in cohort.ids if i != 1}
        expected = kvib.estimated_variance(cohort, came).value
        assert metrics["kvib-variance"] == pytest.approx(expected, nan_ok=True)
        assert math.isnan(expected) == (t == 2)  # the first silence: answers were certain so far


def test_weights_follow_the_order_of_keys():
    strategy, grid = sampling(), fleet()
    one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.keys(range(N)) == list(range(N))
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))


@pytest.mark.parametrize("inner", AVERAGING, ids=lambda kind: kind.__name__)
def test_averaging_strategies_take_the_estimate_as_mean(inner):
    """Stock strategy, given x − d as the only reply, ends where the wrapped one does."""
    options = {"min_available_nodes": 1}
    wrapped, stock, grid = sampling(inner(**options)), inner(**options), fleet()
    x = y = record(**MODEL)
    for t in range(1, 4):
        x, _ = one_round(wrapped, grid, x, t)
        step = kvib.estimate(wrapped.cohort, [UPDATES[i] for i in wrapped.cohort.ids], like=MODEL)
        one = LocalGrid(shifting_app([step]), partitions(1))
        stock.min_train_nodes = 1
        messages = stock.configure_train(t, y, ConfigRecord(), one)
        y, _ = stock.aggregate_train(t, one.send_and_receive(messages))
        assert flat(x) == pytest.approx(flat(y), rel=1e-12)


def test_fedprox_still_tells_its_mu():
    strategy, grid = sampling(strategies.FedProx(proximal_mu=0.25)), fleet()
    one_round(strategy, grid, record(**MODEL), 3)
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert {m.content["config"]["proximal-mu"] for m in trained} == {0.25}
    assert {m.content["config"]["server-round"] for m in trained} == {3}


def test_uniform_sampling_of_equal_clients_is_stock_fedavg():
    """Given the same cohort, to float accuracy, in single precision too."""
    double = record(**MODEL)
    single = record(**{k: v.astype(np.float32) for k, v in MODEL.items()})
    for arrays, accuracy in ((double, 1e-12), (single, 1e-6)):
        grid = LocalGrid(shifting_app(UPDATES), partitions(N))
        ours = sampling(policy=kvib.Uniform(), procedure=kvib.without_replacement)
        mine, _ = one_round(ours, grid, arrays)
        some = LocalGrid(shifting_app(UPDATES), partitions(N))
        some.online = {node_of(some, i) for i in ours.cohort.ids}
        theirs, _ = one_round(strategies.FedAvg(), some, arrays)
        assert flat(mine) == pytest.approx(flat(theirs), rel=accuracy)


def test_the_expected_step_is_full_participation():
    """Every subset of three clients by hand, through messages, with unequal probabilities."""
    sizes, n = [1.0, 2.0, 4.0], 3
    grid = LocalGrid(shifting_app(UPDATES, sizes), partitions(n))
    strategy = sampling(policy=kvib.Forecast(), procedure=kvib.independent, budget=1.5)
    x = record(**MODEL)
    for t in range(1, 5):
        one_round(strategy, grid, x, t)
    p = strategy.sampler.probabilities(available=np.arange(n))
    assert len(set(p.round(6))) > 1
    mean, λ = 0.0, np.array(sizes) / 7
    for outcome in itertools.product([0, 1], repeat=n):
        ids = np.flatnonzero(outcome)
        chance = math.prod(p[i] if hit else 1 - p[i] for i, hit in enumerate(outcome))
        cohort = kvib.Cohort(
            ids=ids, count=np.ones(len(ids)), expected=p[ids], weight=λ[ids], budget=1.5
        )
        fresh = sampling(policy=kvib.Uniform(), procedure=kvib.independent, budget=1.5)
        one_round(fresh, grid, x)  # meets everybody
        sampler = fresh.sampler
        forced = Round(sampler, sampler.state.rounds.open(cohort))
        fresh.fleet.draw = lambda online, forced=forced: forced
        arrays, _ = one_round(fresh, grid, x)
        mean += chance * flat(arrays)
    full = flat(x) - sum(w * flat(record(**g)) for w, g in zip(λ, UPDATES, strict=False))
    assert mean == pytest.approx(full, abs=1e-10)


def test_unbiased_through_messages_with_clients_that_fail():
    """2,000 rounds from one model; 20 % fail at known rates; bound at 5.5 standard errors."""
    rng = np.random.default_rng(11)
    rates = {0: 0.8, 1: 0.7, 2: 0.9, 3: 0.75, 4: 0.85}
    grid = fleet()
    strategy = sampling(policy=kvib.KVib(), response=rates)
    x, steps = record(**MODEL), []
    for t in range(1, 2001):
        for i, rate in rates.items():
            grid.fails[node_of(grid, i)] = None if rng.random() < rate else 2
        arrays, _ = one_round(strategy, grid, x, t)
        steps.append(flat(x) - flat(arrays))
    λ = np.array(SIZES) / sum(SIZES)
    full = sum(w * flat(record(**g)) for w, g in zip(λ, UPDATES, strict=True))
    error = np.std(steps, axis=0, ddof=1) / math.sqrt(len(steps))
    assert (np.abs(np.mean(steps, axis=0) - full) <= 5.5 * error + 1e-12).all()
    p = strategy.sampler.probabilities(available=np.arange(N))
    assert p.max() > 1.5 * p.min()  # unequal, or this shows little


def test_buffers_are_averaged_and_do_not_count_as_updates():
    """BatchNorm: a step Σ coefficient ≠ 1 would make a running variance negative."""
    updates = [
        {"w": np.ones(2) * i, "bn.running_var": -np.full(2, i + 0.5), "seen": np.int64(-i)}
        for i in range(N)
    ]
    model = {"w": np.zeros(2), "bn.running_var": np.zeros(2), "seen": np.int64(0)}
    strategy = sampling(procedure=kvib.independent)
    grid = LocalGrid(shifting_app(updates, SIZES), partitions(N))
    for t in range(1, 5):
        arrays, _ = one_round(strategy, grid, record(**model), t)
        cohort, moved = strategy.cohort, numbers(arrays)
        share = kvib.self_normalised(cohort)
        assert moved["seen"].dtype == np.int64
        if len(cohort):
            variance = share @ (cohort.ids + 0.5)
            assert moved["bn.running_var"] == pytest.approx(variance)
            assert moved["seen"] == np.rint(share @ cohort.ids)
        assert moved["w"] == pytest.approx(-(cohort.coefficients @ cohort.ids))


def reply_always(**arrays):
    """An app whose clients reply with the same model."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": 1})
        return reply_with(message, {"arrays": record(**arrays), "metrics": metrics})

    introduce(app)
    return app


@pytest.mark.parametrize("inner", [strategies.FedAdam, strategies.FedAvgM])
def test_no_optimiser_takes_steps_with_buffers(inner):
    """Everybody measures 0.1, so that is what it is; and counters are rounded, not cut off."""
    seen = np.zeros(WITHOUT_DIMENSIONS, np.int64)
    app = reply_always(**{"w": np.zeros(2), "bn.running_var": np.full(2, 0.1), "seen": seen + 7})
    options = {"server_momentum": 0.9} if inner is strategies.FedAvgM else {"eta": 1.0}
    strategy = sampling(inner(min_available_nodes=1, **options))
    grid = LocalGrid(app, partitions(N))
    x = record(**{"w": np.ones(2), "bn.running_var": np.ones(2), "seen": seen})
    for t in range(1, 5):
        x, _ = one_round(strategy, grid, x, t)
        moved = numbers(x)
        assert moved["bn.running_var"] == pytest.approx(0.1)
        assert (moved["seen"], moved["seen"].dtype) == (7, np.int64)
        assert moved["w"][0] != 1


def test_memory_does_not_grow_with_the_cohort():
    """Beyond the replies, which Flower holds, at most a few updates at a time."""
    d, peaks = 100_000, []
    updates = [{"w": np.full(d, float(i))} for i in range(40)]
    grid = LocalGrid(shifting_app(updates), partitions(40))
    for budget in (5, 40):
        strategy = sampling(budget=budget)
        messages = strategy.configure_train(1, record(w=np.zeros(d)), ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * d))
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1
    assert peaks[1] < 9  # updates of 8 bytes per parameter


def test_nor_with_the_cohort_of_a_small_model():
    d, K = 4096, 200
    grid = LocalGrid(shifting_app([{"w": np.full(d, 1.0 * i)} for i in range(K)]), partitions(K))
    strategy = sampling(budget=K)
    messages = strategy.configure_train(1, record(w=np.zeros(d)), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    tracemalloc.start()
    strategy.aggregate_train(1, replies)
    peak = tracemalloc.get_traced_memory()[1] / (8 * d)
    tracemalloc.stop()
    assert peak < 45  # a block of 10^5 numbers is 24 updates; sums and the model are the rest


# The drop-in


def test_kvib_fedavg_takes_the_arguments_of_fedavg():
    strategy, grid = KVibFedAvg(0.4, 0.0, 1, min_available_nodes=5, seed=3), fleet()
    result = strategy.start(grid, record(**MODEL), num_rounds=3)
    assert [m["kvib-cohort"] for m in result.train_metrics_clientapp.values()] == [2, 2, 2]
    assert strategy.strategy.fraction_evaluate == 0.0
    assert not result.evaluate_metrics_clientapp


def test_kvib_fedavg_takes_all_of_our_arguments():
    strategy = KVibFedAvg(
        0.4,
        policy=kvib.Uniform(),
        updates=Hidden(),
        buffers=lambda name, array: False,
        query_timeout=5.0,
        weighted_by_key="count",
    )
    assert strategy.fleet.options.policy == kvib.Uniform()
    assert strategy.updates == Hidden()
    assert strategy.strategy.weighted_by_key == "count"
    with pytest.raises(TypeError, match="nonsense"):
        KVibFedAvg(nonsense=1)


def test_a_guard_goes_with_forecast_only():
    """Others would be biased by it in ordinary rounds."""
    assert UnbiasedSampling(fedavg()).fleet.options.chosen_guard == kvib.Guard()
    assert UnbiasedSampling(fedavg(), kvib.Uniform()).fleet.options.chosen_guard is None
    own = UnbiasedSampling(fedavg(), kvib.Uniform(), guard=kvib.Guard(3.0))
    assert own.fleet.options.chosen_guard == kvib.Guard(3.0)


@pytest.mark.parametrize("policy", [None, kvib.Uniform(), kvib.KVib()], ids=repr)
def test_what_is_usual_is_unbiased(policy):
    """Defaults, a small budget, sizes that differ much; 600 rounds, 5.5 standard errors."""
    rng, n = np.random.default_rng(0), 30
    sizes = np.exp(1.2 * rng.normal(size=n))
    updates = [{"w": rng.normal(size=4) + 1} for _ in range(n)]
    strategy = UnbiasedSampling(fedavg(), policy, budget=2)
    grid, x = LocalGrid(shifting_app(updates, sizes.tolist()), partitions(n)), record(w=np.zeros(4))
    steps = np.array([-flat(one_round(strategy, grid, x, t)[0]) for t in range(1, 601)])
    full = sizes / sizes.sum() @ np.array([g["w"] for g in updates])
    error = steps.std(axis=0, ddof=1) / math.sqrt(len(steps))
    assert (np.abs(steps.mean(axis=0) - full) <= 5.5 * error).all()


def test_the_whole_loop_evaluates_as_before():
    strategy, grid = sampling(fedavg(fraction_evaluate=1.0)), fleet()
    result = strategy.start(grid, record(**MODEL), num_rounds=2)
    asked = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert len(asked) == 2 * N
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.5


def test_metrics_of_clients_are_averaged_by_coefficient():
    strategy, grid = sampling(), fleet()
    _, metrics = one_round(strategy, grid, record(**MODEL))
    cohort = strategy.cohort
    assert metrics["loss"] == pytest.approx(kvib.self_normalised(cohort) @ cohort.ids)
    assert "num-examples" not in metrics


def test_metrics_of_another_form_are_left_out():
    strategy, grid = sampling(budget=5), fleet()

    def listing(reply):
        told = {"num-examples": 7, "loss": [1.0, 2.0], "shared": 1.0}
        reply.content["metrics"] = MetricRecord(told)
        return reply

    def telling(reply):
        reply.content["metrics"]["shared"] = 3.0
        return reply

    grid.fails = {node_of(grid, i): telling for i in range(5)} | {node_of(grid, 1): listing}
    _, metrics = one_round(strategy, grid, record(**MODEL))
    assert "loss" not in metrics
    assert metrics["shared"] == pytest.approx((3 * 85 + 20) / 105)
    assert metrics["kvib-missing"] == 0

    own = sampling(fedavg(train_metrics_aggr_fn=lambda contents, key: MetricRecord()), budget=5)
    one_round(own, grid, record(**MODEL))


def test_a_function_that_raises_leaves_the_sampler_as_it_was():
    def broken(contents, key):
        raise RuntimeError("of the user's own")

    strategy, grid = sampling(fedavg(train_metrics_aggr_fn=broken)), fleet()
    with pytest.raises(RuntimeError):
        one_round(strategy, grid, record(**MODEL))
    strategy.sampler.update(strategy.cohort, np.ones(2))  # not updated yet, else this would raise


def test_an_own_function_for_metrics_sees_every_client():
    seen = []

    def largest(contents, key):
        seen.append([content["metrics"][key] for content in contents])
        return MetricRecord({"largest": max(c["metrics"]["loss"] for c in contents)})

    strategy, grid = sampling(fedavg(train_metrics_aggr_fn=largest)), fleet()
    _, metrics = one_round(strategy, grid, record(**MODEL))
    assert metrics["largest"] == strategy.cohort.ids.max()
    assert seen == [strategy.cohort.coefficients.tolist()]


def test_no_training_where_the_strategy_wants_none():
    strategy, grid = sampling(fedavg(fraction_train=0.0)), fleet()
    assert list(strategy.configure_train(1, record(**MODEL), ConfigRecord(), grid)) == []
    assert strategy.aggregate_train(1, []) == (None, None)


# Who is who


def test_names_before_partitions_before_node_ids():
    app = shifting_app(UPDATES, SIZES)
    configs = [{"client-id": "ann", "partition-id": 0}, {"partition-id": 1}, {"client-id": 7}, {}]
    grid = LocalGrid(app, configs)
    for context in grid.contexts.values():
        context.node_config.setdefault("partition-id", 4)
    del grid.contexts[node_of(grid, 3)].node_config["partition-id"]
    app._registered_funcs.clear()
    introduce(app)
    strategy = sampling()
    messages = strategy.configure_train(1, record(**MODEL), ConfigRecord(), grid)
    keys = strategy.sampler.keys(range(4))
    assert keys == [1, "7", "ann", f"node-{node_of(grid, 3)}"]
    assert len(list(messages)) == 2


def test_an_app_without_introductions_goes_by_node_ids():
    strategy, grid = sampling(), fleet(introduced=False)
    one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.keys(range(N)) == sorted(f"node-{node}" for node in grid.contexts)
    assert strategy.sampler.weights == pytest.approx(np.full(N, 1 / N))


def test_the_log_tells_of_those_who_were_drawn_and_answered():
    """Not of the two nodes and the one result that stand in for them before the strategy."""
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    FLOWER_LOGGER.addHandler(handler)
    try:
        one_round(sampling(), fleet(), record(**MODEL))
    finally:
        FLOWER_LOGGER.removeHandler(handler)
    [drew] = re.findall(r"kvib: drew (\d+) clients", "\n".join(told))
    assert f"kvib: {drew} of {drew} clients answered" in told
    assert not any("Sampled" in line or "Received" in line for line in told)


def test_each_node_is_asked_once():
    strategy, grid = sampling(), fleet()
    for t in range(1, 4):
        one_round(strategy, grid, record(**MODEL), t)
    asked = [m for m in grid.sent if m.metadata.message_type == "query.kvib"]
    assert len(asked) == N


def test_a_client_that_cannot_tell_its_size_is_asked_again():
    sizes = {0: 10.0, 1: 20.0}
    grid = LocalGrid(shifting_app(UPDATES, sizes), partitions(3))
    strategy = sampling()
    one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.keys(range(2)) == [0, 1]
    sizes[2] = 30.0
    one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.weights == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_who_tells_no_size_counts_as_the_mean_of_all_who_do():
    """Also of those whose names come later."""
    strategy = sampling()
    strategy.fleet.meet([Introduction(10, 0), *(Introduction(10 + i, i, i) for i in (1, 2, 3))])
    assert strategy.sampler.weights == pytest.approx(np.array([2, 1, 2, 3]) / 8)


class HungGrid(LocalGrid):
    """A node that does not even say who it is."""

    hung = None

    def _reply(self, message):
        return [] if message.metadata.dst_node_id == self.hung else super()._reply(message)


def test_a_silent_node_is_asked_ever_less_often():
    grid = HungGrid(shifting_app(UPDATES, SIZES), partitions(N))
    grid.hung, strategy, asked = node_of(grid, 4), sampling(), []
    for t in range(1, 21):
        before = len(grid.sent)
        one_round(strategy, grid, record(**MODEL), t)
        new = grid.sent[before:]
        asked += [t for m in new if m.metadata.dst_node_id == grid.hung]
    assert asked == [1, 2, 4, 8, 16]
    grid.hung = None
    for t in range(21, 33):
        one_round(strategy, grid, record(**MODEL), t)
    assert strategy.sampler.keys(range(N)) == list(range(N))


@pytest.mark.parametrize("code", [0, 1, 2, 5])
def test_an_error_at_the_question_makes_no_new_client(code):
    strategy, grid = sampling(), fleet()
    one_round(strategy, grid, record(**MODEL))
    old, usual = node_of(grid, 3), grid._reply
    grid.contexts[1], grid.online = grid.contexts[old], grid.online - {old} | {1}

    def failing(message):
        if message.metadata.message_type == "query.kvib":
            return [Message(Error(code, "<class 'MemoryError'>:<''>"), reply_to=message)]
        return usual(message)

    grid._reply = failing
    one_round(strategy, grid, record(**MODEL), 2)
    grid._reply = usual
    one_round(strategy, grid, record(**MODEL), 3)
    assert strategy.sampler.keys(range(len(strategy.sampler))) == list(range(N))
    assert strategy.fleet.address(3) == 1


def test_a_mod_that_refuses_questions_leaves_the_node_id():
    def strict(message, context, call_next):
        if message.metadata.message_type.startswith("query"):
            return Message(Error(6, "only training"), reply_to=message)
        return call_next(message, context)

    strategy, grid = sampling(), fleet(mods=[strict])
    one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.keys(range(N)) == sorted(f"node-{node}" for node in grid.contexts)


def test_a_second_node_of_a_name_is_warned_of():
    """A restarted SuperNode is there before its old id has expired."""
    strategy, grid = sampling(), fleet()
    one_round(strategy, grid, record(**MODEL))
    grid.contexts[1] = Context(1, 1, {"partition-id": 2}, RecordDict(), {})
    grid.online.add(1)
    with pytest.warns(UserWarning, match=r"client 2 is at 1 now, and 1014 is still online"):
        one_round(strategy, grid, record(**MODEL), 2)
    assert strategy.fleet.address(2) == 1
    assert len(strategy.sampler) == N


def test_new_nodes_join_and_restarted_ones_keep_their_history():
    strategy, grid = sampling(), fleet()
    late = node_of(grid, 4)
    grid.online.discard(late)
    x = record(**MODEL)
    for t in range(1, 4):
        one_round(strategy, grid, x, t)
    assert len(strategy.sampler) == 4
    grid.online.add(late)
    one_round(strategy, grid, x, 4)
    assert strategy.sampler.keys(range(5)) == list(range(5))
    old = node_of(grid, 2)  # restarted: another node id, the same partition, and more data
    grid.contexts[99] = grid.contexts[old]
    grid.online = grid.online - {old} | {99}
    one_round(strategy, grid, x, 5)
    assert len(strategy.sampler) == 5
    assert strategy.fleet.address(2) == 99


def test_a_changed_size_changes_the_weight():
    sizes = dict(enumerate(SIZES))
    strategy, grid = sampling(), LocalGrid(shifting_app(UPDATES, sizes), partitions(N))
    one_round(strategy, grid, record(**MODEL))
    sizes[2] = 130.0
    old = node_of(grid, 2)
    grid.contexts[99], grid.online = grid.contexts[old], grid.online - {old} | {99}
    one_round(strategy, grid, record(**MODEL), 2)
    assert strategy.sampler.weights == pytest.approx(np.array([10, 20, 130, 40, 5]) / 205)


def test_a_table_of_weights_decides_who_takes_part():
    strategy = sampling(weights={0: 1.0, 1: 3.0, 2: 4.0})
    with pytest.warns(UserWarning, match=r"client 3 is not in weights=…: it takes no part"):
        one_round(strategy, fleet(4), record(**MODEL))
    assert strategy.sampler.weights == pytest.approx([1 / 8, 3 / 8, 4 / 8])


@pytest.mark.filterwarnings("ignore:client")
def test_a_run_without_clients_ends_at_once():
    named = sampling(weights={str(i): 1.0 for i in range(N)})
    with pytest.raises(
        ValueError, match=r"none of 5 clients takes part: they are called 0, 1, 2, …, and weights="
    ):
        one_round(named, fleet(), record(**MODEL))
    empty = LocalGrid(shifting_app(UPDATES, [0.0] * N), partitions(N))
    with pytest.raises(ValueError, match="none of 5 clients takes part: they say they have no dat"):
        one_round(sampling(), empty, record(**MODEL))


@pytest.mark.parametrize("size", [0.0, -3.0, math.nan, math.inf])
def test_no_data_no_part(size):
    grid = LocalGrid(shifting_app(UPDATES, [10.0, 20.0, size]), partitions(3))
    strategy = sampling()
    with pytest.warns(UserWarning, match="client 2 says it has .* data: no part"):
        one_round(strategy, grid, record(**MODEL))
    assert strategy.sampler.keys(range(2)) == [0, 1]


def test_two_nodes_of_one_name_are_refused():
    grid = LocalGrid(shifting_app(UPDATES), [{"partition-id": 1}, {"partition-id": 1}])
    with pytest.raises(ValueError, match="two clients call themselves 1; give each an id"):
        one_round(sampling(), grid, record(**MODEL))


def test_two_newcomers_of_one_name_do_not_end_a_run():
    strategy, grid = sampling(), fleet(3)
    one_round(strategy, grid, record(**MODEL))
    for node in (1, 2):
        grid.contexts[node] = Context(1, node, {"partition-id": 4}, RecordDict(), {})
        grid.online.add(node)
    with pytest.warns(UserWarning, match="the second takes no part"):
        one_round(strategy, grid, record(**MODEL), 2)
    assert strategy.sampler.keys(range(4)) == [0, 1, 2, 4]


# Offline


def test_offline_clients_stay_in_the_objective():
    strategy, grid = sampling(budget=3), fleet()
    x = record(**MODEL)
    one_round(strategy, grid, x)
    away = node_of(grid, 3)
    grid.online.discard(away)
    for t in range(2, 9):
        one_round(strategy, grid, x, t)
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))
    assert 3 not in strategy.cohort.ids
    assert (strategy.cohort.availability < 1).all()
    grid.online.add(away)
    for t in range(9, 40):
        one_round(strategy, grid, x, t)
        if 3 in strategy.cohort.ids:
            break
    [rate] = strategy.cohort.availability[strategy.cohort.ids == 3]
    assert rate < min(strategy.cohort.availability[strategy.cohort.ids != 3])


def test_renormalising_over_who_is_online_is_a_choice():
    strategy, grid = sampling(offline=Renormalise()), fleet()
    x = record(**MODEL)
    one_round(strategy, grid, x)
    away = node_of(grid, 3)
    grid.online.discard(away)
    one_round(strategy, grid, x, 2)
    assert strategy.sampler.weights == pytest.approx(np.array([10, 20, 30, 0, 5]) / 65)
    grid.online.add(away)
    one_round(strategy, grid, x, 3)
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))


def test_clients_that_are_gone_for_long_leave_where_asked_to():
    strategy, grid = sampling(offline=EstimateAvailability(leave_after=3)), fleet()
    x, away = record(**MODEL), node_of(grid, 3)
    one_round(strategy, grid, x)
    grid.online.discard(away)
    one_round(strategy, grid, x, 2)
    one_round(strategy, grid, x, 3)
    assert strategy.sampler.weights[3] > 0
    one_round(strategy, grid, x, 4)
    assert strategy.sampler.weights[3] == 0
    grid.online.add(away)
    one_round(strategy, grid, x, 5)
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))
    strategy.leave([1])
    assert strategy.sampler.weights[1] == 0


def test_a_removed_client_returns_when_it_comes_anew():
    strategy, grid = sampling(budget=4), fleet()
    x = record(**MODEL)
    one_round(strategy, grid, x)
    strategy.leave([1])
    for t in range(2, 6):
        one_round(strategy, grid, x, t)
        assert 1 not in strategy.cohort.ids
        assert strategy.sampler.weights == pytest.approx(np.array([10, 0, 30, 40, 5]) / 85)
    old = node_of(grid, 1)
    grid.contexts[99], grid.online = grid.contexts[old], grid.online - {old} | {99}
    one_round(strategy, grid, x, 6)
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))


def test_consistent_where_clients_are_often_offline():
    """1,500 rounds, availability learned; after 300 of them within 5.5 standard errors.

    Coefficients are divided by estimated rates, whose error then is a tenth of the bound.
    """
    rng, often = np.random.default_rng(1), [0.9, 0.5, 0.7, 1.0, 0.6]
    strategy, grid, x, steps = sampling(budget=3), fleet(), record(**MODEL), []
    one_round(strategy, grid, x)
    for t in range(2, 1502):
        grid.online = {node_of(grid, i) for i in range(N) if rng.random() < often[i]}
        arrays, _ = one_round(strategy, grid, x, t)
        steps.append(flat(x) - flat(arrays))
    late = np.array(steps[300:])
    full = sum(s * flat(record(**g)) for s, g in zip(SIZES, UPDATES, strict=True)) / sum(SIZES)
    error = late.std(axis=0, ddof=1) / math.sqrt(len(late))
    assert (np.abs(late.mean(axis=0) - full) <= 5.5 * error).all()


RATES = dict.fromkeys(range(N), 0.9)


@pytest.mark.parametrize("offline", [Renormalise(), EstimateAvailability(leave_after=3)])
def test_known_rates_are_for_clients_that_stay(offline):
    with pytest.raises(ValueError, match=r"lets clients leave, and response=\{…\} is for clients"):
        sampling(response=RATES, offline=offline)


def test_newcomers_take_no_part_where_rates_are_known():
    strategy, grid = sampling(response=RATES), fleet()
    late = node_of(grid, 4)
    grid.online.discard(late)
    one_round(strategy, grid, record(**MODEL))
    grid.online.add(late)
    with pytest.warns(UserWarning, match="client 4 is new, and response="):
        one_round(strategy, grid, record(**MODEL), 2)
    one_round(strategy, grid, record(**MODEL), 3)
    assert len(strategy.sampler) == 4


def test_nor_do_new_weights():
    sizes = dict(enumerate(SIZES))
    grid = LocalGrid(shifting_app(UPDATES, sizes), partitions(N))
    strategy = sampling(response=RATES)
    one_round(strategy, grid, record(**MODEL))
    sizes[2] = 130.0
    old = node_of(grid, 2)
    grid.contexts[99], grid.online = grid.contexts[old], grid.online - {old} | {99}
    with pytest.warns(UserWarning, match="client 2 has another weight now"):
        one_round(strategy, grid, record(**MODEL), 2)
    assert strategy.sampler.weights == pytest.approx(np.array(SIZES) / sum(SIZES))


def test_known_rates_are_compared_with_those_of_the_journal(tmp_path):
    rates = {i: 0.5 + 0.1 * i for i in range(N)}
    first = sampling(response=rates, journal=tmp_path / "run.kvib")
    one_round(first, fleet(), record(**MODEL))
    first.close()
    again = sampling(response=rates, journal=tmp_path / "run.kvib")
    one_round(again, fleet(), record(**MODEL))
    again.close()
    other = sampling(response={**rates, 3: 0.6}, journal=tmp_path / "run.kvib")
    with pytest.raises(ValueError, match="was begun with other response"):
        one_round(other, fleet(), record(**MODEL))


def test_leaving_before_anybody_came():
    with pytest.raises(ValueError, match="no client has come yet"):
        sampling().leave([1])


# Failures


def nan(reply):
    return altered(reply, lambda x: {**x, "b": np.full(3, np.nan)})


def huge(reply):
    return altered(reply, lambda x: {**x, "b": np.full(3, 1e200)})


def wrong_shape(reply):
    return altered(reply, lambda x: {**x, "b": np.ones(4)})


def lacking(reply):
    return altered(reply, lambda x: {"w": x["w"]})


def words(reply):
    return altered(reply, lambda x: {**x, "b": np.array(["a", "b", "c"])})


def altered(reply, change):
    reply.content["arrays"] = record(**change(numbers(reply.content["arrays"])))
    return reply


def torn(reply):
    reply.content["arrays"]["b"].data = b"no array at all"
    return reply


def with_data(data):
    def change(reply):
        reply.content["arrays"]["b"].data = data
        return reply

    return change


def archive():
    file = io.BytesIO()
    np.savez(file, a=np.ones(3))
    return file.getvalue()


def header(shape, dtype="<f8", numbers=b""):
    file = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + numbers


def foreign(reply):
    reply.content["arrays"]["b"].stype = "pickle"
    return reply


def twice(reply):
    reply.content["more"] = reply.content["arrays"]
    return reply


BAD = {
    "client exception": (2, "error 2: the client raised"),
    "killed node": (5, "error 5: node unavailable"),
    "silence": ("silent", "no answer in time"),
    "NaN": (nan, "‖x − x_i‖ is nan: it diverged, or has no numbers in it"),
    "huge": (huge, "‖x − x_i‖ is inf: it diverged"),
    "shape": (wrong_shape, r"array 'b' has shape \(4,\), in the model \(3,\)"),
    "missing array": (lacking, "it sent 'w', and most replies have 'b', 'w': array 'b' is not in"),
    "no numbers": (words, "array 'b' is of type <U1"),
    "torn": (torn, "array 'b' cannot be read"),
    "two records": (twice, "2 ArrayRecords instead of one"),
    "zip": (with_data(b"PK\x03\x04 and so on"), "array 'b' cannot be read: the magic string"),
    "archive": (with_data(archive()), "array 'b' cannot be read: the magic string"),
    "boast": (with_data(header((10**15,))), r"array 'b' has shape \(1000000000000000,\)"),
    "wild boast": (with_data(header((10**30,))), "array 'b' has shape"),
    "objects": (with_data(header((3,), "|O")), "array 'b' is of type object"),
    "no numbers after all": (with_data(header((3,))), "array 'b' cannot be read: 0 bytes of 24"),
    "more than told": (with_data(header((3,), numbers=bytes(25))), "25 bytes of 24"),
    "no header": (with_data(b"\x93NUMPY\x01\x00\x06\x00{'a':("), "array 'b' cannot be read"),
    "format of the future": (with_data(b"\x93NUMPY\x07\x00"), "array 'b' cannot be read"),
    "nothing": (with_data(b""), "array 'b' cannot be read"),
    "another kind": (foreign, "array 'b' cannot be read: it is of kind 'pickle'"),
}


@pytest.mark.parametrize(("wrong", "reason"), BAD.values(), ids=BAD)
def test_the_round_goes_on_without_whoever_fails(wrong, reason):
    strategy, grid = sampling(budget=4), fleet()
    x = record(**MODEL)
    one_round(strategy, grid, x)
    grid.fails = {node_of(grid, i): wrong for i in (1, 3)}
    arrays, metrics = one_round(strategy, grid, x, 2)
    cohort = strategy.cohort
    failed = sorted({1, 3} & set(cohort.ids.tolist()))
    assert failed
    assert sorted(strategy.refused) == failed
    assert all(re.search(reason, told) for told in strategy.refused.values())
    assert metrics["kvib-missing"] == len(failed)
    answered = set(cohort.ids.tolist()) - set(failed)
    assert flat(arrays) == pytest.approx(estimated(cohort, answered), rel=1e-12)
    grid.fails = {}
    one_round(strategy, grid, x, 3)
    assert (strategy.cohort.answer_probability < 1).all()  # silence was learned, and nothing else


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f8", "g", "<i2", "F-ordered"])
def test_numbers_of_every_kind_are_read(kind):
    def other(reply):
        x = numbers(reply.content["arrays"])
        change = np.asfortranarray if kind == "F-ordered" else lambda a: a.astype(kind)
        for name, array in x.items():
            reply.content["arrays"][name] = Array(change(array))
        return reply

    whole = [{name: np.rint(8 * g) for name, g in update.items()} for update in UPDATES]
    strategy = sampling(budget=5)
    grid = LocalGrid(shifting_app(whole, SIZES), partitions(N))
    grid.fails = dict.fromkeys(grid.contexts, other)
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    full = sum(s * flat(record(**g)) for s, g in zip(SIZES, whole, strict=True)) / sum(SIZES)
    assert flat(arrays) == pytest.approx(flat(record(**MODEL)) - full)


def test_all_fail_and_the_model_stays():
    strategy, grid = sampling(), fleet()
    x = record(**MODEL)
    grid.fails = dict.fromkeys(grid.contexts, 2)
    arrays, metrics = one_round(strategy, grid, x)
    assert np.array_equal(flat(arrays), flat(x))
    assert metrics["kvib-missing"] == 2
    assert metrics["kvib-coefficients"] == 0


@pytest.mark.filterwarnings("ignore:budget 0.6 is less than one client")
def test_an_empty_draw_leaves_the_model_and_momentum_goes_on():
    inner = strategies.FedAvgM(server_momentum=0.5, min_available_nodes=1)
    strategy, grid = sampling(inner, procedure=kvib.independent, budget=0.6), fleet()
    steps, x = [flat(record(**MODEL))], record(**MODEL)
    for t in range(1, 9):
        x, metrics = one_round(strategy, grid, x, t)
        steps.append(flat(x))
        if metrics["kvib-cohort"] == 0 and t > 1:
            assert steps[-2] - steps[-1] == pytest.approx((steps[-3] - steps[-2]) / 2)
            return
    pytest.fail("no empty draw among these")


def test_no_client_yet():
    strategy, grid = sampling(fedavg(min_available_nodes=0, min_train_nodes=0)), fleet()
    online, grid.online = grid.online, set()
    assert one_round(strategy, grid, record(**MODEL)) == (None, None)
    grid.online = online
    assert one_round(strategy, grid, record(**MODEL), 2)[0] is not None


def test_fewer_nodes_than_the_budget():
    strategy, grid = sampling(budget=10), fleet()
    away = node_of(grid, 4)
    grid.online.discard(away)
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    assert strategy.cohort.ids.tolist() == [0, 1, 2, 3]
    full = sum(s * flat(record(**g)) for s, g in zip(SIZES[:4], UPDATES[:4], strict=True)) / 100
    assert flat(arrays) == pytest.approx(flat(record(**MODEL)) - full)
    grid.online.add(away)
    one_round(strategy, grid, record(**MODEL), 2)
    assert len(strategy.cohort) == 5


def test_late_and_repeated_replies_are_ignored():
    strategy, grid = sampling(), fleet()
    x = record(**MODEL)
    old = grid.send_and_receive(strategy.configure_train(1, x, ConfigRecord(), grid))
    strategy.aggregate_train(1, [])  # nobody in time
    messages = strategy.configure_train(2, x, ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    arrays, _ = strategy.aggregate_train(2, [*old, *replies, *replies])
    assert flat(arrays) == pytest.approx(estimated(strategy.cohort))
    assert strategy.aggregate_train(2, replies) == (None, None)


def test_one_client_cannot_take_over_the_model():
    calm = [{"w": np.ones((2, 3)) * (1 + 0.01 * i), "b": np.ones(3)} for i in range(N)]
    grid = LocalGrid(shifting_app(calm, [1.0] * N), partitions(N))
    strategy = sampling(guard=kvib.Guard(2.0), budget=4)
    x = record(**MODEL)
    for t in range(1, 6):
        _, metrics = one_round(strategy, grid, x, t)
        assert metrics["kvib-cut"] == 0
    grid.fails = {
        node_of(grid, 2): lambda reply: altered(reply, lambda x: {**x, "b": x["b"] - 1e6})
    }
    for t in range(6, 30):
        arrays, metrics = one_round(strategy, grid, x, t)
        assert np.linalg.norm(flat(x) - flat(arrays)) < 5 * np.linalg.norm(flat(record(**calm[0])))
        if 2 in strategy.cohort.ids:
            assert metrics["kvib-cut"] > 1e4
        assert metrics["kvib-variance"] < 100  # of what is left, not of 10^6


# Hidden updates


def masked(secret, scale=100.0):
    """Masks of pairs that cancel in the sum of all; see examples/flower_masked."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type != "train" or reply.has_error():
            return reply
        told = message.content["kvib"]
        me, arrays = told["position"], numbers(reply.content["arrays"])
        for other in range(told["size"]):
            if other != me:
                pair = (secret, told["round"], min(me, other), max(me, other))
                rng = np.random.default_rng(pair)
                for a in arrays.values():
                    a += np.sign(other - me) * scale * rng.normal(size=a.shape)
        reply.content["arrays"] = record(**arrays)
        return reply

    return mod


def test_the_sum_of_masked_updates_is_the_estimate(tmp_path):
    grid, journal = fleet(mods=[masked(7), scaled_update]), tmp_path / "run.kvib"
    strategy = sampling(updates=Hidden(), procedure=kvib.independent, journal=journal)
    x = record(**MODEL)
    for t in range(1, 8):
        arrays, metrics = one_round(strategy, grid, x, t)
        assert flat(arrays) == pytest.approx(estimated(strategy.cohort), abs=1e-10)
        expected = kvib.estimated_variance(
            strategy.cohort, [UPDATES[i] for i in strategy.cohort.ids]
        ).value
        assert metrics["kvib-variance"] == pytest.approx(expected)
    for logged in kvib.journal.read(journal).rounds():  # the sampler learned the true norms
        lengths = kvib.norms([UPDATES[i] for i in logged.cohort.ids])
        assert logged.norms == pytest.approx(lengths, rel=1e-6)
    strategy.close()


def test_hidden_and_visible_samplers_learn_the_same():
    drawn = []
    for updates, mods in ((Hidden(), [masked(7), scaled_update]), (None, None)):
        options = {} if updates is None else {"updates": updates}
        strategy, grid = sampling(guard=kvib.Guard(), **options), fleet(mods=mods)
        for t in range(1, 12):
            one_round(strategy, grid, record(**MODEL), t)
        drawn.append(strategy.sampler.probabilities(available=np.arange(N)))
    assert drawn[0] == pytest.approx(drawn[1], rel=1e-9)


def test_a_masked_round_with_losses_leaves_the_model():
    grid = fleet(mods=[masked(7), scaled_update])
    strategy = sampling(updates=Hidden(), budget=5)
    x = record(**MODEL)
    grid.fails = {node_of(grid, 1): 2}
    arrays, metrics = one_round(strategy, grid, x)
    assert np.array_equal(flat(arrays), flat(x))
    assert metrics["kvib-missing"] == 1
    plain = sampling(updates=Hidden(complete=False), budget=5)
    grid = fleet(mods=[scaled_update])
    grid.fails = {node_of(grid, 1): 2}
    arrays, _ = one_round(plain, grid, x)
    assert flat(arrays) == pytest.approx(estimated(plain.cohort, {0, 2, 3, 4}))


def test_what_cannot_be_seen_is_not_reported():
    """A cut, which the sum does not show, and the variance of draws for which norms say little."""
    strategy = sampling(updates=Hidden(), procedure=kvib.pivotal, guard=kvib.Guard(0.1))
    grid = fleet(mods=[scaled_update])
    for t in range(1, 4):
        arrays, metrics = one_round(strategy, grid, record(**MODEL), t)
        assert flat(arrays) == pytest.approx(estimated(strategy.cohort))
        assert metrics["kvib-cut"] == 0
        assert math.isnan(metrics["kvib-variance"])


def test_the_mod_without_hidden_says_which_line_is_missing():
    strategy, grid = sampling(), fleet(mods=[scaled_update])
    one_round(strategy, grid, record(**MODEL))
    assert len(strategy.refused) == 2
    assert all("updates=Hidden()" in why for why in strategy.refused.values())


@pytest.mark.parametrize("lie", [None, -1.0, math.nan, math.inf, "long"])
def test_no_norm_no_answer(lie):
    def lying(reply):
        reply.content["kvib"] = ConfigRecord({} if lie is None else {"norm": lie})
        return reply

    strategy = sampling(updates=Hidden(complete=False), budget=5)
    grid = fleet(mods=[scaled_update])
    grid.fails = {node_of(grid, 1): lying}
    arrays, _ = one_round(strategy, grid, record(**MODEL))
    assert "it reports the norm" in strategy.refused[1]
    assert flat(arrays) == pytest.approx(estimated(strategy.cohort, {0, 2, 3, 4}))


def test_a_liar_is_drawn_no_more_often_than_the_guard_allows():
    """The least likely of the honest clients after ten rounds of lies, a median over five seeds."""

    def lying(reply):
        reply.content["kvib"] = ConfigRecord({"norm": 1e9})
        return reply

    def played(guard, rounds, seed):
        strategy = sampling(updates=Hidden(complete=False), budget=2, guard=guard, seed=seed)
        grid = LocalGrid(shifting_app(UPDATES, mods=[scaled_update]), partitions(N))
        for t in range(1, rounds + 1):
            if t == 5:
                calm, grid.fails = (
                    strategy.sampler.state.step_length.value,
                    {node_of(grid, 4): lying},
                )
            one_round(strategy, grid, record(**MODEL), t)
        return strategy.sampler, calm

    least = {}
    for guard in (None, kvib.Guard(2.0)):
        samplers = [played(guard, 15, seed)[0] for seed in range(5)]
        p = [sampler.probabilities(available=np.arange(N)) for sampler in samplers]
        least[guard] = np.median([each[:4].min() for each in p])
    assert least[kvib.Guard(2.0)] > 3 * least[None]
    sampler, calm = played(kvib.Guard(2.0), 100, 0)
    assert sampler.state.step_length.value < 2 * calm  # a lie told again and again is no usual step


# State


def test_a_restarted_server_draws_what_the_straight_one_would(tmp_path):
    x = record(**MODEL)

    def play(strategy, grid, rounds):
        cohorts = []
        for t in range(1, rounds + 1):
            one_round(strategy, grid, x, t)
            cohorts.append((strategy.cohort.round, strategy.cohort.ids.tolist()))
        return cohorts

    straight = sampling(journal=tmp_path / "straight.kvib")
    expected = play(straight, fleet(), 12)
    first = sampling(journal=tmp_path / "run.kvib")
    before = play(first, fleet(), 5)
    grid = fleet()
    first.configure_train(6, x, ConfigRecord(), grid)  # drawn, and then the server dies
    first.close()
    second = sampling(journal=tmp_path / "run.kvib")
    other_ids = LocalGrid(shifting_app(UPDATES, SIZES), partitions(N), first=5)
    after = play(second, other_ids, 7)  # Flower's rounds start at 1 again
    assert before + after == expected
    assert second.sampler.round == 12
    assert not second.sampler.outstanding()


def test_a_journal_of_another_policy_is_refused(tmp_path):
    one = sampling(journal=tmp_path / "run.kvib")
    one_round(one, fleet(), record(**MODEL))
    one.close()
    with pytest.raises(ValueError, match="policy"):
        one_round(
            sampling(policy=kvib.KVib(), journal=tmp_path / "run.kvib"), fleet(), record(**MODEL)
        )


# Refusals

ROBUST = "picks or trims updates"
PRIVATE = "noise is made for a plain mean"
REFUSED = [
    (lambda: strategies.Krum(), ROBUST),
    (lambda: strategies.MultiKrum(), ROBUST),
    (lambda: strategies.Bulyan(), ROBUST),
    (lambda: strategies.FedMedian(), ROBUST),
    (lambda: strategies.FedTrimmedAvg(), ROBUST),
    (lambda: strategies.QFedAvg(0.1), "reweighs clients by their loss"),
    (lambda: strategies.FedXgbBagging(), "collects trees"),
    (lambda: strategies.FedXgbCyclic(), "collects trees"),
    (
        lambda: strategies.DifferentialPrivacyServerSideFixedClipping(fedavg(), 1.0, 1.0, 5),
        PRIVATE,
    ),
    (
        lambda: strategies.DifferentialPrivacyClientSideFixedClipping(fedavg(), 1.0, 1.0, 5),
        PRIVATE,
    ),
    (lambda: strategies.DifferentialPrivacyServerSideAdaptiveClipping(fedavg(), 0.01, 50), PRIVATE),
    (lambda: strategies.DifferentialPrivacyClientSideAdaptiveClipping(fedavg(), 0.01, 50), PRIVATE),
    (lambda: sampling(), "samples without bias already"),
    (lambda: strategies.FedAvg, r"FedAvg is a class; wrap an instance, FedAvg\(\)"),
    (lambda: legacy.FedAvg(), r"old API; use flwr.serverapp.strategy.FedAvg of the Message API"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(make, reason):
    with pytest.raises(ValueError, match=reason):
        UnbiasedSampling(make())


def test_strategies_that_do_more_than_average_are_refused():
    class Own(strategies.Strategy):
        configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = summary = None

    class Starting(strategies.FedAvg):
        def start(self):
            """Something else."""

    with pytest.raises(ValueError, match="Own cannot be wrapped: only FedAvg and its kin"):
        UnbiasedSampling(Own())
    with pytest.raises(ValueError, match="Starting has a start"):
        UnbiasedSampling(Starting())


class Personal(strategies.FedAvg):
    """Makes every node's message anew, and `told` of the node into it."""

    def __init__(self, told):
        super().__init__(min_available_nodes=1)
        self.told = told

    def configure_train(self, server_round, arrays, config, grid):
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"say": self.told(node)})}),
                node,
                "train",
            )
            for node in grid.get_node_ids()
        ]


def test_messages_that_differ_by_node_are_refused():
    with pytest.raises(ValueError, match="Personal sends each node something else"):
        one_round(sampling(Personal(lambda node: node)), fleet(), record(**MODEL))


def test_equal_messages_need_not_be_the_same():
    arrays, _ = one_round(sampling(Personal(lambda node: 7)), fleet(), record(**MODEL))
    assert arrays is not None


def test_a_refusal_leaves_the_strategy_as_it_was():
    inner = fedavg()
    before = dict(vars(inner))
    with pytest.raises(ValueError, match="budget 0 is not"):
        UnbiasedSampling(inner, budget=0)
    strategy = sampling(inner)
    _, metrics = one_round(strategy, fleet(), record(**MODEL))
    assert "loss" in metrics
    assert vars(inner) == before


NOISE = [
    lambda inner: strategies.DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 2),
    lambda inner: strategies.DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 2),
    lambda inner: strategies.DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.01, 50),
    lambda inner: strategies.DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.01, 50),
]


@pytest.mark.parametrize("around", NOISE)
def test_noise_around_ours_is_refused(around):
    with pytest.raises(ValueError, match=r"Clipping cannot be put around kvib: its noise is made"):
        one_round(around(sampling()), fleet(), record(**MODEL))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"policy": kvib.KVib}, r"policy KVib is a class; write KVib\(\)"),
        ({"policy": "KVibb"}, "policy 'KVibb' is not one of .* did you mean KVib"),
        ({"policy": "KVib(gian=1)"}, "KVib has no option gian, .* did you mean gain"),
        ({"policy": 3}, "policy 3 is not a policy"),
        ({"procedure": "pivtal"}, "procedure 'pivtal' is not one of .* did you mean pivotal"),
        ({"policy": kvib.KVib(), "procedure": kvib.without_replacement}, "without_replacement"),
        ({"weights": [1, 2, 3]}, "is not a mapping from client key to weights"),
        ({"weights": {}}, "is not a mapping from client key to weights"),
        ({"weights": {"a": -1}}, "weight -1.0 of client 'a'"),
        ({"offline": "x"}, "offline='x' is neither EstimateAvailability"),
        ({"journal": "nowhere/run.kvib"}, "there is no folder for the journal nowhere/run.kvib"),
        ({"budget": "five"}, "budget 'five' is neither a number nor a share"),
        ({"budget": "120%"}, "budget '120%' is not a share"),
        ({"budget": "-1"}, "not a positive number of clients per round"),
        ({"seed": None}, "seed None is not an integer"),
        ({"weights": {1.5: 2.0}}, "weights names a client 1.5; clients are called by strings or"),
        ({"cost": {"a": 0}, "budget": 3}, "cost 0 of client 'a' is not a positive number"),
        ({"cost": {"a": 2}}, "with cost=… the budget is in its units; give budget"),
        ({"max_weight": "9"}, "max_weight='9' is not a positive size"),
        ({"over_select": "false"}, "over_select='false' is neither True nor False"),
        ({"switch": "false"}, "switch='false' is neither True nor False"),
        ({"cool_down": -1}, "cool_down=-1 is not a number of rounds"),
        ({"response": 1.5}, "response must be probabilities"),
        ({"guard": "x"}, "guard"),
        ({"variables": {0: [1.0], 1: [1.0, 2.0]}}, "rows of different length"),
        ({"journal": "/tmp"}, "the journal /tmp is a folder"),
        ({"quorum": "0.5"}, "quorum='0.5' is not a share"),
        ({"policy": kvib.Mabs(), "offline": Renormalise()}, "policy Mabs is for clients that stay"),
        ({"max_weight": 0}, "max_weight=0 is not a positive size"),
        ({"quorum": 3}, "quorum=3 is not a share"),
        ({"patience": 0}, "patience=0 is not a number of rounds"),
        ({"deadline": 0}, "deadline=0 is not a positive number of seconds"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options, reason):
    with pytest.raises(ValueError, match=reason):
        UnbiasedSampling(fedavg(), **options)


@pytest.mark.parametrize("policy", [kvib.Optimal(), kvib.AOCS()])
def test_policies_that_need_all_norms_are_refused(policy):
    with pytest.raises(ValueError, match="must know every client's norm before it draws"):
        UnbiasedSampling(fedavg(), policy)


@pytest.mark.parametrize("budget", [0, -1, math.inf, math.nan])
def test_a_budget_is_a_number_of_clients(budget):
    with pytest.raises(ValueError, match="not a positive number of clients per round"):
        UnbiasedSampling(fedavg(), budget=budget)


def test_rates_by_key_are_for_all(tmp_path):
    with pytest.raises(ValueError, match="response has no rate for client 1, 2, 3, …; give one"):
        one_round(sampling(response={0: 0.5}), fleet(), record(**MODEL))


@pytest.mark.parametrize(("budget", "bias"), [(2, -0.071), (3, -0.033), (4, -0.016), (6, 0)])
def test_training_metrics_are_ratio_estimates(budget, bias):
    """docs/flower.md has these numbers."""
    weights, losses = np.arange(10.0, 70, 10) / 210, np.arange(1.0, 7)
    expected = np.full(6, budget / 6)
    draw, mean = kvib.without_replacement, 0.0
    for probability, cohort in outcomes(lambda r: draw(expected, r, weights=weights)):
        told = [
            ({"loss": losses[i]}, c) for i, c in zip(cohort.ids, cohort.coefficients, strict=True)
        ]
        mean += probability * averaged(told)["loss"]
    assert mean / (weights @ losses) - 1 == pytest.approx(bias, abs=5e-4)


# The examples, in this process; tests/integrations/test_flower_engines.py has the engines

EXAMPLES = ROOT / "examples"


def example(name, monkeypatch):
    """The two apps of an example, and its configuration."""
    monkeypatch.syspath_prepend(EXAMPLES / name)
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    apps = []
    for part in ("clientapp", "serverapp"):
        module, attribute = project["components"][part].split(":")
        apps.append(getattr(importlib.import_module(module), attribute))
    return *apps, project["config"]


def test_the_example_learns_and_continues(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    client, server, config = example("flower_app", monkeypatch)
    config = {**config, "folder": str(tmp_path), "num-server-rounds": 4}
    for rounds in (4, 6):
        config["num-server-rounds"] = rounds
        grid = LocalGrid(client, partitions(20), run_config=config, first=rounds)
        server(grid, Context(1, 0, {}, RecordDict(), config))
        gc.collect()  # lets go of the journal, as the end of the process does
    table = kvib.journal.read(tmp_path / "run.kvib").table()
    assert len(table.size) == 6
    assert (table.size == 5).all()


def test_the_masked_example_learns(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    client, server, config = example("flower_masked", monkeypatch)
    grid = LocalGrid(client, partitions(10), run_config=config)
    context = Context(1, 0, {}, RecordDict(), config)
    server(grid, context)
    last = [m for m in grid.sent if m.metadata.message_type == "train"][-1]
    model = last.content["arrays"]["w"].numpy()
    assert np.linalg.norm(model - 1) < 0.5  # from √5
    answered = list((tmp_path / "masked-app" / "1").rglob("*/*"))
    assert len(answered) == config["num-server-rounds"] * config["budget"]


@pytest.mark.parametrize("framework", ["flwr", "pfl", "nvflare", "fedlab"])
def test_one_room_imports_a_framework(framework):
    source = EXAMPLES.parent / "src" / "kvib"
    importing = re.compile(rf"^\s*(from|import) {framework}\b", re.MULTILINE)
    files = [path for path in source.rglob("*.py") if importing.search(path.read_text())]
    rooms = {path.relative_to(source / "integrations").parts[0] for path in files}
    assert rooms == {"flower" if framework == "flwr" else f"{framework}.py"}

"""Flower at night: outages, lost names, sizes that lie, replies that are of no use."""

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import LocalGrid, numbers, one_round, partitions, record, reply_with, shifting_app
from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common.logger import FLOWER_LOGGER
from flwr.serverapp.strategy import FedAdam, FedAvg, strategy_utils
from flwr.serverapp.strategy.strategy_utils import sample_nodes

import kvib
from kvib.integrations.flower import (
    EstimateAvailability,
    Hidden,
    NothingUsableError,
    Renormalise,
    UnbiasedSampling,
    introduce,
    scaled_update,
    waiting,
)

N = 60
RNG = np.random.default_rng(3)
SIZES = np.exp(RNG.normal(4, 1, N)).round() + 1
UPDATES = [{"w": RNG.normal(i / N, 1, 4)} for i in range(N)]
X = record(w=np.zeros(4))


class Night(LocalGrid):
    """Nodes that vanish, and are back after some looks at the grid."""

    def __init__(self, app, configs, **options):
        super().__init__(app, configs, **options)
        self.looks, self.all = 0, set(self.contexts)

    def fall(self, looks, nodes=None):
        """These nodes, all by default, are away for this many looks."""
        self.looks = looks
        self.online = self.all - (self.all if nodes is None else set(nodes))

    def get_node_ids(self):
        if self.looks:
            self.looks -= 1
            if self.looks == 0:
                self.online = set(self.all)
        return super().get_node_ids()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only sleeping moves."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def log(caplog, monkeypatch):
    """Lines of Flower's log: level and text."""
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, "flwr")

    def lines(level, words):
        return [r for r in caplog.records if r.levelno == level and words in r.getMessage()]

    return lines


def fleet(n=N, sizes=SIZES, **options):
    return Night(shifting_app(UPDATES, list(sizes), **options), partitions(n))


def sampling(budget=10, inner=None, **options):
    inner = inner or FedAvg(min_available_nodes=2, min_train_nodes=2)
    return UnbiasedSampling(inner, budget=budget, **options)


def play(strategy, grid, rounds, first=1):
    return [one_round(strategy, grid, X, t) for t in range(first, first + rounds)]


def expected_sum(strategy):
    """Σ λ/(a·r): the mean of Σ coefficients once all clients are online."""
    ids = strategy.sampler.state.population.here()
    return float((strategy.sampler.weights[ids] / strategy.sampler.state.rates.at(ids)).sum())


# Outages


@pytest.mark.parametrize("looks", [1, 3, 10, 100, 1000])
def test_an_outage_is_waited_for_and_teaches_nothing(looks, clock, log):
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 10)
    before = strategy.sampler.round
    grid.fall(looks + 1)
    play(strategy, grid, 10, first=11)
    assert strategy.sampler.round == before + 10
    assert expected_sum(strategy) == pytest.approx(1, abs=1e-9)
    lines = log(logging.INFO, "waiting for nodes")
    assert clock.now / 66 <= len(lines) <= clock.now / 60 + 1
    assert "start more, or lower min_available_nodes" in lines[0].getMessage()


@pytest.mark.parametrize("after", [1, 10, 100])
@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_most_of_the_fleet_gone_at_once_teaches_nothing(after, rounds):
    """58 of 60 clients are cut off, and the minimum of two is there."""
    strategy, grid = sampling(), fleet()
    play(strategy, grid, after)
    grid.online = set(sorted(grid.all)[:2])
    for _, metrics in play(strategy, grid, rounds, first=after + 1):
        assert metrics["kvib-offline"] > 0.9
    grid.online = grid.all
    assert expected_sum(strategy) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("rounds", [30, 100, 1000])
def test_after_a_long_time_with_few_clients_steps_stay_bounded(rounds):
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 20)
    grid.online = set(sorted(grid.all)[:2])
    play(strategy, grid, rounds, first=21)
    grid.online = grid.all
    play(strategy, grid, 5, first=2000)
    assert expected_sum(strategy) < 2.5


def test_clients_that_vanish_in_mid_round_are_asked_again(log):
    """No round is lost: the same cohort answers once the nodes are back."""
    strategy, grid, straight = sampling(), fleet(), sampling()
    play(straight, fleet(), 4)
    play(strategy, grid, 2)
    messages = strategy.configure_train(3, X, ConfigRecord(), grid)
    grid.fall(50)
    _, metrics = strategy.aggregate_train(3, grid.send_and_receive(messages))
    assert metrics["kvib-missing"] == 0
    assert metrics["kvib-round"] == 2
    assert len(log(logging.INFO, "they are asked again")) == 1
    play(strategy, grid, 1, first=4)
    assert strategy.cohort.ids.tolist() == straight.cohort.ids.tolist()
    assert strategy.cohort.coefficients == pytest.approx(straight.cohort.coefficients)


@pytest.mark.parametrize(("deadline", "missing"), [(None, 0), (5.0, 10)])
def test_a_silent_cohort_is_asked_once_more(deadline, missing):
    """Nodes that died with the message and came back never answer it."""
    strategy, grid = sampling(deadline=deadline), fleet()
    play(strategy, grid, 2)
    strategy.configure_train(3, X, ConfigRecord(), grid)
    _, metrics = strategy.aggregate_train(3, [])
    assert metrics["kvib-missing"] == missing


def test_an_offline_cohort_counts_as_silent_if_others_stay():
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 2)
    messages = strategy.configure_train(3, X, ConfigRecord(), grid)
    grid.online = grid.all - {message.metadata.dst_node_id for message in messages}
    _, metrics = strategy.aggregate_train(3, grid.send_and_receive(messages))
    assert metrics["kvib-missing"] == 10
    grid.online = grid.all
    assert expected_sum(strategy) == pytest.approx(1)  # one cause, not ten


def test_an_unreachable_node_does_not_stop_the_run():
    strategy, grid = sampling(budget=2), fleet(2)
    play(strategy, grid, 1)
    grid.fails = dict.fromkeys(grid.contexts, 5)  # the SuperLink still lists them
    _, metrics = play(strategy, grid, 1, first=2)[0]
    assert metrics["kvib-missing"] == 2


@pytest.mark.parametrize(("lowest", "a"), [(0.1, 0.1), (0.02, 0.02), (1e-6, 7.9 / 405)])
def test_no_client_counts_more_than_the_bound(lowest, a):
    """A client that is online in three of 400 rounds."""
    offline = EstimateAvailability(leave_after=None, lowest=lowest)
    strategy, grid = sampling(budget=N, offline=offline), fleet()
    rare = sorted(grid.all)[7]
    play(strategy, grid, 1)
    for t in range(2, 402):
        grid.online = grid.all if t % 200 == 0 else grid.all - {rare}
        one_round(strategy, grid, X, t)
    assert strategy.sampler.state.rates.available(np.array([7])) == pytest.approx(a, rel=0.02)


# Names that are lost


def test_half_a_fleet_that_never_returns_leaves(log):
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 20)
    grid.online = set(sorted(grid.all)[: N // 2])
    gone = SIZES[N // 2 :].sum() / SIZES.sum()
    metrics = [told for _, told in play(strategy, grid, 60, first=21)]
    assert metrics[4]["kvib-lost"] == pytest.approx(gone)
    assert metrics[4]["kvib-offline"] == pytest.approx(gone)
    [line] = log(logging.WARNING, "of the objective is out of reach")
    assert f"{gone:.0%}" in line.getMessage()
    assert [told["kvib-left"] for told in metrics].count(N // 2) == 1
    assert metrics[-1]["kvib-lost"] == 0
    assert metrics[-1]["kvib-clients"] == N // 2
    sums = [told["kvib-coefficients"] for told in metrics[-8:]]
    assert np.mean(sums) == pytest.approx(1, abs=0.15)
    grid.online = grid.all  # they were only out of reach
    _, told = one_round(strategy, grid, X, 99)
    assert told["kvib-joined"] == N // 2
    assert expected_sum(strategy) == pytest.approx(1, abs=0.05)


def test_a_restart_does_not_change_when_clients_leave(tmp_path):
    cohorts = []
    for restarts in ((), (25, 40, 70)):
        path = tmp_path / f"{len(restarts)}.kvib"
        strategy, grid, drawn = sampling(journal=path), fleet(), []
        for t in range(1, 91):
            if t == 21:
                grid.online = set(sorted(grid.all)[10:])
            if t in restarts:
                strategy.close()
                strategy = sampling(journal=path)
            one_round(strategy, grid, X, t)
            drawn.append((strategy.cohort.ids.tolist(), len(strategy.sampler.state.population)))
        cohorts.append(drawn)
        strategy.close()
    assert cohorts[0] == cohorts[1]
    assert cohorts[0][-1][1] == N - 10


def test_clients_that_are_seldom_online_are_not_lost():
    """Rate 0.1, and absences of 50 rounds are no exception among 60 clients."""
    rng = np.random.default_rng(0)
    strategy, grid, nodes = sampling(), fleet(), None
    nodes = sorted(grid.all)
    for t in range(1, 400):
        grid.online = {node for node in nodes if rng.random() < 0.1 or node in nodes[:2]}
        one_round(strategy, grid, X, t)
    assert len(strategy.sampler.state.population) >= N - 1
    assert strategy.last.lost < 0.05


def test_nodes_without_names_that_restart_do_not_shrink_steps(log):
    """No `introduce`, all nodes new every ten rounds: 0.37 before, at the end of 100 rounds."""
    grid = fleet(20, introduced=False)
    strategy, metrics = sampling(budget=20), []
    for t in range(1, 151):
        if t % 10 == 0:
            grid.contexts = {
                node + 100_000: Context(1, node + 100_000, c.node_config, RecordDict(), {})
                for node, c in grid.contexts.items()
            }
            grid.online = grid.all = set(grid.contexts)
        _, told = one_round(strategy, grid, X, t)
        metrics.append(told)
    sums = [told["kvib-coefficients"] for told in metrics]
    assert log(logging.WARNING, "joined without a name of their own")
    assert log(logging.WARNING, "clients left")
    assert np.mean(sums[20:]) > 0.8
    assert max(sums) < 1.1
    assert max(told["kvib-clients"] for told in metrics) == 40  # the old names leave soon


def test_a_late_node_and_one_without_a_name_are_reported(log):
    grid = fleet(5)
    late = sorted(grid.all)[4]
    grid.online = grid.all - {late}
    strategy = sampling(budget=2)
    play(strategy, grid, 3)
    assert strategy.last.joined == ()
    grid.online = grid.all
    play(strategy, grid, 1, first=4)
    assert strategy.last.joined == (4,)
    assert log(logging.INFO, "1 clients joined: 4")


# Sizes


def test_a_forgotten_introduction_is_noticed_once():
    sizes = [10, 1000]

    def more(reply):
        record = next(iter(reply.content.metric_records.values()))
        record["num-examples"] = sizes[reply.metadata.src_node_id % 2]
        return reply

    grid = fleet(20, introduced=False)
    grid.fails = dict.fromkeys(grid.contexts, more)
    strategy = sampling(budget=5)
    ways_out = r"introduce\(app, size=…\) in the ClientApp, or give weights=\{key: size"
    with pytest.warns(UserWarning, match=ways_out) as caught:
        play(strategy, grid, 5)
    assert len(caught) == 1


def test_equal_clients_without_sizes_are_not_warned_of():
    app = ClientApp()

    @app.train()
    def train(message, context):
        i = context.node_config["partition-id"]
        content = {"arrays": X, "metrics": MetricRecord({"num-examples": i + 1})}
        return reply_with(message, content)

    introduce(app)
    play(sampling(budget=5), Night(app, partitions(20)), 3)


@pytest.mark.parametrize("liars", [1, 3])
def test_a_size_far_beyond_all_others_is_reported(liars):
    sizes = SIZES.copy()
    sizes[:liars] = 1e12
    with pytest.warns(
        UserWarning, match=r"client 0.* says it has 1e\+12 data.*max_weight="
    ) as told:
        play(sampling(), fleet(sizes=sizes), 3)
    assert len(told) == 1


def test_max_weight_bounds_what_a_client_counts():
    sizes = SIZES.copy()
    sizes[5] = 1e12
    strategy = sampling(max_weight=SIZES.max())
    with pytest.warns(UserWarning, match=r"client 5 says it has 1e\+12 data, and counts as max_we"):
        play(strategy, fleet(sizes=sizes), 1)
    true = np.minimum(sizes, SIZES.max())
    assert strategy.sampler.weights == pytest.approx(true / true.sum())


def test_sizes_are_asked_again_now_and_then():
    sizes = dict(enumerate(SIZES))
    grid = Night(shifting_app(UPDATES, sizes), partitions(N))
    strategy = sampling()
    play(strategy, grid, 2)
    sizes[3] *= 100
    play(strategy, grid, 103, first=3)
    after = np.array(list(sizes.values()))
    assert strategy.sampler.weights == pytest.approx(after / after.sum())


def test_reweigh_holds_against_what_clients_report():
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 1)
    strategy.reweigh({3: 7000.0})
    play(strategy, grid, 110, first=2)
    after = SIZES.copy()
    after[3] = 7000
    assert strategy.sampler.weights == pytest.approx(after / after.sum())
    with pytest.raises(ValueError, match="there is no client 'x'"):
        strategy.reweigh({"x": 1.0})
    with pytest.raises(ValueError, match="no client has come yet"):
        sampling().reweigh({3: 1.0})


# Replies that are of no use


def test_a_run_without_one_usable_reply_ends(log):
    """Clients that forgot the mod: `Hidden` cannot use what they send."""
    strategy, grid = sampling(updates=Hidden(), patience=4), fleet()
    play(strategy, grid, 3)
    assert len(log(logging.WARNING, "every reply was refused, 3 rounds in a row")) == 1
    with pytest.raises(NothingUsableError, match=r"4 rounds in a row.*scaled_update.*patience=No"):
        play(strategy, grid, 1, first=4)
    forever, grid = sampling(updates=Hidden(), patience=None), fleet()
    play(forever, grid, 12)


def test_one_usable_reply_is_enough_to_go_on():
    strategy, grid = sampling(budget=N, patience=2, guard=None), fleet()
    broken = sorted(grid.contexts)[1:]
    grid.fails = dict.fromkeys(broken, lambda reply: reply_with_nan(reply))
    play(strategy, grid, 5)
    assert len(strategy.refused) == N - 1


def reply_with_nan(reply):
    [name] = reply.content.array_records
    reply.content[name] = record(w=np.full(4, np.nan))
    return reply


def test_a_round_below_the_quorum_is_given_up(tmp_path, log):
    strategy = sampling(budget=N, quorum=0.5, journal=tmp_path / "run.kvib")
    grid = fleet()
    play(strategy, grid, 2)
    grid.fails = dict.fromkeys(sorted(grid.contexts)[:40], "silent")
    arrays, metrics = play(strategy, grid, 1, first=3)[0]
    assert arrays is None  # Flower keeps the model then
    assert metrics["kvib-missing"] == 40
    assert not strategy.last.stepped
    assert math.isnan(metrics["kvib-variance"])
    assert expected_sum(strategy) == pytest.approx(1)
    assert len(log(logging.WARNING, "fewer than the quorum")) == 1
    grid.fails = {}
    play(strategy, grid, 1, first=4)
    assert strategy.last.stepped
    strategy.close()
    again = sampling(budget=N, quorum=0.5, journal=tmp_path / "run.kvib")
    play(again, fleet(), 1)
    assert again.cohort.round == 4  # the given-up round is not asked for once more


def test_a_deadline_takes_the_place_of_the_timeout():
    class Patient(Night):
        def send_and_receive(self, messages, *, timeout=None):
            self.timeouts.append(timeout)
            return super().send_and_receive(messages, timeout=timeout)

    grid = Patient(shifting_app(UPDATES, list(SIZES)), partitions(N))
    grid.timeouts = []
    inner = FedAvg(fraction_evaluate=0.0)
    sampling(inner=inner, deadline=7.5, query_timeout=3).start(grid, X, num_rounds=2, timeout=99)
    assert set(grid.timeouts) == {3, 7.5}


def test_a_clipping_mod_without_its_server_ends_the_run(log):
    """`fixedclipping_mod` belongs to a strategy that kvib refuses to wrap."""
    strategy, grid = sampling(patience=3), fleet(20, mods=[fixedclipping_mod])
    with pytest.raises(NothingUsableError, match=r"3 rounds in a row.*KEY_CLIPPING_NORM|clipping"):
        play(strategy, grid, 5)
    assert log(logging.WARNING, "joined without a name of their own")


def test_noise_of_a_local_mod_passes_through():
    """Each client clips and adds noise itself: steps stay bounded, and weights are equal."""
    mod = LocalDpMod(clipping_norm=0.5, sensitivity=0.01, epsilon=1.0, delta=1e-5)
    strategy, grid = sampling(budget=20, guard=None), fleet(20, mods=[mod])
    for arrays, told in play(strategy, grid, 5):
        assert told["kvib-missing"] == 0
        assert np.linalg.norm(numbers(arrays)["w"]) < 1
    assert strategy.sampler.weights == pytest.approx(np.full(20, 0.05))


# What a configuration file can say, and what the core has


def test_policy_procedure_and_budget_as_text():
    strategy = UnbiasedSampling(
        FedAvg(), "KVib(rounds=500)", procedure="independent", budget="10%", guard=None
    )
    play(strategy, fleet(), 2)
    assert strategy.sampler.policy == kvib.KVib(rounds=500)
    assert strategy.sampler.procedure is kvib.independent
    assert strategy.sampler.budget == 6
    assert UnbiasedSampling(FedAvg(), budget="7").budget(100) == 7


def test_a_budget_by_round():
    strategy = sampling(budget=lambda round: 5 + round)
    sizes = [told["kvib-cohort"] for _, told in play(strategy, fleet(), 4)]
    assert sizes == [5, 6, 7, 8]


def test_costs_are_paid_from_the_budget(tmp_path):
    cost = {i: 1.0 + i % 3 for i in range(N)}
    grid = fleet()
    late = sorted(grid.all)[-1]
    grid.online = grid.all - {late}
    strategy = sampling(budget=20, cost=cost, journal=tmp_path / "run.kvib")
    play(strategy, grid, 2)
    grid.online = grid.all
    play(strategy, grid, 2, first=3)
    p = strategy.sampler.probabilities(available=np.arange(N))
    assert float(p @ np.array(list(cost.values()))) == pytest.approx(20)
    strategy.close()
    play(sampling(budget=20, cost=cost, journal=tmp_path / "run.kvib"), fleet(), 1)


def test_cool_down_and_over_select():
    strategy, grid = sampling(cool_down=2, over_select=True, response=0.5), fleet()
    play(strategy, grid, 1)
    first = set(strategy.cohort.ids.tolist())
    assert len(first) == 20  # ten answers, at one in two
    play(strategy, grid, 1, first=2)
    assert not first & set(strategy.cohort.ids.tolist())


def test_variables_are_for_a_fixed_population():
    variables = {i: [float(i % 4), 1.0] for i in range(N - 1)}
    strategy = sampling(variables=variables, procedure="balanced")
    with pytest.warns(UserWarning, match="client 59 is not in variables=…: it takes no part"):
        play(strategy, fleet(), 2)
    assert strategy.sampler.state.eligible.variables.shape == (N - 1, 2)


# What a dashboard needs


def test_every_round_is_reported(log):
    seen = []
    strategy, grid = sampling(on_round=seen.append), fleet()
    grid.fails = {sorted(grid.contexts)[k]: 2 for k in range(0, N, 2)}
    metrics = [told for _, told in play(strategy, grid, 3)]
    assert [report.round for report in seen] == [0, 1, 2]
    report, told = seen[-1], metrics[-1]
    assert report is strategy.last
    assert report.metrics() == {name: told[name] for name in report.metrics()}
    assert list(report.drawn) == strategy.sampler.keys(strategy.cohort.ids)
    assert list(report.drawn.values()) == pytest.approx(strategy.cohort.expected)
    assert set(report.answered) | set(report.refused) == set(report.drawn)
    weight = dict(zip(report.drawn, strategy.cohort.weight, strict=True))
    unanswered = sum(weight[key] for key in report.refused) / sum(weight.values())
    assert report.unanswered == pytest.approx(unanswered)
    assert report.variance > 0


def test_a_dashboard_that_fails_does_not_end_the_run(log):
    strategy = sampling(on_round=lambda report: 1 / 0)
    play(strategy, fleet(), 2)
    assert len(log(logging.WARNING, "on_round failed")) == 2


# Another policy


def test_a_running_journal_changes_its_policy(tmp_path):
    strategy, grid = sampling(journal=tmp_path / "run.kvib"), fleet()
    play(strategy, grid, 5)
    strategy.switch("KVib", "independent")
    play(strategy, grid, 3, first=6)
    assert strategy.sampler.policy == kvib.KVib()
    strategy.close()
    again = sampling(policy="KVib", procedure="independent", journal=tmp_path / "run.kvib")
    play(again, fleet(), 1)
    assert again.cohort.round == 8
    again.close()
    other = sampling(policy="Avare", journal=tmp_path / "run.kvib")
    with pytest.raises(ValueError, match=r"policy KVib.*Avare"):
        play(other, fleet(), 1)
    third = sampling(policy="Vrb", switch=True, journal=tmp_path / "run.kvib")
    play(third, fleet(), 1)
    assert third.sampler.policy == kvib.Vrb()
    assert third.cohort.round == 9


def test_a_switch_before_the_first_round(tmp_path):
    strategy = sampling(journal=tmp_path / "run.kvib")
    strategy.switch("Vrb")
    play(strategy, fleet(), 2)
    assert strategy.sampler.policy == kvib.Vrb()


# Whatever is wrapped


def test_an_outage_leaves_no_trace_in_the_model():
    """FedAdam, 30 rounds of real learning with an outage between them."""
    target = np.arange(4.0)
    app = ClientApp()

    @app.train()
    def train(message, context):
        x = numbers(message.content["arrays"])["w"]
        content = {
            "arrays": record(w=x - 0.1 * (x - target)),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return reply_with(message, content)

    introduce(app, size=lambda context: 1.0 + context.node_config["partition-id"])
    models = []
    for looks in (0, 500):
        grid = Night(app, partitions(20))
        inner = FedAdam(eta=0.1, min_available_nodes=2)
        strategy, x = sampling(budget=5, inner=inner), X
        for t in range(1, 31):
            if t == 15 and looks:
                grid.fall(looks)
            x, _ = one_round(strategy, grid, x, t)
        models.append(numbers(x)["w"])
    assert np.array_equal(*models)


# What else a night brings


def test_day_and_night_leave_the_step_as_large_as_it_is():
    rng = np.random.default_rng(5)
    strategy, grid = sampling(budget=20, guard=None), fleet()
    nodes, sums = sorted(grid.all), []
    for t in range(1, 401):
        share = 0.5 + 0.4 * math.sin(2 * math.pi * t / 24)
        grid.online = {node for node in nodes if rng.random() < share} | set(nodes[:2])
        _, told = one_round(strategy, grid, X, t)
        sums.append(told["kvib-coefficients"])
    assert np.mean(sums[100:]) == pytest.approx(1, abs=0.12)


@pytest.mark.filterwarnings("ignore:client 59 is new")
@pytest.mark.parametrize("policy", ["Mabs", "Avare", "OSMD"])
def test_policies_for_a_fixed_population_survive_change(policy):
    sizes = dict(enumerate(SIZES))
    grid = Night(shifting_app(UPDATES, sizes), partitions(N))
    late, away = sorted(grid.all)[-1], sorted(grid.all)[3]
    grid.online = grid.all - {late}
    strategy = sampling(policy=policy)
    play(strategy, grid, 3)
    grid.online = grid.all - {away}
    play(strategy, grid, 61, first=4)
    assert 59 not in strategy.sampler.keys(range(len(strategy.sampler)))
    grid.online = grid.all
    sizes[7] *= 3
    with pytest.warns(UserWarning, match="has another weight now"):
        play(strategy, grid, 45, first=65)
    assert len(strategy.sampler.state.population) == N - 1


def test_weights_at_a_restart_are_those_of_all_clients(tmp_path):
    path = tmp_path / "run.kvib"
    first = sampling(journal=path)
    play(first, fleet(), 5)
    first.close()
    grid = fleet()
    grid.online = grid.all - {sorted(grid.all)[7]}
    weights = dict.fromkeys(range(40), 0.05)
    again = sampling(journal=path, weights=weights)
    with pytest.warns(UserWarning, match="is not in weights=…: it takes no part"):
        play(again, grid, 2)
    assert again.sampler.weights[:40] == pytest.approx(np.full(40, 1 / 40))
    assert again.sampler.weights[40:].max() == 0
    assert again.last.offline == pytest.approx(1 / 40)
    again.close()
    other = sampling(journal=path, weights={"x": 1.0, 0: 1.0})
    with pytest.warns(UserWarning, match="takes no part"):
        play(other, fleet(), 1)


def test_a_node_that_changes_its_name_is_one_client():
    grid = fleet(5)
    strategy = sampling(budget=5, guard=None)
    play(strategy, grid, 3)
    node = sorted(grid.all)[0]
    grid.contexts[node] = Context(1, node, {"partition-id": 0, "client-id": "x"}, RecordDict(), {})
    play(strategy, grid, 110, first=4)
    messages = strategy.configure_train(200, X, ConfigRecord(), grid)
    assert len({message.metadata.dst_node_id for message in messages}) == len(messages) == 5
    assert "x" in strategy.sampler.keys(strategy.sampler.state.population.here())


def test_the_guard_follows_the_policy(tmp_path):
    for journal in (None, tmp_path / "run.kvib"):
        strategy, grid = sampling(journal=journal), fleet()
        play(strategy, grid, 3)
        strategy.switch("Uniform")
        assert strategy.sampler.guard is None
        play(strategy, grid, 1, first=4)
        strategy.switch("Forecast")
        assert strategy.sampler.guard == kvib.Guard()
        play(strategy, grid, 1, first=5)
        strategy.close()
    again = sampling(policy="BySize", journal=journal, switch=True, guard=None)
    play(again, fleet(), 1)
    assert again.sampler.guard is None


def test_a_switch_before_the_first_round_keeps_the_procedure():
    strategy = sampling(procedure="independent")
    strategy.switch("BySize")
    play(strategy, fleet(), 1)
    assert strategy.sampler.procedure is kvib.independent


def test_rounds_without_any_answer_are_warned_of(log):
    strategy, grid = sampling(deadline=1.0, patience=4), fleet()
    play(strategy, grid, 1)
    grid.fails = dict.fromkeys(grid.contexts, "silent")
    play(strategy, grid, 9, first=2)
    lines = log(logging.WARNING, "no client answered in")
    assert [line.getMessage()[:44] for line in lines] == [
        "kvib: no client answered in 4 rounds in a ro",
        "kvib: no client answered in 8 rounds in a ro",
    ]


@pytest.mark.parametrize("size", [5e-324, 1e300])
def test_a_size_that_cannot_be_compared_takes_no_part(size):
    sizes = [*SIZES[:19], size]
    strategy = sampling()
    with pytest.warns(UserWarning, match="client 19 says it has .* data: no part"):
        play(strategy, fleet(20, sizes=sizes), 2)
    assert len(strategy.sampler) == 19


def test_a_client_without_data_leaves_and_may_return():
    sizes = dict(enumerate(SIZES[:20]))
    grid = Night(shifting_app(UPDATES, sizes), partitions(20))
    strategy = sampling()
    play(strategy, grid, 2)
    sizes[4] = 0
    with pytest.warns(UserWarning, match="client 4 says it has 0.0 data: no part"):
        play(strategy, grid, 105, first=3)
    assert strategy.sampler.weights[4] == 0
    sizes[4] = 50
    play(strategy, grid, 105, first=200)
    assert strategy.sampler.weights[4] > 0


def test_clients_without_a_size_count_as_the_mean():
    """The first two say nothing, and come before those who do."""
    app = shifting_app(UPDATES, introduced=False)
    sizes = [None, None, *([5000.0] * 8)]

    @app.query("kvib")
    def answer(message, context):
        i = context.node_config["partition-id"]
        said = ConfigRecord({"key": i} | ({} if sizes[i] is None else {"size": sizes[i]}))
        return reply_with(message, {"kvib": said})

    grid = Night(app, partitions(10))
    grid.online = set(sorted(grid.all)[:2])
    strategy = sampling(budget=2)
    play(strategy, grid, 2)
    grid.online = grid.all
    play(strategy, grid, 2, first=3)
    assert strategy.sampler.weights == pytest.approx(np.full(10, 0.1))


def test_costs_may_not_change_in_a_journal(tmp_path):
    path, cost = tmp_path / "run.kvib", dict.fromkeys(range(N), 100.0)
    first = sampling(budget="50%", cost=cost, journal=path)
    play(first, fleet(), 2)
    assert len(first.cohort) == N // 2
    first.close()
    for other in (None, {**cost, 5: 7.0}):
        with pytest.raises(ValueError, match=r"was begun with (costs|another cost of client 5)"):
            play(sampling(budget=3000, cost=other, journal=path), fleet(), 1)


def test_a_cohort_from_before_a_restart_is_reported(tmp_path):
    path = tmp_path / "run.kvib"
    first, grid = sampling(journal=path), fleet()
    play(first, grid, 2)
    first.configure_train(3, X, ConfigRecord(), grid)
    first.close()
    grid = fleet()
    grid.online = set(sorted(grid.all)[:30])
    again = sampling(journal=path)
    _, told = one_round(again, grid, X, 1)
    assert told["kvib-clients"] == N
    assert told["kvib-offline"] == pytest.approx(SIZES[30:].sum() / SIZES.sum())


def test_renormalising_later_is_refused():
    with pytest.raises(ValueError, match=r"leave_after=3 would leave .* EstimateAvailability"):
        Renormalise(leave_after=3)


# Found by attack


def own_minimum(minimum):
    class OwnMinimum(FedAvg):
        """Samples its nodes itself, from as many as it wants."""

        def configure_train(self, server_round, arrays, config, grid):
            nodes, _ = sample_nodes(grid, minimum, minimum)
            content = {self.arrayrecord_key: arrays, self.configrecord_key: config}
            return self._construct_messages(RecordDict(content), nodes, "train")

    return OwnMinimum(min_available_nodes=2, min_train_nodes=2)


def test_a_strategy_with_its_own_minimum_does_not_hang(monkeypatch):
    monkeypatch.setattr(strategy_utils, "sleep", lambda seconds: None)
    _, metrics = play(sampling(budget=5, inner=own_minimum(5)), fleet(20), 1)[0]
    assert metrics["kvib-missing"] == 0
    assert metrics["kvib-cohort"] == 5
    with pytest.raises(ValueError, match="waits for more nodes than a fleet can have"):
        play(sampling(budget=5, inner=own_minimum(2**16 + 1)), fleet(20), 1)


def telling(records):
    """An app whose client i sends a model, and beside it `records(i)`."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        return reply_with(message, {"model": X, **records(context.node_config["partition-id"])})

    introduce(app, size=lambda context: 1.0)
    return app


def seen_by_function(records, n=5):
    """What a function of one's own for metrics is handed in a round with all clients."""
    seen = []

    def own(contents, key):
        seen.extend(contents)
        return MetricRecord({"clients": len(contents)})

    inner = FedAvg(weighted_by_key="n", arrayrecord_key="model", train_metrics_aggr_fn=own)
    _, metrics = play(sampling(n, inner), Night(telling(records), partitions(n)), 1)[0]
    assert metrics["clients"] == len(seen)
    return seen


def test_a_metrics_function_sees_what_clients_sent():
    def records(i):
        kind = ConfigRecord({"device": f"phone {i}"})
        return {"train-metrics": MetricRecord({"n": 1 + i, "loss": float(i)}), "kind": kind}

    seen = seen_by_function(records)
    assert sorted(content["train-metrics"]["loss"] for content in seen) == [0, 1, 2, 3, 4]
    assert {content["kind"]["device"] for content in seen} == {f"phone {i}" for i in range(5)}
    assert sum(content["train-metrics"]["n"] for content in seen) == pytest.approx(1)
    assert {frozenset(content) for content in seen} == {frozenset({"train-metrics", "kind"})}


def test_a_function_for_metrics_sees_several_records_as_sent():
    def records(i):
        return {"a": MetricRecord({"n": 1 + i}), "b": MetricRecord({"loss": 2.0 * i})}

    seen = seen_by_function(records)
    assert sorted(content["a"]["n"] for content in seen) == [1, 2, 3, 4, 5]
    assert sorted(content["b"]["loss"] for content in seen) == [0, 2, 4, 6, 8]


def test_other_names_do_not_reach_a_metrics_function():
    seen = seen_by_function(lambda i: {"metrics" if i else "odd": MetricRecord({"n": 1})})
    assert [list(content) for content in seen] == [["metrics"]] * 4


def test_nodes_without_sizes_are_named_during_the_wait(clock, log):
    broken = [True]

    def size(context):
        if clock.now > 100:
            broken.clear()
        return 1 / 0 if broken else 1.0

    app = telling(lambda i: {"metrics": MetricRecord({"num-examples": 1})})
    app._registered_funcs.pop("query.kvib")
    introduce(app, size)
    grid = Night(app, partitions(5))
    play(sampling(budget=3), grid, 1)
    lines = log(logging.INFO, "waiting for nodes")
    assert len(lines) >= 2
    for line in lines:
        assert "none of them is a client" in line.getMessage()
        assert "cannot tell its size: ZeroDivisionError" in line.getMessage()
        assert "start more" not in line.getMessage()
    assert len(log(logging.WARNING, "cannot tell its size: ZeroDivisionError")) >= 10


@pytest.mark.parametrize(("key", "name"), [(True, "True"), (1.5, "1.5"), (b"ab", "b'ab'")])
def test_a_key_that_is_no_name_becomes_its_text(key, name):
    app = shifting_app(UPDATES, introduced=False)

    @app.query("kvib")
    def answer(message, context):
        own = context.node_config["partition-id"] or key
        return reply_with(message, {"kvib": ConfigRecord({"key": own, "size": 1.0})})

    strategy = sampling(budget=6)
    play(strategy, Night(app, partitions(6)), 2)
    assert set(strategy.last.drawn) == {name, 1, 2, 3, 4, 5}


class Dawn(Night):
    """After an outage nodes come back one by one, in this order, one at each look."""

    order = None

    def get_node_ids(self):
        if self.order:
            self.online = self.online | {self.order.pop(0)}
        return super().get_node_ids()


def cut_off(strategy, others_first):
    """A round in whose middle all nodes vanish; how many were back when it went on."""
    grid = Dawn(shifting_app(UPDATES, list(SIZES)), partitions(N))
    play(strategy, grid, 2)
    messages = strategy.configure_train(3, X, ConfigRecord(), grid)
    drawn = {message.metadata.dst_node_id for message in messages}
    grid.online = set()
    replies = grid.send_and_receive(messages)
    grid.order = sorted(grid.all, key=lambda node: (node in drawn) == others_first)
    _, metrics = strategy.aggregate_train(3, replies)
    return metrics, len(grid.online)


def test_nodes_that_come_back_one_by_one_are_waited_for(log):
    """The first two are enough for a round, and say nothing about the drawn clients."""
    _, back = cut_off(sampling(), others_first=True)
    assert back == N // 2
    assert log(logging.INFO, "fewer than half of the drawn clients are back, and of the 60 nodes")
    metrics, back = cut_off(sampling(), others_first=False)
    assert back == 5  # half of the ten that were drawn
    assert metrics["kvib-missing"] == 5


def test_the_wait_begins_when_nodes_are_back(clock):
    """An outage of ten hours, with a timeout of one; then nodes come back one by one."""
    strategy, grid = sampling(deadline=3600), fleet()
    play(strategy, grid, 2)
    messages = strategy.configure_train(3, X, ConfigRecord(), grid)
    grid.online, nodes, sleep = set(), sorted(grid.all), clock.sleep

    def sleeping(seconds):
        sleep(seconds)
        if clock.now > 36_000:
            grid.online = set(nodes[: len(grid.online) + 1])

    clock.sleep = sleeping
    _, metrics = strategy.aggregate_train(3, grid.send_and_receive(messages))
    assert metrics["kvib-missing"] <= 5 or len(grid.online) >= N // 2
    assert clock.now > 36_000


def test_the_wait_for_a_lost_cohort_is_bounded(clock):
    strategy, grid = sampling(deadline=600), fleet()
    play(strategy, grid, 2)
    messages = strategy.configure_train(3, X, ConfigRecord(), grid)
    drawn = {message.metadata.dst_node_id for message in messages}
    grid.online = set(sorted(grid.all - drawn)[:5])
    _, metrics = strategy.aggregate_train(3, grid.send_and_receive(messages))
    assert metrics["kvib-missing"] == 10
    assert 600 <= clock.now < 610


def test_listed_but_unreachable_nodes_are_given_time(clock, monkeypatch):
    strategy, grid, pauses = sampling(budget=2), fleet(2), []
    play(strategy, grid, 1)
    grid.fails = dict.fromkeys(grid.contexts, 5)
    monkeypatch.setattr(clock, "sleep", pauses.append)
    play(strategy, grid, 1, first=2)
    assert pauses == [1, 2, 4, 5, 5]


def test_a_lost_round_of_hidden_updates_is_no_step():
    strategy, grid = sampling(budget=N, updates=Hidden()), fleet(mods=[scaled_update])
    play(strategy, grid, 1)
    assert strategy.last.stepped
    grid.fails = {sorted(grid.all)[0]: "silent"}
    arrays, metrics = play(strategy, grid, 1, first=2)[0]
    assert metrics["kvib-missing"] == 1
    assert not numbers(arrays)["w"].any()
    assert not strategy.last.stepped


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"updates": Hidden}, r"updates=Hidden .* write Visible\(\) or Hidden\(\)"),
        ({"updates": None}, r"updates=None .* write Visible\(\) or Hidden\(\)"),
        ({"buffers": None}, "buffers=None is not a function.*write buffers=lambda name, array: F"),
        ({"deadline": "5"}, "deadline='5' is not a positive number of seconds"),
        ({"deadline": math.nan}, "deadline=nan is not a positive number of seconds"),
    ],
)
def test_what_would_fail_in_the_first_round_is_refused_at_once(options, way_out):
    with pytest.raises(ValueError, match=way_out):
        sampling(**options)


def test_one_client_leaves_by_its_key_alone():
    strategy, grid = sampling(), fleet()
    play(strategy, grid, 1)
    strategy.leave(3)
    strategy.leave(np.array([4, 5]))
    _, metrics = play(strategy, grid, 1, first=2)[0]
    assert metrics["kvib-clients"] == N - 3
    assert strategy.last.left == (3, 4, 5)
    with pytest.raises(ValueError, match="a mapping from client key to weight"):
        strategy.reweigh([1])

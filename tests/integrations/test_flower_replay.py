"""Replay and plan on the journal of a Flower deployment: late nodes, nodes that go, silence."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import LocalGrid, one_round, partitions, record, shifting_app
from flwr.serverapp import strategy as strategies
from test_journal_cli import run

import kvib
from kvib.integrations.flower import EstimateAvailability, Renormalise, UnbiasedSampling
from kvib.replay import grid as budgets_around
from kvib.replay import replay
from kvib.replay.plan import plan

CLIENTS, ROUNDS = 24, 40
RNG = np.random.default_rng(5)
UPDATES = [{"w": scale * RNG.normal(size=4)} for scale in RNG.lognormal(0, 1, CLIENTS)]
OFFLINE = {
    "estimated": EstimateAvailability(leave_after=6),
    "renormalised": Renormalise(),
}


def deployed(path, offline, policy, procedure):
    """A night: a quarter of the fleet at first, the others later, some of them for a while."""
    sizes, rng = RNG.lognormal(3, 1, CLIENTS).round() + 1, np.random.default_rng(1)
    grid = LocalGrid(shifting_app(UPDATES, sizes), partitions(CLIENTS))
    nodes = sorted(grid.contexts)
    strategy = UnbiasedSampling(
        strategies.FedAvg(fraction_train=0.25, min_train_nodes=1, min_available_nodes=1),
        policy,
        procedure=procedure,
        offline=offline,
        journal=path,
    )
    x, silent = record(w=np.zeros(4)), 0
    for t in range(ROUNDS):
        online = nodes[: 6 + 2 * t]
        away = {nodes[2]} if 12 <= t < 30 else set()  # goes, and comes back
        grid.online = {node for node in online if rng.random() < 0.9 or t < 5} - away
        grid.fails = {node: 2 for node in nodes if rng.random() < 0.1 and t > 2}
        if t == 20:  # a node starts anew, with more data
            sizes[0] *= 5
            grid.contexts[1] = grid.contexts.pop(nodes[0])
            nodes[0] = 1
            grid.online = set(nodes[:CLIENTS]) - away
        _, metrics = one_round(strategy, grid, x, t + 1)
        silent += metrics["kvib-missing"]
    assert silent > 5
    strategy.close()


@pytest.fixture(scope="module", params=OFFLINE)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("night") / "run.kvib"
    procedure = kvib.pivotal if request.param == "estimated" else kvib.independent
    deployed(path, OFFLINE[request.param], kvib.Forecast(), procedure)
    return path


def test_the_night_was_one(path):
    """Clients joined, left, came back and changed their weight."""
    history = kvib.journal.read(path)
    kinds = [type(change).__name__ for one in history.rounds() for change in one.changes]
    assert {"Joined", "Left", "Reweighed"} <= set(kinds)
    assert len(history.terms().weights) == 6
    assert history.about.clients == history.terms().most == CLIENTS


def test_every_round_is_replayed_as_it_was_drawn(path):
    history = kvib.journal.read(path)
    terms = history.terms()
    rivals = {"same": terms.policy, "by size": kvib.BySize(), "K-Vib": kvib.KVib()}
    told = replay(history, rivals)
    assert told.rounds == ROUNDS
    assert told.rows["same"].per_round == pytest.approx(told.logged.per_round, rel=1e-3)
    assert told.rows["by size"].ratio.value > 1
    assert not any("response=" in warning for warning in told.warnings)
    today = float(np.median(history.table().budget))
    ahead = plan(history, budgets=budgets_around(today, terms.most))
    assert ahead.budgets[-1] == CLIENTS
    assert (ahead.policy.value[1:] <= ahead.policy.value[:-1] * (1 + 1e-9)).all()


def test_on_the_command_line(path, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "replay", path, "--policy", "Forecast", "--last", 20)
    assert code == 0
    assert "Forecast: 1 (1 to 1) times" in out
    code, out, _ = run(monkeypatch, capsys, "plan", path, "--last", 20)
    assert code == 0
    assert "Forecast has the same with" in out
    code, out, _ = run(monkeypatch, capsys, "journal", path)
    assert f"{CLIENTS} clients, {ROUNDS} rounds" in out

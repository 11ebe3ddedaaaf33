"""A run that was stopped, interrupted or killed ends as if nothing had happened."""

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace

import numpy as np
import pytest

import kvib
from kvib.files import storage
from kvib.sim import (
    ClientData,
    LinearEngine,
    LocalSGD,
    Record,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    Simulation,
    SoftmaxRegression,
    Task,
)
from places import FIXTURES

LOCAL = LocalSGD(0.1, batch_size=8)
N, ROUNDS = 12, 8


def small_task(seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.random.default_rng(0).integers(1, 30, N)
    x = rng.normal(size=(sizes.sum() + 40, 5)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)
    train = ClientData(x[:-40], y[:-40], sizes)
    return Task("small", train, (x[-40:], y[-40:]), SoftmaxRegression(5, 3), 3)


def torch_engine(task, local):
    torch = pytest.importorskip("torch")
    from kvib.sim.engines.torch_engine import TorchEngine

    torch.set_num_threads(1)
    return TorchEngine(task, local)


def new(
    engine=LinearEngine,
    policy=None,
    procedure=None,
    server=None,
    *,
    task=None,
    local=LOCAL,
    budget=4,
    sampler_seed=1,
    given=None,
    **options,
):
    task = task or small_task()
    policy = policy or kvib.KVib(rounds=ROUNDS)
    sampler = kvib.Sampler(
        policy, task.weights, budget, procedure, seed=sampler_seed, **given or {}
    )
    options = {"exact_every": 3, "train_loss_every": 2, **options}
    return Simulation(task, engine(task, local), sampler, local, server, **options)


def outcome(simulation):
    """Model and all fields of all records, as bytes."""
    rows = [
        [np.asarray(getattr(record, f.name)).tobytes() for f in fields(Record)]
        for record in simulation.records
    ]
    return simulation.engine.to_numpy(simulation.model).tobytes(), rows


RUNS = {
    "linear": {},
    "torch": {"engine": torch_engine},
    "momentum": {"server": ServerSGD(momentum=0.9)},
    "Adam": {"server": ServerAdam()},
    "Yogi": {"server": ServerYogi()},
    "pivotal": {"procedure": kvib.pivotal},
    "torch, pivotal, momentum": {
        "engine": torch_engine,
        "procedure": kvib.pivotal,
        "server": ServerSGD(momentum=0.9),
    },
    "oracle": {"policy": kvib.Optimal()},
    "OSMD": {"policy": kvib.OSMD()},
    "silent": {"given": {"response": 0.6}},
    "away, silent, pivotal": {
        "procedure": kvib.pivotal,
        "given": {"response": np.linspace(0.4, 1, N), "availability": np.linspace(1, 0.3, N)},
    },
    "silent and learned": {
        "policy": kvib.Forecast(),
        "given": {"response": kvib.EstimatedRate(), "availability": kvib.EstimatedRate()},
        "response": 0.6,
        "availability": 0.7,
    },
    "silent and ignored": {"response": 0.6, "coefficients": kvib.self_normalised},
    "silent, waiting, remembered": {
        "given": {"response": 0.6, "cool_down": 1, "estimator": kvib.Difference()},
    },
    "more are asked": {"given": {"response": 0.6, "over_select": True}},
}


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("run", RUNS)
def test_interrupted_after_any_round(tmp_path, run):
    straight = new(**RUNS[run])
    list(straight.run(rounds=ROUNDS))
    wanted = outcome(straight)
    for stop in range(1, ROUNDS):
        folder = tmp_path / str(stop)
        first = new(**RUNS[run])
        for record in first.run(rounds=ROUNDS, folder=folder, checkpoint_seconds=0):
            if record.round + 1 == stop:
                break
        second = new(**RUNS[run])
        rest = [record.round for record in second.run(rounds=ROUNDS, folder=folder)]
        assert rest == list(range(stop, ROUNDS))
        assert outcome(second) == wanted


@pytest.mark.parametrize("run", ["linear", "torch, pivotal, momentum", "Yogi", "silent"])
def test_stopped_after_some_time_again_and_again(tmp_path, run):
    straight = new(**RUNS[run])
    list(straight.run(rounds=ROUNDS))
    played = []
    for _ in range(ROUNDS):
        simulation = new(**RUNS[run])
        played += list(simulation.run(rounds=ROUNDS, folder=tmp_path, stop_after=0))
    assert [record.round for record in played] == list(range(ROUNDS))
    assert outcome(simulation) == outcome(straight)
    assert len(simulation.seconds) == ROUNDS


def test_a_finished_run_is_left_alone(tmp_path):
    list(new().run(rounds=3, folder=tmp_path))
    again = new()
    assert list(again.run(rounds=3, folder=tmp_path)) == []
    assert len(again.records) == 3
    longer = new()
    assert [r.round for r in longer.run(rounds=5, folder=tmp_path)] == [3, 4]
    straight = new()
    list(straight.run(rounds=5))
    assert outcome(longer) == outcome(straight)


def test_an_exception_between_checkpoints_costs_only_time(tmp_path):
    straight, broken = new(), new()
    list(straight.run(rounds=ROUNDS))
    running = broken.run(rounds=ROUNDS, folder=tmp_path, checkpoint_seconds=0)
    assert [next(running).round for _ in range(4)] == [0, 1, 2, 3]
    broken.engine.updates = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(running)
    resumed = new()
    assert len(list(resumed.run(rounds=ROUNDS, folder=tmp_path))) == ROUNDS - 4
    assert outcome(resumed) == outcome(straight)


def interrupt(*_):
    raise KeyboardInterrupt


OTHERS = {
    "budget": {"budget": 5},
    "local": {"local": replace(LOCAL, learning_rate=0.2)},
    "server": {"server": ServerSGD(0.5)},
    "policy": {"policy": kvib.KVib(rounds=99)},
    "procedure": {"procedure": kvib.pivotal},
    "seeds": {"seed": 7},
    "every": {"exact_every": 1},
    "coefficients": {"coefficients": kvib.self_normalised},
    "task": {"task": replace(small_task(), name="other")},
    "data": {"task": small_task(seed=1)},  # the same name, size and weights
    "weights": {"task": replace(small_task(), weights=np.ones(N))},
    "cost": {"given": {"cost": np.ones(N)}},
    "cool_down": {"given": {"cool_down": 1}},
    "over_select": {"given": {"over_select": True}},
    "variables": {"given": {"variables": np.ones((N, 1))}},
    "response": {"given": {"response": 0.9}},
    "availability": {"given": {"availability": kvib.EstimatedRate()}},
    "true response": {"response": 0.9},
    "true availability": {"availability": 0.9},
}


@pytest.mark.parametrize("differs", OTHERS)
def test_checkpoints_of_another_run(tmp_path, differs):
    list(new().run(rounds=2, folder=tmp_path))
    other = new(**OTHERS[differs])
    before = outcome(other)
    said = {"data": "task|data", "weights": "task|weights"}.get(differs, differs)
    with pytest.raises(ValueError, match=f"is of another run: .*({said}).* differ; use another"):
        list(other.run(rounds=3, folder=tmp_path))
    assert outcome(other) == before


def test_a_run_with_stragglers_is_not_one_without(tmp_path):
    list(new(response=1 - np.arange(N) / 20, given={"response": 0.5}).run(2, folder=tmp_path))
    with pytest.raises(ValueError, match="is of another run: true response differ"):
        list(new(response=1.0, given={"response": 0.5}).run(3, folder=tmp_path))


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path):
    """It was written by `new().run(rounds=4)` of that version."""
    for folder in sorted(FIXTURES.glob("*/simulation")):
        shutil.copytree(folder, tmp_path / folder.parent.name)
        run = new()
        assert [r.round for r in run.run(rounds=6, folder=tmp_path / folder.parent.name)] == [4, 5]
        first, *_, last = run.records
        assert first.ids.tolist() == [0, 5, 7, 10]
        assert math.isnan(first.answered)
        assert last.answered == last.clients
        assert run.records[3].sampling_cost == pytest.approx(0.012747987, rel=1e-4)


def test_learned_rates_are_not_another_run(tmp_path):
    given = {"response": kvib.EstimatedRate(), "cool_down": 1, "variables": np.ones((N, 1))}
    list(new(given=given).run(rounds=3, folder=tmp_path))
    assert len(list(new(given=given).run(rounds=5, folder=tmp_path))) == 2


def test_a_journal_is_not_turned_back(tmp_path):
    task = small_task()
    with kvib.journalled(tmp_path / "j", kvib.KVib(), task.weights, 4) as sampler:
        run = Simulation(task, LinearEngine(task, LOCAL), sampler, LOCAL)
        with pytest.raises(
            ValueError, match=r"Journalled sampler keeps a file of its own.* no fold"
        ):
            next(run.run(rounds=2, folder=tmp_path / "run"))
        assert len(list(run.run(rounds=2))) == 2


def test_checkpoints_take_little_of_the_time(tmp_path, monkeypatch):
    """One that took 1/8 s is not followed by another within 20/8, whatever was asked for."""
    now, saved, run = [0.0], [], new()
    monkeypatch.setattr("kvib.sim.simulation.time.monotonic", lambda: now[0])

    def save(path):
        saved.append(len(run.records))
        now[0] += 0.125

    monkeypatch.setattr(run, "save", save)
    for _ in run.run(rounds=100, folder=tmp_path, checkpoint_seconds=0.5):
        now[0] += 0.125
    assert saved == [5, 25, 45, 65, 85, 100]


def test_files_that_are_no_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.npz"
    list(new().run(rounds=2, folder=tmp_path))
    whole = path.read_bytes()
    for content in (b"hello", whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a whole kvib simulation file"):
            list(new().run(rounds=3, folder=tmp_path))
    kvib.Sampler(kvib.KVib(), [1, 2], 1).save(path)
    with pytest.raises(ValueError, match="a kvib sampler file, not a simulation file"):
        list(new().run(rounds=3, folder=tmp_path))


def same_but_tokens(a, b):
    """Two checkpoints; the sampler's token is in its header, whose checksum is in the file's."""
    assert a.files == b.files
    for name in set(a.files) - {"header", "sampler.header"}:
        assert a[name].tobytes() == b[name].tobytes(), name
    for name, kind in (("header", "simulation"), ("sampler.header", "sampler")):
        said, other = (storage.about(file[name], kind) for file in (a, b))
        assert {**said, "token": ""} == {**other, "token": ""}


def test_checkpoints_hold_no_clock(tmp_path):
    """Two runs leave the same bytes but for the sampler's token; timings are beside."""
    for name in "ab":
        list(new().run(rounds=3, folder=tmp_path / name))
    with (
        np.load(tmp_path / "a" / "checkpoint.npz") as a,
        np.load(tmp_path / "b" / "checkpoint.npz") as b,
    ):
        same_but_tokens(a, b)
    with np.load(tmp_path / "a" / "timings.npz") as file:
        assert set(file.files) == {"evaluate", "exact", "draw", "train", "update"}
        assert all(len(file[name]) == 3 for name in file.files)
    assert sorted(os.listdir(tmp_path / "a")) == ["checkpoint.npz", "timings.npz"]


@pytest.mark.parametrize("damage", ["lost", "older", "broken"])
def test_timings_may_be_lost(tmp_path, damage):
    """Killed between the two files, timings are behind: their rounds must not shift."""
    list(new().run(rounds=2, folder=tmp_path))
    timings = tmp_path / "timings.npz"
    old = timings.read_bytes()
    list(new().run(rounds=4, folder=tmp_path))
    if damage == "older":
        timings.write_bytes(old)
    elif damage == "broken":
        timings.write_bytes(old[:100])
    else:
        timings.unlink()
    simulation = new()
    list(simulation.run(rounds=6, folder=tmp_path))
    assert len(simulation.seconds) == 6
    assert all(np.isfinite(list(laps.values())).all() for laps in simulation.seconds[4:])


CHILD = """
import sys
import kvib
from kvib.sim import LinearEngine, LocalSGD, ServerSGD, Simulation, synthetic

task, local = synthetic(clients=30), LocalSGD(0.02, batch_size=64)
sampler = kvib.Sampler(
    kvib.KVib(rounds=80), task.weights, 5, kvib.pivotal, seed=3, response=0.7, availability=0.9
)
simulation = Simulation(
    task, LinearEngine(task, local, threads=2), sampler, local, ServerSGD(momentum=0.5),
    exact_every=5, train_loss_every=5,
)
print("ready", flush=True)
for record in simulation.run(80, sys.argv[1], checkpoint_seconds=0):
    print(record.round, flush=True)
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHILD, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_killed_twenty_times(tmp_path):
    """SIGKILL at random points, of a round or of a save; each start continues the last."""
    with start(tmp_path / "straight") as straight:
        straight.stdout.read()
    assert straight.returncode == 0
    rng, folder, kills, played = random.Random(0), tmp_path / "killed", 0, []
    while kills < 20:
        with start(folder) as child:
            assert child.stdout.readline() == "ready\n"
            for _ in range(rng.randint(0, 3)):  # so few that 20 kills fit into 80 rounds
                played.append(int(child.stdout.readline()))
            time.sleep(rng.random() * 0.02)
            child.send_signal(signal.SIGKILL)
            played += [int(line) for line in child.stdout.read().split()]
        assert child.returncode == -signal.SIGKILL
        kills += 1
    with start(folder) as child:
        played += [int(line) for line in child.stdout.read().split()[1:]]
    assert child.returncode == 0
    assert played[-1] == 79
    with (
        np.load(tmp_path / "straight" / "checkpoint.npz") as a,
        np.load(folder / "checkpoint.npz") as b,
    ):
        same_but_tokens(a, b)
        assert len(b["records.round"]) == 80

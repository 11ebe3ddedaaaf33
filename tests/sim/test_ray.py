"""The Ray engine: the same run as in process; workers and nodes that die are silent."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest

import kvib
from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic
from kvib.sim.engines import ray_engine
from kvib.sim.engines.engine import SLOWLY, MemoryShortError, NoWorkerError, Summed
from kvib.sim.engines.place import Place
from kvib.sim.engines.ray_engine import RayEngine, Workers, _Actor, _LostError, _Worker
from kvib.sim.full_round import full_round
from kvib.sim.local import local_batches
from kvib.sim.stragglers import Stragglers
from kvib.sim.training import Training

LOCAL = LocalSGD(0.02, batch_size=64)
TASK = synthetic()


def simulation(engine, coefficients=kvib.unbiased, exact_every=0, **options):
    sampler = kvib.Sampler(kvib.KVib(rounds=20), TASK.weights, 10, seed=3, **options)
    how = {"coefficients": coefficients, "exact_every": exact_every}
    return Simulation(TASK, engine, sampler, LOCAL, seed=1, evaluate_every=2, **how)


# Without Ray


class Forgetful(LinearEngine):
    """In process, but some clients never answer."""

    silent, remote = 3, True

    def answers(self, model, batches):
        came = np.arange(len(batches.steps)) % self.silent != 0
        return came, self.updates(model, batches.part(np.flatnonzero(came)))

    def summed(self, model, batches, coefficients):
        came, updates = self.answers(model, batches)
        norms = np.full(len(came), math.nan)
        norms[came] = self.norms(updates)
        return Summed(norms, self.combine(coefficients[came], updates))


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("coefficients", [kvib.unbiased, kvib.self_normalised])
def test_silent_clients_with_and_without_sums(coefficients):
    """A guard wants to see every update, a plain sampler only their sum: the same round."""
    runs = [
        simulation(Forgetful(TASK, LOCAL), coefficients, guard=guard)
        for guard in (None, kvib.Guard(1e9))
    ]
    for t in range(3):
        alike = simulation(LinearEngine(TASK, LOCAL)).sampler  # draws as these two
        for run in runs[0].records:
            alike.update(alike.draw(), run.norms)
        model, cohort = runs[0].model, alike.draw()
        a, b = (run.round() for run in runs)
        assert a.ids.tolist() == b.ids.tolist() == cohort.ids.tolist()
        assert np.isnan(a.norms).tolist() == np.isnan(b.norms).tolist()
        assert np.isnan(a.norms).any()
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-6)
        assert a.step_norm == pytest.approx(b.step_norm, rel=1e-5)
        updates = LinearEngine(TASK, LOCAL).updates(
            model, local_batches(TASK.train, cohort.ids, LOCAL, seed=1, round=t)
        )
        heard = [None if np.isnan(n) else u for n, u in zip(a.norms, updates, strict=True)]
        wanted = kvib.estimate(cohort, heard, coefficients)
        assert a.step_norm == pytest.approx(np.linalg.norm(wanted), rel=1e-5)
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-5, atol=1e-7)


class Far(LinearEngine):
    """In process, but only sums come back; clients of the first calls are lost."""

    remote, losing = True, 0

    def summed(self, model, batches, coefficients):
        norms, total = super().summed(model, batches, coefficients)
        if self.losing:
            self.losing -= 1
            lost = batches.part(np.array([0]))
            total = total - coefficients[0] * self.updates(model, lost)[0]
            norms[0] = math.nan
        return Summed(norms, total)


def everybody(run, t):
    """What exact metrics of a round are made from."""
    sampler, training = run.sampler, Training(run.task, run.engine, run.local, run.seed)
    rates, waiting = sampler.state.rates, sampler.state.cool_down.ids
    stakes = Stragglers(len(sampler), rates, None, None).stakes(rates, waiting, None)
    return full_round(training, run.model, t, sampler.weights, stakes, sampler.state.memory)


@pytest.mark.filterwarnings("ignore:.*did not answer")
@pytest.mark.parametrize("estimator", [None, kvib.Difference()])
def test_exact_metrics_of_clients_far_away(estimator):
    """Also with a memory, and where some are lost and trained again."""
    far, near = Far(TASK, LOCAL), LinearEngine(TASK, LOCAL)
    runs = [simulation(e, exact_every=1, estimator=estimator) for e in (far, near)]
    for t in range(3):
        far.losing = t if estimator is None else 0
        a, b = (everybody(run, t) for run in runs)
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-5)
        assert a.total == pytest.approx(b.total, rel=1e-5)
        a, b = (run.round() for run in runs)
        assert a.variance == pytest.approx(b.variance, rel=1e-5)


def test_clients_that_are_lost_again_and_again_did_not_diverge():
    far = Far(TASK, LOCAL)
    far.losing = 99
    with pytest.raises(NoWorkerError, match="client 0 was lost 5 times in round 0, and exact"):
        simulation(far, exact_every=1).round()


def test_a_worker_trains_as_many_together_as_fit():
    class Small(LinearEngine):
        together = 0

        def updates(self, model, batches):
            self.together = max(self.together, len(batches.steps))
            return super().updates(model, batches)

    worker = _Worker(TASK, LOCAL, Small)
    worker.engine.chunk = 3
    model, batches = worker.initial(0), local_batches(TASK.train, np.arange(10), LOCAL, 0, 0)
    found = worker.updates(model, batches)
    assert worker.engine.together == 3
    np.testing.assert_allclose(found, LinearEngine(TASK, LOCAL).updates(model, batches), rtol=1e-6)


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:1"])
def test_devices_of_workers(device):
    with pytest.raises(ValueError, match=f"device '{device}': workers of Ray are on cpu, or"):
        Workers.at(Place(device))
    assert Workers.at(Place("cuda")).gpus == 1
    assert Workers.at(Place()) == Workers.at(Place("cpu")) == Workers()


def test_parts_of_batches():
    ids = np.array([3, 9, 20, 41])
    whole = local_batches(TASK.train, ids, LOCAL, 0, 5)
    for at in ([0], [1, 3], [0, 1, 2, 3], [2, 0], []):
        at = np.array(at, dtype=np.int64)
        part, wanted = whole.part(at), local_batches(TASK.train, ids[at], LOCAL, 0, 5)
        for found, array in zip(part, wanted, strict=True):
            assert found.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "workers: 0 is not a positive number"),
        ({"cpus": -1}, "cpus=-1 is not a number ≥ 0"),
        ({"cpus": 0}, "a worker needs cpus or gpus"),
        ({"patience": 0}, "patience=0 is not a positive number of seconds"),
    ],
)
def test_workers_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Workers(**options)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere:port"])
def test_no_cluster_at_an_address(address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=f"no Ray cluster at '{address}' .*; start one with `ray"):
        RayEngine(TASK, LOCAL, address)


# With a cluster: two nodes on one machine

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """One for all tests, since it takes ten seconds: leave two nodes, and nobody on them."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
    room = {"num_cpus": 2, "object_store_memory": 100_000_000}
    made = Cluster(
        initialize_head=True,
        head_node_args={**room, "num_cpus": 0, "_system_config": quick, "include_dashboard": False},
    )
    for _ in range(2):
        made.add_node(**room)
    ray.init(address=made.address, log_to_driver=False, logging_level=40)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
    yield made
    ray.shutdown()
    made.shutdown()


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*did not answer")


def pid_of(engine, k=0):
    """The process of a worker."""
    ray, handle = engine._ray, engine._actors[k].handle
    return ray.get(handle.__ray_call__.remote(lambda _: os.getpid()))


def slowly(task, local):
    """A worker that takes a third of a second for its clients."""

    class Slow(LinearEngine):
        def updates(self, model, batches):
            time.sleep(0.3)
            return super().updates(model, batches)

    return Slow(task, local, 1)


@slow
def test_without_an_address_it_leaves_other_clusters_alone(cluster):
    code = (
        "from kvib.sim.engines.ray_engine import Workers, connected\n"
        "ray = connected(None, Workers(count=1))\n"
        "print(ray.get_runtime_context().gcs_address, ray.cluster_resources()['CPU'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    address, cpus = done.stdout.split()
    assert address != cluster.address
    assert float(cpus) == 1


@slow
def test_the_same_run_as_in_process(cluster):
    engine = RayEngine(TASK, LOCAL)
    ours, theirs = simulation(engine), simulation(LinearEngine(TASK, LOCAL))
    for a, b in zip(ours.run(6), theirs.run(6), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-6)
        for name in ("loss", "accuracy", "estimated_variance", "step_norm"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-5, nan_ok=True)
    np.testing.assert_allclose(ours.model, theirs.model, rtol=1e-5, atol=1e-7)
    assert len(engine._actors) == 4
    assert sorted(Counter(actor.node for actor in engine._actors).values()) == [2, 2]
    assert engine.lost == []
    # Samplers that look at every update.
    guarded = simulation(engine, guard=kvib.Guard(1e9))
    alone = simulation(LinearEngine(TASK, LOCAL), guard=kvib.Guard(1e9))
    for a, b in zip(guarded.run(3), alone.run(3), strict=True):
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-6)
    # Exact metrics, for which everybody trains.
    exact, wanted = (simulation(e) for e in (engine, LinearEngine(TASK, LOCAL)))
    exact.exact_every = wanted.exact_every = 1
    assert exact.round().variance == pytest.approx(wanted.round().variance, rel=1e-5)
    engine.close()


@slow
def test_a_worker_and_then_a_node_die(cluster):
    """In mid-round: their clients are silent, the run finishes, new workers take over."""
    engine = RayEngine(TASK, LOCAL, make=slowly)
    run = simulation(engine)
    run.round()
    assert len(engine._actors) == 4
    victim = pid_of(engine)
    thread = threading.Timer(0.1, os.kill, (victim, signal.SIGKILL))
    thread.start()
    silent = np.isnan(run.round().norms)
    thread.join()
    assert 0 < silent.sum() < len(silent)
    assert not np.isnan(run.round().norms).any()  # another worker came
    assert len(engine._actors) == 4

    node = cluster.worker_nodes.copy().pop()
    thread = threading.Timer(0.1, lambda: cluster.remove_node(node, allow_graceful=False))
    thread.start()
    silent = np.isnan(run.round().norms)
    thread.join()
    assert 0 < silent.sum() < len(silent)
    for _ in range(3):
        record = run.round()
    assert not np.isnan(record.norms).any()
    assert len(engine._actors) == 2
    assert math.isfinite(record.step_norm)
    # A node that comes is used.
    cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
    run.round()
    assert len(engine._actors) == 4
    assert {why.split(" ")[0] for _, why in engine.lost} == {"died"}
    engine.close()


def stuck(task, local):
    """A worker that hangs over client 7."""

    class Stuck(LinearEngine):
        def updates(self, model, batches):
            first = self.task.train.owner(int(batches.samples[0]))
            time.sleep(30 if first == self.task.train.owner(int(slow_sample)) else 0)
            return super().updates(model, batches)

    slow_sample = task.train.starts[7]
    return Stuck(task, local, 1)


@slow
def test_whoever_is_too_slow_is_silent(cluster):
    engine = RayEngine(TASK, LOCAL, workers=Workers(count=2, patience=3.0), make=stuck)
    model = engine.initial(0)
    ids = np.array([7, 8])
    batches = local_batches(TASK.train, ids, LOCAL, 0, 0)
    begin = time.monotonic()
    norms, total = engine.summed(model, batches, np.ones(2))
    assert time.monotonic() - begin < 10
    assert np.isnan(norms).tolist() == [True, False]
    assert np.linalg.norm(total) == pytest.approx(norms[1], rel=1e-5)
    assert engine.lost == [(1, "too slow")]
    engine.close()


def dying(times, flags):
    """Workers that die over the first calls, as many as these."""

    def make(task, local):
        class Dying(LinearEngine):
            def updates(self, model, batches):
                if len(os.listdir(flags)) < times:
                    (flags / str(time.monotonic_ns())).touch()
                    os._exit(1)
                return super().updates(model, batches)

        return Dying(task, local, 1)

    return make


@slow
@pytest.mark.parametrize("method", ["summed", "answers"])
def test_a_round_without_answers_is_begun_again(cluster, tmp_path, method):
    batches = local_batches(TASK.train, np.array([7, 8]), LOCAL, 0, 0)
    more = (np.ones(2),) if method == "summed" else ()
    for times in (1, 2):
        flags = tmp_path / str(times)
        flags.mkdir()
        engine = RayEngine(TASK, LOCAL, workers=Workers(count=1), make=dying(times, flags))
        model = engine.initial(0)
        if times == 1:
            found = getattr(engine, method)(model, batches, *more)[0]
            assert np.all(found > 0)
        else:
            with pytest.raises(NoWorkerError, match=r"no worker answered, again and again: died"):
                getattr(engine, method)(model, batches, *more)
        engine.close()


@slow
def test_cores_that_others_hold(cluster, monkeypatch):
    """Workers that cannot start get no clients; when they can, they do."""
    import ray

    @ray.remote(num_cpus=1)
    class Holder:
        def here(self):
            return True

    monkeypatch.setattr(ray_engine, "STARTING", 10.0)
    holder = Holder.remote()
    ray.get(holder.here.remote())
    engine = RayEngine(TASK, LOCAL)
    run = simulation(engine)
    begin = time.monotonic()
    for _ in range(3):
        assert not np.isnan(run.round().norms).any()
    assert time.monotonic() - begin < 40  # waited once
    assert len(engine._actors) == 4
    assert len(engine._gather()) == 3
    ray.kill(holder)
    deadline = time.monotonic() + 30
    while len(engine._gather()) < 4 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(engine._gather()) == 4
    engine.close()


@slow
def test_what_a_worker_says(cluster):
    """Its warnings and its errors are told here, in its own words."""

    def slowly(task, local):
        engine = LinearEngine(task, local, 1)
        engine.slow = "no graphs here"
        return engine

    engine = RayEngine(TASK, LOCAL, workers=Workers(count=1), make=slowly)
    run = simulation(engine)
    with pytest.warns(UserWarning, match=f"{SLOWLY}: no graphs here"):
        run.round()
    run.round()
    engine.close()

    def short(task, local):
        class Short(LinearEngine):
            def updates(self, model, batches):
                raise MemoryShortError("cuda has no room")

        return Short(task, local, 1)

    engine = RayEngine(TASK, LOCAL, workers=Workers(count=1), make=short)
    with pytest.raises(MemoryShortError, match=r"^cuda has no room$"):
        simulation(engine).round()
    engine.close()


@slow
def test_the_worker_that_adds_dies(cluster):
    """What the others of its node found still comes, and another takes its place."""
    engine = RayEngine(TASK, LOCAL, workers=Workers(count=4))
    model, ids = engine.initial(0), np.arange(20)
    batches = local_batches(TASK.train, ids, LOCAL, 0, 0)
    real, failed = engine._get, []

    def losing(ref, seconds=None):
        found = real(ref, seconds)
        sums = isinstance(found, np.ndarray) and found.dtype == np.float64 and found.size > 100
        if sums and not failed:
            failed.append(True)
            raise _LostError("died")
        return found

    engine._get = losing
    before = set(map(id, engine._gather()))
    norms, total = engine.summed(model, batches, np.ones(20))
    assert failed
    assert not np.isnan(norms).any()
    wanted = LinearEngine(TASK, LOCAL).summed(model, batches, np.ones(20))
    np.testing.assert_allclose(total, wanted.total, rtol=1e-4, atol=1e-6)
    assert len(before - set(map(id, engine._actors))) == 1
    assert all(isinstance(actor, _Actor) for actor in engine._actors)
    engine.close()


@slow
def test_an_experiment_on_a_cluster(cluster, tmp_path):
    """`kvib run` and `kvib simulate`, each a process that joins it."""
    kvib_command = os.path.join(os.path.dirname(sys.executable), "kvib")
    ours = {**os.environ, "COLUMNS": "200"}
    for words in (
        ["simulate", "synthetic", "--rounds", "3", "--out", str(tmp_path / "one"),
         "--engine", "ray"],
        ["run", "experiments/synthetic.toml", "--seeds", "0", "--set", "rounds=10", "--set",
         "engine=ray", "--set", "budgets=[10]", "--out", str(tmp_path), "--patience", "60"],
    ):  # fmt: skip
        done = subprocess.run(
            [kvib_command, *words, "--address", cluster.address],
            capture_output=True, text=True, timeout=300, env=ours,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "finished" in done.stdout or "runs of 10 rounds" in done.stdout


@slow
def test_selectors_on_a_cluster(cluster):
    """Losses of candidates, and sketches of updates, as in process."""
    far, near = RayEngine(TASK, LOCAL, workers=Workers(count=2)), LinearEngine(TASK, LOCAL)
    for rule in (kvib.PowerOfChoice(candidates=20), kvib.DivFL()):
        runs = [
            Simulation(TASK, engine, kvib.Selector(rule, TASK.weights, 10, seed=3), LOCAL, seed=1)
            for engine in (far, near)
        ]
        for a, b in zip(*(run.run(rounds=4) for run in runs), strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert a.asked == b.asked
            assert a.step_norm == pytest.approx(b.step_norm, rel=1e-4)
    far.close()


@slow
def test_torch_models_train_alike(cluster):
    """A language model on two workers, and in process."""
    pytest.importorskip("transformers")
    from kvib.sim.engines.torch_engine import TorchEngine
    from tiny_text import language

    task, local = language(), LocalSGD(0.2, batch_size=4)
    engines = (RayEngine(task, local, workers=Workers(count=2)), TorchEngine(task, local))
    records = []
    for engine in engines:
        sampler = kvib.Sampler(kvib.Forecast(), task.weights, 5, kvib.independent, seed=2)
        run = Simulation(task, engine, sampler, local, seed=1)
        records.append([*run.run(3)])
    for a, b in zip(*records, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-4)
        assert (a.loss, a.step_norm) == pytest.approx((b.loss, b.step_norm), rel=1e-4)
    engines[0].close()


@slow
def test_a_client_that_diverges_is_not_a_silent_one(cluster):
    local = LocalSGD(1e38, batch_size=64)
    engine = RayEngine(TASK, local, workers=Workers(count=1))
    sampler = kvib.Sampler(kvib.KVib(rounds=20), TASK.weights, 10)
    with pytest.raises(kvib.sim.DivergedError, match=r"client \d+ diverged in round 0"):
        Simulation(TASK, engine, sampler, local).round()
    engine.close()


@slow
def test_no_room_and_workers_that_never_live(cluster):
    with pytest.raises(NoWorkerError, match="no node with room for a worker of 9 CPUs and 0 GPUs"):
        RayEngine(TASK, LOCAL, workers=Workers(cpus=9)).initial(0)

    def broken(task, local):
        raise RuntimeError("no CUDA here")

    with pytest.raises(
        NoWorkerError, match=r"no worker answers, again and again(.|\n)*no CUDA here"
    ):
        RayEngine(TASK, LOCAL, workers=Workers(count=1), make=broken).initial(0)


# What it costs


def test_the_load_is_read_before_the_rounds(monkeypatch):
    """Afterwards it is mostly the benchmark's own."""
    pytest.importorskip("ray")
    import cluster

    seen = []
    monkeypatch.setattr(cluster.os, "getloadavg", lambda: seen.append("load") or (0.0, 0.0, 0.0))
    monkeypatch.setattr(cluster, "task", lambda _: seen.append("task") or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cluster.main([])
    assert seen == ["load", "task"]

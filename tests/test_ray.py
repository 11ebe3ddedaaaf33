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
from kvib.sim.engines.engine import Summed
from kvib.sim.engines.ray_engine import NobodyError, RayEngine, Workers
from kvib.sim.local import plan

LOCAL = LocalSGD(0.02, batch_size=64)
TASK = synthetic()


def simulation(engine, **options):
    sampler = kvib.Sampler(kvib.KVib(rounds=20), TASK.weights, 10, seed=3, **options)
    return Simulation(TASK, engine, sampler, LOCAL, seed=1, evaluate_every=2)


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
def test_silent_clients_with_and_without_sums():
    """A guard wants to see every update, a plain sampler only their sum: the same round."""
    runs = [simulation(Forgetful(TASK, LOCAL), guard=guard) for guard in (None, kvib.Guard(1e9))]
    summed, single = ([run.round() for _ in range(3)] for run in runs)
    for a, b in zip(summed, single, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert np.isnan(a.norms).tolist() == np.isnan(b.norms).tolist()
        assert np.isnan(a.norms).any()
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-6)
        assert a.step_norm == pytest.approx(b.step_norm, rel=1e-5)
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-5, atol=1e-7)


def test_parts_of_batches():
    ids = np.array([3, 9, 20, 41])
    whole = plan(TASK.train, ids, LOCAL, 0, 5)
    for at in ([0], [1, 3], [0, 1, 2, 3], [2, 0], []):
        at = np.array(at, dtype=np.int64)
        part, wanted = whole.part(at), plan(TASK.train, ids[at], LOCAL, 0, 5)
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


@pytest.fixture
def cluster():
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
    batches = plan(TASK.train, ids, LOCAL, 0, 0)
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
def test_a_round_in_which_nobody_answers_is_begun_again(cluster, tmp_path, method):
    batches = plan(TASK.train, np.array([7, 8]), LOCAL, 0, 0)
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
            with pytest.raises(NobodyError, match=r"no worker answered, again and again: died"):
                getattr(engine, method)(model, batches, *more)
        engine.close()


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
    with pytest.raises(NobodyError, match="no node with room for a worker of 9 CPUs and 0 GPUs"):
        RayEngine(TASK, LOCAL, workers=Workers(cpus=9)).initial(0)

    def broken(task, local):
        raise RuntimeError("no CUDA here")

    with pytest.raises(NobodyError, match=r"workers die again and again(.|\n)*no CUDA here"):
        RayEngine(TASK, LOCAL, workers=Workers(count=1), make=broken).initial(0)

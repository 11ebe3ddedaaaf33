"""Bits of compiled code hang on the input alone: not on what a cache holds, not on threads."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

import kvib
from kvib.sim import ClientData, LinearEngine, LocalSGD, Record, Simulation, SoftmaxRegression, Task
from kvib.sim.engines import linear_kernels
from kvib.sim.local import local_batches

WIDTHS = [(1, 2), (5, 3), (33, 10), (60, 10), (200, 7)]
"""Features and classes: parts of a vector, whole ones, many."""

CHILD = """
import json, sys, test_bits
print(json.dumps(test_bits.digests(*map(int, sys.argv[1:]))))
"""


def digests(*threads):
    """What this process computes: of every width on as many threads, and of every kind of draw."""
    found = {f"{w} on {n} threads": trained(*w, n) for n in threads for w in WIDTHS} | dict(drawn())
    return {
        name: hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()
        for name, arrays in found.items()
    }


def a_task(features, classes, clients=9):
    rng = np.random.default_rng(features)
    sizes = rng.integers(1, 70, clients)
    x = rng.normal(size=(sizes.sum(), features)).astype(np.float32)
    y = rng.integers(0, classes, len(x))
    model = SoftmaxRegression(features, classes)
    return Task("bits", ClientData(x, y, sizes), (x[:150], y[:150]), model, classes)


def trained(features, classes, threads):
    """Updates, losses, inner products of all clients."""
    task, local = a_task(features, classes), LocalSGD(0.1, batch_size=10, epochs=2, prox=0.3)
    engine = LinearEngine(task, local, threads)
    model = np.random.default_rng(1).normal(size=(features + 1) * classes).astype(np.float32)
    updates = engine.updates(model, local_batches(task.train, np.arange(len(task)), local, 0, 0))
    losses = [engine.evaluate(model, split) for split in ("train", "test")]
    return updates, np.array(losses), engine.gram(updates), engine.gram(updates, updates[:3])


def drawn():
    """Every procedure, and probabilities after rounds of an index."""
    rng = np.random.default_rng(5)
    weights, points = rng.lognormal(0, 1, 40), rng.normal(size=(40, 3))
    p = kvib.waterfill(weights, 8)
    for procedure in (kvib.pivotal, kvib.systematic, kvib.conditional_poisson, kvib.ordered):
        yield procedure.name, [procedure(p, np.random.default_rng(s)).ids for s in range(20)]
    for procedure in (kvib.balanced, kvib.neighbours):
        sampler = kvib.Sampler(kvib.KVib(), weights, 8, procedure, variables=points)
        yield procedure.name, [sampler.draw().ids for _ in range(20)]
    for procedure in (kvib.independent, kvib.ordered):
        sampler = kvib.Sampler(kvib.KVib(), weights, 8, procedure, seed=2)
        for _ in range(20):
            cohort = sampler.draw()
            sampler.update(cohort, rng.lognormal(0, 1, len(cohort)))
        yield f"{procedure.name}, an index", [cohort.ids, sampler.probabilities()]


def child(cache, *threads, **environment):
    """The digests of a process of its own that keeps compiled code in `cache`."""
    paths = [os.path.dirname(__file__), *sys.path]
    environment |= {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, threads)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_caches_do_not_matter(tmp_path):
    """Cold, warm, without every second function, of one thread and then of several."""
    wanted, whole = digests(1, 3), tmp_path / "whole"
    for _ in ("cold", "warm"):
        assert child(whole, 1, 3) == wanted
    names = {path.name.partition(".")[2].partition("-")[0] for path in whole.rglob("*.nbi")}
    assert {"train", "train_shares", "scores", "evaluate_shares"} <= names
    for half in (0, 1):
        cache = tmp_path / f"half {half}"
        shutil.copytree(whole, cache)
        for path in sorted(cache.rglob("*.nbi"))[half::2]:
            path.unlink()
        assert child(cache, 3, 1) == wanted
    for threads in (1, 3):
        assert child(tmp_path / "grown", threads).items() <= wanted.items()


@pytest.mark.slow
def test_vectors_do_not_matter(tmp_path):
    """Code for a CPU that has the narrowest vectors and no fused multiply-add."""
    assert child(tmp_path, 1, 3, NUMBA_CPU_NAME="generic") == digests(1, 3)


@pytest.mark.parametrize("width", WIDTHS)
def test_threads_do_not_matter(width):
    one, *others = (trained(*width, threads) for threads in (1, 2, 3, 8))
    for other in others:
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()


RUN = """
import sys, kvib, test_bits
sys.stdout.buffer.write(test_bits.played(int(sys.argv[1])))
"""


def played(threads):
    """All records of a run of exactly K clients with exact metrics, as bytes."""
    task, local = a_task(60, 10, clients=100), LocalSGD(0.1, batch_size=16)
    sampler = kvib.Sampler(kvib.Forecast(), task.weights, 12, kvib.pivotal)
    engine = LinearEngine(task, local, threads)
    simulation = Simulation(task, engine, sampler, local, exact_every=1, train_loss_every=1)
    names = [field.name for field in fields(Record)]
    records = simulation.run(rounds=4)
    return b"".join(np.asarray(getattr(r, name)).tobytes() for r in records for name in names)


def test_threads_of_all_libraries_do_not_change_a_record():
    """Those of a BLAS too, which a run has to share with others at once."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    paths = [os.path.dirname(__file__), *sys.path]
    found = []
    for threads in ("1", "2"):
        environment = {**dict.fromkeys(names, threads), "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [sys.executable, "-c", RUN, threads],
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
        )
        found.append(done.stdout)
    assert len(found[0]) > 1000
    assert found[0] == found[1]


def test_the_exponential():
    """Within two units in the last place, and what cannot be a number is none."""

    def exponential(x):
        return np.array([linear_kernels.exponential(each) for each in x])

    x = np.concatenate([np.linspace(-87, 0, 50_001), -np.logspace(-9, 1, 1_000)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exponential(x) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    one, *low, none = exponential(np.array([0, -87, -88, -1e30, -np.inf, np.nan], np.float32))
    assert one == 1
    assert low == [low[0]] * 4
    assert np.isnan(none)

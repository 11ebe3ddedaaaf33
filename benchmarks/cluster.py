"""Measure the cost of Ray: the same rounds in process and on actors, one worker against two.

python benchmarks/cluster.py --out results

A round is about one second of local training (an MLP, one core). Overhead is the time of a round
beyond the local training that its slowest worker measures. Efficiency is the time of one worker
over twice the time of two. It is measured by the wall clock, and by the time that the busiest
worker had its core. If other processes use the cores, only the second number is meaningful.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import nn

import kvib
from kvib.sim import ClientData, LocalSGD, Task
from kvib.sim.engines.ray_engine import RayEngine, Workers
from kvib.sim.engines.torch_engine import TorchEngine
from kvib.sim.local import local_batches

CLIENTS, SAMPLES, FEATURES, CLASSES = 40, 64, 64, 10


def network(width: int) -> nn.Module:
    """An MLP with one hidden layer of this width."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


class Network:
    """A function that makes an MLP. It is a class so that workers can make it too."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self) -> nn.Module:
        return network(self.width)


def task(width: int) -> Task:
    """A task with random data and an MLP of this width."""
    rng = np.random.default_rng(0)
    n = CLIENTS * SAMPLES
    x = rng.normal(size=(n + 100, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, n + 100)
    train = ClientData(x[:n], y[:n], np.full(CLIENTS, SAMPLES))
    return Task("random", train, (x[n:], y[n:]), Network(width), CLASSES)


class Timed(TorchEngine):
    """An engine that keeps the time of its last local training."""

    def summed(self, *arguments: Any) -> Any:
        """Train as `TorchEngine` does, and keep wall-clock and process time."""
        begin, worked = time.perf_counter(), time.process_time()
        found = super().summed(*arguments)
        self.taken = time.perf_counter() - begin, time.process_time() - worked
        return found


def make(given: Task, local: LocalSGD) -> Any:
    """An engine of a worker, with one thread."""
    torch.set_num_threads(1)
    return Timed(given, local)


def rounds(engine: Any, local: LocalSGD, model: Any, count: int) -> tuple[list[float], list[Any]]:
    """The seconds and the result of each round. The first round is not counted."""
    ids, factors, times, found = np.arange(20), np.full(20, 0.05), [], []
    for t in range(count + 1):
        batches = local_batches(engine.task.train, ids, local, 0, t)
        begin = time.perf_counter()
        found.append(engine.summed(model, batches, factors))
        times.append(time.perf_counter() - begin)
    return times[1:], found[1:]


def busiest(engine: RayEngine) -> tuple[float, float]:
    """The most seconds of local training of a worker, by the wall clock and of its core."""
    calls = [a.handle.__ray_call__.remote(lambda w: w.engine.taken) for a in engine._actors]
    wall, core = np.max(ray.get(calls), axis=0)
    return float(wall), float(core)


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Measure, and write cluster.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--rounds", type=int, default=5, help="Number of rounds.")
    add("--width", type=int, default=2048, help="Width of the hidden layer.")
    add("--seconds", type=float, default=1.0, help="Seconds of a round in process.")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    given = task(options.width)
    once = LocalSGD(0.01, batch_size=16)
    alone = TorchEngine(given, once)
    taken = float(np.median(rounds(alone, once, alone.initial(0), 3)[0]))
    local = LocalSGD(0.01, batch_size=16, epochs=max(1, round(options.seconds / taken)))
    alone = TorchEngine(given, local)
    model = alone.initial(0)
    here, wanted = rounds(alone, local, model, options.rounds)
    rows: list[dict[str, Any]] = [{"engine": "in process", "round s": float(np.median(here))}]
    print(rows[-1], flush=True)
    for count in (1, 2):
        engine = RayEngine(given, local, workers=Workers(count=count), make=make)
        start = engine.initial(0)
        shares, times, cores, errors = [], [], [], []
        for t in range(options.rounds):
            batches = local_batches(given.train, np.arange(20), local, 0, t + 1)
            begin = time.perf_counter()
            total = engine.summed(start, batches, np.full(20, 0.05)).total
            times.append(time.perf_counter() - begin)
            wall, core = busiest(engine)
            shares.append(times[-1] / wall - 1)
            cores.append(core)
            exact = alone.to_numpy(wanted[t].total)
            errors.append(np.linalg.norm(total - exact) / np.linalg.norm(exact))
        rows.append(
            {
                "engine": f"Ray, {count} workers",
                "round s": float(np.median(times[1:])),
                "busiest worker, core s": float(np.median(cores[1:])),
                "overhead": float(np.median(shares[1:])),
                "error": float(max(errors)),
            }
        )
        print(rows[-1], flush=True)
        engine.close()
        ray.shutdown()
    for name, column in (("wall", "round s"), ("core", "busiest worker, core s")):
        rows[-1][f"efficiency, {name}"] = rows[1][column] / (2 * rows[2][column])
        print(f"from one worker to two, {name}: {rows[-1][f'efficiency, {name}']:.2f}")
    about = {
        "command": "python benchmarks/cluster.py",
        "parameters": len(model),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load before": load,
        "ray": ray.__version__,
        "torch": torch.__version__,
        "kvib": kvib.__version__,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    whole = {"environment": about, "results": rows}
    (options.out / "cluster.json").write_text(json.dumps(whole, indent=1) + "\n")
    return whole


if __name__ == "__main__":
    main()

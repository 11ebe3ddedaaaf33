"""Measure the simulator on one machine: exact metrics, memory, loading, number of clients.

KVIB_DATA=… python benchmarks/simulator.py    # writes benchmarks/results/simulator.json and .md
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

import kvib
from kvib.sim import (
    ClientData,
    LinearEngine,
    LocalSGD,
    Simulation,
    SoftmaxRegression,
    Task,
    synthetic,
)
from kvib.sim.femnist import femnist
from tables import Row, environment, publish

PAGE = resource.getpagesize()


def resident() -> float:
    """The MB that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def exact_run(rounds: int) -> list[Row]:
    """The time and memory of a run on Synthetic with exact metrics in every round."""
    task, local = synthetic(), LocalSGD(learning_rate=0.02, batch_size=64)
    sampler = kvib.Sampler(kvib.KVib(rounds=rounds), task.weights, budget=10)
    engine = LinearEngine(task, local)
    simulation = Simulation(task, engine, sampler, local, exact_every=1, train_loss_every=1)
    held, start = [], time.perf_counter()
    for record in simulation.run(rounds):
        if (record.round + 1) % (rounds // 5) == 0:
            held.append(resident())
    total = time.perf_counter() - start
    return [
        {
            "run": f"Synthetic, N = 100, K = 10, T = {rounds}, exact metrics every round",
            "seconds": total,
            "ms per round": 1e3 * total / rounds,
            "MB after each fifth": ", ".join(f"{mb:.0f}" for mb in held),
            "growth after the first fifth": held[-1] / held[0] - 1,
        }
    ]


def loading() -> list[Row]:
    """The time and memory of loading FEMNIST with 62 classes, by writer."""
    start = time.perf_counter()
    task = femnist()
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    samples = len(task.train.y)
    return [{"task": task.name, "clients": len(task), "samples": samples, "s": took, "MB": peak}]


def populations(sizes: tuple[int, ...]) -> list[Row]:
    """The time of a round of 50 clients out of more and more, each with 20 samples."""
    rows: list[Row] = []
    local = LocalSGD(learning_rate=0.02, batch_size=20)
    for N in sizes:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(20 * N, 10)).astype(np.float32), rng.integers(0, 3, 20 * N)
        task = Task("many", ClientData(x, y, np.full(N, 20)), (x[:100], y[:100]), _MODEL, 3)
        sampler = kvib.Sampler(kvib.Uniform(), np.ones(N), 50, kvib.without_replacement)
        simulation = Simulation(task, LinearEngine(task, local), sampler, local, evaluate_every=0)
        for _ in simulation.run(60):
            pass
        laps = simulation.seconds[10:]
        median = {name: 1e3 * float(np.median([lap[name] for lap in laps])) for name in laps[0]}
        rows.append({"N": N, "K": 50, "train ms": median["train"], "draw ms": median["draw"]})
    for row in rows:
        row["train / smallest N"] = row["train ms"] / rows[0]["train ms"]
    return rows


_MODEL = SoftmaxRegression(features=10, classes=3)


def alone(function: Callable[..., list[Row]], *arguments: object) -> list[Row]:
    """Call a function in a new process, so that peaks of memory are its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    """Measure, and write simulator.json and simulator.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add, sizes = parser.add_argument, [1_000, 10_000, 100_000]
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--rounds", type=int, default=500, help="Rounds with exact metrics.")
    add("--sizes", type=int, nargs="+", default=sizes, help="Numbers of clients.")
    options = parser.parse_args()
    console = Console()
    results = {
        "Exact metrics and memory": alone(exact_run, options.rounds),
        "Cost per round against the number of clients": alone(populations, options.sizes),
    }
    try:
        results["Loading"] = alone(loading)
    except ValueError as error:
        console.print(f"FEMNIST is left out: {error}", markup=False)
    publish(options.out / "simulator", environment(), results)


if __name__ == "__main__":
    main()

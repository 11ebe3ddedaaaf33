"""A round of a thousand clients among 10^4 to 10^8: its time must not grow with the population.

python benchmarks/scale.py --out benchmarks/results               # needs 16 GB and ten minutes
python benchmarks/scale.py --largest 6 --out /tmp/scale           # up to 10^6 clients
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import kvib
import tables
from core import seconds
from tables import Row

K = 1_000

SAMPLERS: dict[str, tuple[Any, kvib.Procedure]] = {
    "K-Vib": (kvib.KVib(mix=0.2), kvib.independent),
    "K-Vib, exactly K": (kvib.KVib(mix=0.2), kvib.ordered),
    "K-Vib, floor by size": (kvib.KVib(mix=0.2, by_weight=True), kvib.independent),
    "by size": (kvib.BySize(), kvib.independent),
    "Forecast": (kvib.Forecast(), kvib.independent),
}
HEAVY = ("Forecast",)
"""80 bytes per client: up to 10^7 here."""


def weights_of(N: int) -> np.ndarray:
    return np.random.default_rng(N).lognormal(0, 1.5, N)


def play(sampler: kvib.Sampler, rounds: int, seed: int = 0) -> list[float]:
    """Seconds of each round: draw, then update."""
    rng, times = np.random.default_rng(seed), []
    for _ in range(rounds):
        start = time.perf_counter()
        cohort = sampler.draw()
        drawn = time.perf_counter()
        norms = rng.lognormal(0, 1, len(cohort))
        heard = time.perf_counter()
        sampler.update(cohort, norms)
        times.append(drawn - start + time.perf_counter() - heard)
    return times


def held(sampler: kvib.Sampler) -> int:
    """Bytes of all arrays of a sampler."""
    index = sampler._urn.index
    assert index is not None
    buckets = [b for b in (index.main, index.by_weight) if b is not None]
    arrays = [sampler.population.raw, *(np.asarray(part) for part in sampler._learner.state)]
    arrays += [a for b in buckets for a in (b.order, b.place, b.start, b.sums)]
    arrays += [] if index.line is None else [index.line.tree.sums]
    return sum(a.nbytes for a in arrays)


def toss_all(sampler: kvib.Sampler) -> float:
    """The vectorised O(N) round on the same arrays: solve for all, toss a coin for each."""
    rng, N = np.random.default_rng(0), len(sampler)
    policy, state, weights = sampler.policy, sampler._learner.state, sampler.population.raw
    start = time.perf_counter()
    p = policy.expected(state, np.arange(N), sampler.round, K, 1.0, weights=weights)
    drawn = np.flatnonzero(rng.random(N) < p)
    assert abs(len(drawn) - K) < 10 * K**0.5
    return time.perf_counter() - start


def growth(largest: int, rounds: int) -> list[Row]:
    rows: list[Row] = []
    for name, (policy, procedure) in SAMPLERS.items():
        top = min(largest, 7) if name in HEAVY else largest
        for exponent in track(range(4, top + 1), name):
            N = 10**exponent
            weights = weights_of(N)
            start = time.perf_counter()
            sampler = kvib.Sampler(policy, weights, K, procedure, seed=1)
            built = time.perf_counter() - start
            del weights
            play(sampler, 20)  # the first rounds compile, and bring order into the caches
            times = play(sampler, rounds, seed=1)
            rows.append(
                {
                    "sampler": name,
                    "clients": f"10^{exponent}",
                    "round ms": 1e3 * statistics.median(times),
                    "mean ms": 1e3 * statistics.mean(times),
                    "slowest of 20 ms": 1e3 * statistics.quantiles(times, n=20)[-1],
                    "bytes per client": held(sampler) / N,
                    "built s": built,
                    "all coins s": toss_all(sampler),
                }
            )
            rows[-1]["all coins / round"] = 1e3 * rows[-1]["all coins s"] / rows[-1]["round ms"]
            del sampler
            gc.collect()
        reference = next(
            r["round ms"] for r in rows if r["sampler"] == name and r["clients"] == "10^5"
        )
        for row in rows:
            if row["sampler"] == name:
                row["round / that of 10^5"] = row["round ms"] / reference
    return rows


def with_keys(N: int) -> list[Row]:
    """Strings as keys: what they cost."""
    weights = weights_of(N)
    keys = [f"device-{i:012d}" for i in range(N)]
    start = time.perf_counter()
    sampler = kvib.Sampler(kvib.KVib(mix=0.2), weights, K, kvib.independent, keys=keys)
    built = time.perf_counter() - start
    play(sampler, 20)
    names = sampler.keys(sampler.draw().ids)

    def ask() -> None:
        for name in names:
            sampler.admit(name)

    asked = seconds(ask) / len(names)
    times = play_after(sampler, names)
    joins = [f"new-{i}" for i in range(1_000)]
    joined = seconds(lambda: sampler.join(np.ones(len(joins)), joins), 1) / len(joins)
    left = seconds(lambda: sampler.leave(joins), 1) / len(joins)
    return [
        {
            "clients": f"{N:.0e}",
            "built s": built,
            "round ms": 1e3 * times,
            "admit µs": 1e6 * asked,
            "join µs": 1e6 * joined,
            "leave µs": 1e6 * left,
        }
    ]


def play_after(sampler: kvib.Sampler, names: list[Any]) -> float:
    sampler.gather([name for name in names if sampler.admit(name)])
    return statistics.median(play(sampler, 100))


def with_journal(N: int) -> list[Row]:
    """Durable rounds, beside what the disk takes for two fsyncs."""
    weights, rows = weights_of(N), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvib"
        policy, procedure = SAMPLERS["K-Vib"]
        with kvib.journalled(path, policy, weights, K, procedure) as sampler:
            play(sampler, 20)
            times = play(sampler, 100)
        with open(Path(folder) / "plain", "wb") as file:

            def sync() -> None:
                file.write(b"x" * 12_000)
                file.flush()
                os.fsync(file.fileno())

            fsync = statistics.median([seconds(sync, 1) for _ in range(50)])
        size = path.stat().st_size
    plain = statistics.median(
        play(kvib.Sampler(kvib.KVib(mix=0.2), weights, K, kvib.independent), 100)
    )
    rows.append(
        {
            "clients": f"{N:.0e}",
            "durable round ms": 1e3 * statistics.median(times),
            "round ms": 1e3 * plain,
            "two fsyncs ms": 2e3 * fsync,
            "file MB": size / 1e6,
        }
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--largest", type=int, default=8, help="10^this clients, from 5")
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    results = {"A round of 1,000 clients": growth(options.largest, options.rounds)}
    results["With strings as keys"] = with_keys(10 ** min(options.largest, 7))
    results["With a journal"] = with_journal(10 ** min(options.largest, 6))
    about = tables.environment()
    about["reference"] = "all coins: solve for all N and toss N coins, same arrays, same run"
    tables.publish(options.out / "scale", about, results)


if __name__ == "__main__":
    main()

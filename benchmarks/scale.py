"""Measure a round of a thousand clients among 10^4 to 10^8. Its time must not grow with N.

python benchmarks/scale.py --out benchmarks/results         # needs 16 GB and a quarter of an hour
python benchmarks/scale.py --largest 6 --out /tmp/scale     # up to 10^6 clients
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import kvib
import tables
from core import seconds
from tables import Row

K = 1_000


class Case(NamedTuple):
    """A sampler, and the options of its rounds."""

    policy: Any
    procedure: kvib.Procedure = kvib.independent
    absent: int = 0
    """The number of absent clients, which are others in every round."""
    cool_down: int = 0
    largest: int = 8
    """The exponent of the largest population: 10^largest clients fit into memory."""


KVIB = kvib.KVib(mix=0.2)
CASES = {
    "K-Vib": Case(KVIB),
    "K-Vib, exactly K": Case(KVIB, kvib.ordered),
    "K-Vib, floor by size": Case(kvib.KVib(mix=0.2, by_weight=True)),
    "K-Vib, cool-down of 5 rounds": Case(KVIB, cool_down=5, largest=7),
    "K-Vib, 1,000 absent": Case(KVIB, absent=1_000, largest=7),
    "by size": Case(kvib.BySize()),
    "Forecast": Case(kvib.Forecast(), largest=7),
}

PAIRED: dict[str, list[Any]] = {
    "policy": [
        kvib.Uniform(),
        kvib.BySize(),
        kvib.KVib(),
        kvib.Vrb(),
        kvib.Forecast(),
        kvib.Mabs(),
        kvib.Avare(),
        kvib.OSMD(),
    ],
    "procedure": [kvib.independent, kvib.ordered, kvib.with_replacement, kvib.pivotal],
}


def weights_of(N: int) -> np.ndarray:
    """The weights of N clients."""
    return np.random.default_rng(N).lognormal(0, 1.5, N)


def play(
    sampler: kvib.Sampler | kvib.Journalled, rounds: int, seed: int = 0, absent: int = 0
) -> list[float]:
    """The seconds of each round: draw, then update."""
    rng, times = np.random.default_rng(seed), []
    for _ in range(rounds):
        ids = np.unique(rng.integers(0, len(sampler), absent)) if absent else None
        start = time.perf_counter()
        cohort = sampler.draw(absent=ids)
        drawn = time.perf_counter()
        norms = rng.lognormal(0, 1, len(cohort))
        answered = time.perf_counter()
        sampler.update(cohort, norms)
        times.append(drawn - start + time.perf_counter() - answered)
    return times


def held(sampler: kvib.Sampler) -> int:
    """The bytes of all arrays of a sampler."""
    index = sampler.state.index
    assert index is not None
    buckets = [b for b in (index.main, index.by_weight) if b is not None]
    arrays = [sampler.state.population.raw, *(np.asarray(part) for part in sampler.state.learned)]
    arrays += [a for b in buckets for a in (b.order, b.place, b.start, b.sums)]
    arrays += [] if index.intervals is None else [index.intervals.tree.sums]
    return sum(a.nbytes for a in arrays)


def toss_all(sampler: kvib.Sampler) -> float:
    """The seconds of a vectorised O(N) draw on the same arrays: solve for all clients, and toss a
    coin for each."""
    rng, N = np.random.default_rng(0), len(sampler)
    policy, state, weights = sampler.policy, sampler.state.learned, sampler.state.population.raw
    start = time.perf_counter()
    p = policy.expected(state, np.arange(N), sampler.round, K, 1.0, weights=weights)
    drawn = np.flatnonzero(rng.random(N) < p)
    assert abs(len(drawn) - K) < 10 * K**0.5
    return time.perf_counter() - start


def growth(largest: int, rounds: int) -> list[Row]:
    """The time of a round of every case, from 10^4 to 10^largest clients."""
    rows: list[Row] = []
    for name, case in CASES.items():
        for exponent in track(range(4, min(largest, case.largest) + 1), name):
            N = 10**exponent
            weights = weights_of(N)
            start = time.perf_counter()
            sampler = kvib.Sampler(
                case.policy, weights, K, case.procedure, seed=1, cool_down=case.cool_down
            )
            built = time.perf_counter() - start
            del weights
            # the first rounds compile and fill the caches
            play(sampler, 20, absent=case.absent)
            times = play(sampler, rounds, seed=1, absent=case.absent)
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


def pairs(largest: int) -> list[Row]:
    """The time of a round of 100 clients for every policy with some procedures.

    It is the time of the fastest round. Forecast's refits, which come less and less often, are in
    the table of `growth`.
    """
    rows: list[Row] = []
    both = [(a, b) for a in PAIRED["policy"] for b in PAIRED["procedure"]]
    for policy, procedure in track(both, "policies and procedures"):
        row: Row = {"policy": type(policy).__name__, "procedure": procedure.name}
        for exponent in (4, largest):
            sampler = kvib.Sampler(policy, weights_of(10**exponent), 100, procedure, seed=1)
            quick = sampler.state.index is not None
            play(sampler, 40 if quick else 1)
            row["looks at"] = "the drawn" if quick else "all clients"
            row[f"ms at 10^{exponent}"] = 1e3 * min(play(sampler, 8 if quick else 3))
        rows.append(row)
    return rows


def with_keys(N: int) -> list[Row]:
    """The time of calls of a sampler whose keys are strings."""
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
    """The median seconds of a round, after a round of clients that were admitted by name."""
    sampler.gather([name for name in names if sampler.admit(name)])
    return statistics.median(play(sampler, 100))


def with_journal(N: int) -> list[Row]:
    """The time of durable rounds, beside the time of two fsyncs."""
    weights, rows = weights_of(N), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvib"
        with kvib.journalled(path, KVIB, weights, K, kvib.independent) as sampler:
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
    """Measure, and write scale.json and scale.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--largest", type=int, default=8, help="Exponent of the largest population, at least 5.")
    add("--rounds", type=int, default=300, help="Timed rounds.")
    options = parser.parse_args()
    results = {"A round of 1,000 clients": growth(options.largest, options.rounds)}
    results["Policies and procedures, a round of 100 clients"] = pairs(min(options.largest, 6))
    results["With strings as keys"] = with_keys(10 ** min(options.largest, 7))
    results["With a journal"] = with_journal(10 ** min(options.largest, 6))
    about = tables.environment()
    about["reference"] = "all coins: solve for all N and toss N coins, same arrays, same run"
    tables.publish(options.out / "scale", about, results)


if __name__ == "__main__":
    main()

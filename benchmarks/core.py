"""Measure the speed of the sampling core, as ratios to references measured in the same run.

make bench        # writes benchmarks/results/core.json and core.md
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.progress import track

import kvib
import tables
from tables import Row


def seconds(function: Callable[[], object], repeat: int = 9) -> float:
    """The seconds of the fastest of several calls, since noise only adds time."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def solver_against_sort() -> list[Row]:
    """The time of `waterfill` on a million scores, in units of sorting them."""
    rng, N, rows = np.random.default_rng(0), 10**6, []
    shapes = {
        "lognormal σ=2": rng.lognormal(0, 2, N),
        "12 orders of magnitude": 10 ** rng.uniform(-6, 6, N),
        "uniform": rng.random(N),
    }
    for name, scores in track(shapes.items(), "solver", disable=not sys.stdout.isatty()):
        sort = seconds(lambda: np.sort(scores))  # noqa: B023
        for budget in (1_000, 100_000, 500_000):
            for floor in (0.0, 0.1 * budget / N):
                fill = seconds(lambda: kvib.waterfill(scores, budget, floor))  # noqa: B023
                rows.append(
                    {
                        "scores": name,
                        "budget": budget,
                        "floor": floor,
                        "waterfill ms": 1e3 * fill,
                        "np.sort ms": 1e3 * sort,
                        "waterfill / sort": fill / sort,
                    }
                )
    return rows


def authors_solver(a: np.ndarray, budget: int) -> np.ndarray:
    """The loop of the paper's released scripts, rewritten. It is quadratic and leaves one p > 1."""
    order, n, ell = np.argsort(a), len(a), 0
    for ell, i in enumerate(order, start=1):
        if budget + ell - n > sum(a[order[:ell]]) / a[i]:
            ell -= 1
            break
    total = sum(a[order[:ell]])
    p = np.ones(n)
    for k in range(n):
        if k <= ell:
            p[order[k]] = (budget + ell - n) * a[order[k]] / total
    return p


def solver_against_authors() -> list[Row]:
    """Both solvers for N = 3,400, the number of FEMNIST clients in the literature."""
    scores, budget = np.random.default_rng(1).lognormal(0, 1.5, 3400), 100
    theirs = seconds(lambda: authors_solver(scores, budget), repeat=3)
    ours = seconds(lambda: kvib.waterfill(scores, budget), repeat=50)
    return [
        {
            "clients": 3400,
            "budget": budget,
            "authors' loop ms": 1e3 * theirs,
            "waterfill ms": 1e3 * ours,
            "times faster": theirs / ours,
            "their largest p": float(authors_solver(np.array([1.0, 3.0, 6.0]), 2).max()),
        }
    ]


def kvib_rounds() -> list[Row]:
    """The time of a whole round, draw and update, in units of tossing N coins."""
    rows = []
    for N in track((10**4, 10**5, 10**6), "rounds", disable=not sys.stdout.isatty()):
        rng = np.random.default_rng(2)
        policy = kvib.KVib(mix=0.2, gamma=1e-12)
        sampler = kvib.Sampler(policy, rng.lognormal(0, 1, N), 1000)
        norms = rng.lognormal(0, 1, N)

        def one_round() -> None:
            cohort = sampler.draw()  # noqa: B023
            sampler.update(cohort, norms[cohort.ids])  # noqa: B023

        for _ in range(5):
            one_round()
        p = sampler.probabilities()
        coins = seconds(lambda: np.flatnonzero(rng.random(N) < p))  # noqa: B023
        full = seconds(one_round)
        rows.append(
            {
                "clients": N,
                "budget": 1000,
                "round ms": 1e3 * full,
                "N coins ms": 1e3 * coins,
                "round / coins": full / coins,
            }
        )
    return rows


def procedures() -> list[Row]:
    """The time of one draw of each procedure, in units of solving and an independent draw."""
    rows = []
    for N, K in ((1_000, 50), (100_000, 100)):
        rng = np.random.default_rng(3)
        scores = rng.lognormal(0, 1, N)
        unit = seconds(lambda: kvib.independent(kvib.waterfill(scores, K), rng))  # noqa: B023
        for name in (
            "independent",
            "with_replacement",
            "without_replacement",
            "pivotal",
            "systematic",
            "conditional_poisson",
            "neighbours",
            "balanced",
        ):
            procedure: kvib.Procedure = getattr(kvib, name)
            equal = name == "without_replacement"
            p = kvib.waterfill(np.ones(N) if equal else scores, K, cap=procedure.cap)
            variables = rng.normal(size=(N, 33))  # a weight and a sketch of 32 numbers
            procedure(p, rng, variables=variables)  # the first call compiles
            drawn = seconds(lambda: procedure(p, rng, variables=variables))  # noqa: B023
            row = {"clients": N, "budget": K, "procedure": name, "draw ms": 1e3 * drawn}
            rows.append({**row, "draw / (solve + independent draw)": drawn / unit})
    return rows


SECTIONS = {
    "The solver and np.sort of the same million scores": solver_against_sort,
    "The solver and the loop of the authors' scripts": solver_against_authors,
    "A K-Vib round and N coin tosses": kvib_rounds,
    "Procedures": procedures,
}


def main() -> None:
    """Measure all sections, and write core.json and core.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path("benchmarks/results")
    parser.add_argument("--out", type=Path, default=folder, help="Folder of the results.")
    out = parser.parse_args().out  # before the measurements, so that --help measures nothing
    results = {title: measure() for title, measure in SECTIONS.items()}
    tables.publish(out / "core", tables.environment(), results)


if __name__ == "__main__":
    main()

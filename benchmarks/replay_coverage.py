"""Measure how often replay's intervals hold the true value, in simulated worlds that know it.

python benchmarks/replay_coverage.py --out benchmarks/results     # some minutes on two cores
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import kvib
import tables
from kvib.estimators.variance import norm_part
from kvib.procedures import Procedure
from kvib.replay import Terms, replay
from tables import Row

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from logs import (  # type: ignore[import-not-found]
    Changing,
    Spy,
    changing,
    changing_world,
    logged,
    world,
)

RIVALS = {
    "forecast": kvib.Forecast(),
    "K-Vib": kvib.KVib(),
    "by size": kvib.BySize(),
    "uniform": kvib.Uniform(),
}
LOGS = {"K-Vib": kvib.KVib(), "uniform": kvib.Uniform(), "by size": kvib.BySize()}
PROCEDURES = [kvib.independent, kvib.with_replacement, kvib.pivotal]
SPREADS = [0.7, 1.0, 1.5]


def staying(log: str, procedure: Procedure, spread: float, seed: int) -> tuple[Any, Changing]:
    """The weights, and the rounds of a sampler whose clients stay as they are."""
    weights, norms = world(seed, spread=spread)
    rounds, expected = logged(LOGS[log], weights, norms, 8, procedure, seed)
    here = [np.arange(len(weights))] * len(rounds)
    return weights, Changing(rounds, here, list(expected), list(weights * norms))


def moving(log: str, procedure: Procedure, spread: float, seed: int) -> tuple[Any, Changing]:
    """The weights, and the rounds of a sampler whose clients join, leave, return and change their
    weights."""
    weights, norms = changing_world(seed, spread=spread)
    return weights, changing(LOGS[log], weights, norms, 8, procedure, seed, spread=spread)


CLIENTS = {"stay": staying, "come and go": moving}


def held(
    seed: int, log: str, procedure: str, spread: float, clients: str
) -> list[tuple[bool, bool]]:
    """Whether each rival's interval of 90 % holds its variance, and its ratio to the log's."""
    drawing = getattr(kvib, procedure)
    weights, past = CLIENTS[clients](log, drawing, spread, seed)
    spies = {label: Spy(policy) for label, policy in RIVALS.items()}
    found = replay(past.rounds, spies, Terms(weights, procedure=drawing))

    def true(each: Iterable[Any]) -> float:
        parts = (
            norm_part(pi, np.ones(1), p, drawing.cap).sum()
            for pi, p in zip(past.pi, each, strict=True)
        )
        return float(np.mean(list(parts)))

    today = true(past.expected)
    answers = []
    for label, row in found.rows.items():
        value = true(spies[label].told)
        ratio = value / today
        inside = math.isclose(ratio, 1, rel_tol=1e-9) or row.ratio.low <= ratio <= row.ratio.high
        answers.append((row.variance.low <= value <= row.variance.high, inside))
    return answers


def coverage(worlds: int) -> list[Row]:
    """The share of intervals that hold, for each kind of world: lowest, highest and mean over
    pairs of log and rival."""
    rows: list[Row] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        kinds = list(itertools.product(CLIENTS, SPREADS, PROCEDURES))
        for clients, spread, procedure in track(kinds, "kinds of worlds"):
            variances, ratios = [], []
            about = {"procedure": procedure.name, "spread": spread, "clients": clients}
            for log in LOGS:
                work = partial(held, log=log, **about)
                shares = np.mean(list(pool.map(work, range(worlds), chunksize=8)), axis=0)
                variances += [float(share) for share, _ in shares]
                # the ratio of a policy to itself is always 1
                ratios += [
                    float(r) for label, (_, r) in zip(RIVALS, shares, strict=True) if label != log
                ]
            rows.append(
                {
                    "clients": clients,
                    "log-deviation": spread,
                    "procedure": procedure.name,
                    "variance, lowest": min(variances),
                    "variance, highest": max(variances),
                    "variance, all": float(np.mean(variances)),
                    "ratio, lowest": min(ratios),
                    "ratio, highest": max(ratios),
                    "ratio, all": float(np.mean(ratios)),
                }
            )
    return rows


def main() -> None:
    """Measure, and write replay_coverage.json and replay_coverage.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    folder = Path("benchmarks/results")
    parser.add_argument("--out", type=Path, default=folder, help="Folder of the results.")
    parser.add_argument("--worlds", type=int, default=300, help="Worlds per kind of log.")
    given = parser.parse_args()
    about = {**tables.environment(), "worlds per kind of log": given.worlds}
    results = {"Shares of intervals of 90 % that held the truth": coverage(given.worlds)}
    tables.publish(given.out / "replay_coverage", about, results)


if __name__ == "__main__":
    main()

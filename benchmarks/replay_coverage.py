"""How often replay's intervals hold the truth, in simulated worlds where that is known.

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
    """Weights, and the rounds of a sampler whose clients stay as they are."""
    weights, norms = world(seed, spread=spread)
    rounds, expected = logged(LOGS[log], weights, norms, 8, procedure, seed)
    here = [np.arange(len(weights))] * len(rounds)
    return weights, Changing(rounds, here, list(expected), list(weights * norms))


def moving(log: str, procedure: Procedure, spread: float, seed: int) -> tuple[Any, Changing]:
    """The same of clients who come, leave, come back and change their weights."""
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
    told = replay(past.rounds, spies, Terms(weights, procedure=drawing))

    def true(each: Iterable[Any]) -> float:
        parts = (
            norm_part(pi, np.ones(1), p, drawing.cap).sum()
            for pi, p in zip(past.pi, each, strict=True)
        )
        return float(np.mean(list(parts)))

    today = true(past.expected)
    answers = []
    for label, row in told.rows.items():
        value = true(spies[label].told)
        ratio = value / today
        inside = math.isclose(ratio, 1, rel_tol=1e-9) or row.ratio.low <= ratio <= row.ratio.high
        answers.append((row.variance.low <= value <= row.variance.high, inside))
    return answers


def coverage(worlds: int) -> list[Row]:
    """Lowest and highest share of the pairs of log and rival, and that of all together."""
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
                # a policy's ratio to itself is 1 without doubt
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worlds", type=int, default=300, help="per kind of log")
    given = parser.parse_args()
    about = {**tables.environment(), "worlds per kind of log": given.worlds}
    results = {"Shares of intervals of 90 % that held the truth": coverage(given.worlds)}
    tables.publish(given.out / "replay_coverage", about, results)


if __name__ == "__main__":
    main()

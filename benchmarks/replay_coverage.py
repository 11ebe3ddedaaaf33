"""How often replay's intervals hold the truth, in simulated worlds where that is known.

python benchmarks/replay_coverage.py --out benchmarks/results     # some minutes on two cores
"""

import argparse
import itertools
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import track

import kvib
import tables
from kvib.replay import replay
from kvib.tally import norm_part
from tables import Row

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from logs import Spy, logged, world  # type: ignore[import-not-found]

RIVALS = {
    "forecast": kvib.Forecast(),
    "K-Vib": kvib.KVib(),
    "by size": kvib.BySize(),
    "uniform": kvib.Uniform(),
}
LOGS = {"K-Vib": kvib.KVib(), "uniform": kvib.Uniform(), "by size": kvib.BySize()}
PROCEDURES = [kvib.independent, kvib.with_replacement, kvib.pivotal]
SPREADS = [0.7, 1.0, 1.5]


def held(seed: int, log: str, procedure: str, spread: float) -> list[tuple[bool, bool]]:
    """Whether each rival's interval of 90 % holds its variance, and its ratio to the log's."""
    drawing = getattr(kvib, procedure)
    weights, norms = world(seed, spread=spread)
    rounds, expected = logged(LOGS[log], weights, norms, 8, drawing, seed)
    spies = {label: Spy(policy) for label, policy in RIVALS.items()}
    told = replay(rounds, weights, spies, procedure=drawing)

    def true(p: object) -> float:
        each = norm_part(weights * norms, np.ones(1), np.array(p), drawing.cap)
        return float(each.sum(axis=1).mean())

    today = true(expected)
    answers = []
    for label, row in told.rows.items():
        value = true(spies[label].told)
        ratio = value / today
        inside = math.isclose(ratio, 1, rel_tol=1e-9) or row.ratio.low <= ratio <= row.ratio.high
        answers.append((row.variance.low <= value <= row.variance.high, inside))
    return answers


def coverage(worlds: int) -> list[Row]:
    """Lowest and highest share of the pairs of log and rival."""
    rows: list[Row] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        kinds = list(itertools.product(SPREADS, PROCEDURES))
        for spread, procedure in track(kinds, "kinds of worlds"):
            variances, ratios = [], []
            for log in LOGS:
                work = partial(held, log=log, procedure=procedure.name, spread=spread)
                shares = np.mean(list(pool.map(work, range(worlds), chunksize=8)), axis=0)
                variances += [float(share) for share, _ in shares]
                # a policy's ratio to itself is 1 without doubt
                ratios += [
                    float(r) for label, (_, r) in zip(RIVALS, shares, strict=True) if label != log
                ]
            rows.append(
                {
                    "log-deviation": spread,
                    "procedure": procedure.name,
                    "variance, lowest": min(variances),
                    "variance, highest": max(variances),
                    "ratio, lowest": min(ratios),
                    "ratio, highest": max(ratios),
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

"""Measure a journal: its size, opening and reading after many rounds, and a durable round.

python benchmarks/journal.py --out benchmarks/results
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import kvib
import tables
from core import seconds
from kvib.journal import Journalled, cohorts, journalled, read
from kvib.journal.layout import Answered, Drawn
from kvib.journal.recorder import REPLAY, SHARE
from kvib.sampler.open_rounds import OpenRounds
from tables import Row

AT_ONCE = 500
"""Rounds per transaction. The many rounds are written in bulk, without one fsync for each."""


def invented(rng: np.random.Generator, round: int, sampler: Journalled, size: int) -> kvib.Cohort:
    """An invented cohort. Writing and reading it takes as long as for a drawn one."""
    ids = np.unique(rng.integers(0, len(sampler), 2 * size))
    ids = np.sort(rng.choice(ids, size, replace=False))
    p = rng.random(size)
    return kvib.Cohort(
        ids=ids, count=np.ones(size, np.int64), expected=p, weight=sampler.weights[ids], round=round
    )


def fill(sampler: Journalled, rounds: int, size: int) -> None:
    """Write a long past and a snapshot after it."""
    rng, file = np.random.default_rng(0), sampler.recorder.file
    for first in range(0, rounds, AT_ONCE):
        with file.writing():
            for round in range(first, min(first + AT_ONCE, rounds)):
                cohort = invented(rng, round, sampler, size)
                record = cohorts.short(cohort, sampler.recorder.begun_weights)
                file.put("draw", round, record, Drawn(round, 0, size, float(size), 1.0))
                norms = {"norms": rng.random(size, dtype=np.float32)}
                file.put("update", round, norms, Answered(round, 0, size, 1.0, bytes(8)))
    answered = OpenRounds(sampler.state.rounds.token, rounds, b"\1" * rounds)
    vars(sampler.state.rounds).update(vars(answered))
    sampler.recorder.snapshot()


def work(sampler: kvib.Sampler | Journalled) -> None:
    """Draw and update once."""
    cohort = sampler.draw()
    sampler.update(cohort, np.ones(len(cohort)))


def durable_round(sampler: Journalled, repeat: int = 60) -> Row:
    """The time of a round with and without its journal, and of two bare writes to the disk."""
    plain, K = kvib.Sampler.unpacked(sampler.packed()), sampler.budget
    work(plain)
    with open(sampler.recorder.file.path.with_suffix(".bare"), "wb") as file:

        def bare() -> None:
            for size in (8, 4):  # bytes per client: of the draw, then of the norms
                file.write(bytes(int(size * K)))
                file.flush()
                os.fsync(file.fileno())

        parts = (lambda: work(plain), lambda: work(sampler), bare)
        times = np.array([[seconds(part, 1) for part in parts] for _ in range(repeat)])
    without, durable, disk = 1e3 * np.median(times, axis=0)
    return {
        "clients": len(sampler),
        "K": K,
        "round without journal ms": float(without),
        "round ms": float(durable),
        "two bare fsyncs ms": float(disk),
        "(round − without) / bare": float((durable - without) / disk),
    }


def long_journal(folder: Path, clients: int, rounds: int, size: int) -> tuple[Row, Row]:
    """The rows of a long journal and of a durable round in it."""
    path = folder / "long.kvib"
    weights = np.random.default_rng(1).lognormal(0, 1, clients)
    sampler = journalled(path, kvib.KVib(), weights, size, snapshot_every=10**9)
    fill(sampler, rounds, size)
    row = durable_round(sampler)
    sampler.recorder.snapshot()
    snapshot = sampler.recorder.snapshot_cost
    most = max(REPLAY, snapshot / SHARE)
    while sampler.recorder.spent < 0.95 * most:  # the longest replay that opening can need
        work(sampler)
    sampler.close()
    size_now = sum(p.stat().st_size for p in folder.glob("long.kvib*"))
    opened: list[Journalled] = []
    opening = seconds(lambda: opened.append(journalled(path)), 1)
    file = opened[0].recorder.file
    replayed = file.last - file.about["snapshot"]
    history = read(path)
    long = {
        "clients": clients,
        "rounds": opened[0].round,
        "K": size,
        "GB": size_now / 1e9,
        "bytes per drawn client": size_now / (opened[0].round * size),
        "snapshot s": snapshot,
        "rounds replayed": replayed // 2,
        "opening s": opening,
        "table s": seconds(history.table, 1),
        "participation s": seconds(history.participation, 1),
        "all rounds s": seconds(lambda: sum(len(past.cohort) for past in history.rounds()), 1),
    }
    opened[0].close()
    for part in folder.glob("long.kvib*"):
        part.unlink()
    return long, row


def main() -> None:
    """Measure, and write journal.json and journal.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    add, sizes = parser.add_argument, [10_000, 1_000_000]
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--folder", type=Path, help="Folder of the journals (default: a temporary one).")
    add("--rounds", type=int, default=100_000, help="Rounds of a long journal.")
    add("--clients", type=int, nargs="+", default=sizes, help="Numbers of clients.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        both = [long_journal(Path(folder), N, given.rounds, 1_000) for N in given.clients]
    results = {
        "A long journal": [long for long, _ in both],
        "A durable round": [row for _, row in both],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    tables.publish(given.out / "journal", tables.environment(), results)


if __name__ == "__main__":
    main()

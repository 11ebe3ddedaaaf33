"""Runs a journalled sampler in child processes and kills them; see test_journal_crash.py.

python tests/journal_crash.py FOLDER KILLS SEED
"""

import os
import random
import select
import signal
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np

import kvib
from kvib import storage
from kvib.journal import journalled, read

N, BUDGET, EVERY, KEEP = 40, 6, 3, 5
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)
MEMBERS = [
    (kvib.KVib(), kvib.independent),
    (kvib.Forecast(), kvib.pivotal),
    (kvib.Vrb(), kvib.with_replacement),
    (kvib.Avare(), kvib.systematic),
]
INSIDE = [
    "INSERT INTO event",
    "INSERT INTO round",
    "COMMIT",
    "INSERT INTO chunk",
    "DELETE FROM chunk",
    "DELETE FROM event",  # compaction
]
OPTIONS = {"seed": 3, "response": kvib.EstimatedRate()}


def norms_of(cohort):
    rng = np.random.default_rng([7, cohort.round])
    norms = rng.lognormal(0, 1, N)[cohort.ids].astype(np.float32)
    norms[rng.random(len(norms)) < 0.1] = np.nan
    return norms


def available(round):
    return np.random.default_rng([8, round]).random(N) < 0.8 if round % 3 == 0 else None


def serve(path, member, tell):
    """What a server does: finish what was begun, then round after round."""
    policy, procedure = member
    sampler = journalled(
        path, policy, WEIGHTS, BUDGET, procedure, snapshot_every=EVERY, keep=KEEP, **OPTIONS
    )
    for cohort in sampler.outstanding():
        sampler.update(cohort, norms_of(cohort))
    while True:
        cohort = sampler.draw(available=available(sampler.round))
        tell(f"d{cohort.round} ")
        sampler.update(cohort, norms_of(cohort))
        tell(f"u{cohort.round} ")


def killed(path, member, rng):
    """What a child said to have done before it was killed, from outside or between statements."""
    statement = rng.choice([None, None, "", *INSIDE])  # "" is any
    occurrence = rng.randrange(1, 150 if statement == "" else 5)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)

        def tell(word):
            os.write(theirs, word.encode())

        if statement is not None:
            kill_before(statement, occurrence, tell)
        try:
            serve(path, member, tell)
        finally:
            os._exit(1)
    os.close(theirs)
    if statement is None:
        select.select([ours], [], [], 5)  # until it begins to work
        time.sleep(rng.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child failed by itself: {status}"
    with os.fdopen(ours) as pipe:
        return pipe.read().split()


def kill_before(beginning, occurrence, tell):
    """Die by SIGKILL just before SQLite executes such a statement for the n-th time."""
    left = [occurrence]

    def count(statement):
        left[0] -= statement.startswith(beginning)
        if left[0] == 0:
            tell(f"before-{'-'.join(statement.split()[:3])} ")
            os.kill(os.getpid(), signal.SIGKILL)

    class Counted(sqlite3.Connection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.set_trace_callback(count)

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, factory=Counted, **options)


def arrays_of(sampler):
    """Everything but the token, which names the file."""
    arrays = sampler.packed()
    about = storage.about(arrays.pop("header"), "sampler")
    return {k: v for k, v in about.items() if k != "token"}, arrays


def assert_same(a, b):
    (about, arrays), (others, theirs) = arrays_of(a), arrays_of(b)
    assert about == others, (about, others)
    assert set(arrays) == set(theirs)
    for name, array in arrays.items():
        assert np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f"), name


class Straight:
    """A sampler that nobody kills, taken as far as the journalled one."""

    def __init__(self, policy, procedure):
        self.sampler = kvib.Sampler(policy, WEIGHTS, BUDGET, procedure, **OPTIONS)
        self.pending = None

    def follow(self, rounds, waiting):
        while self.pending is not None or self.sampler.round < rounds:
            if self.pending is None:
                self.pending = self.sampler.draw(available=available(self.sampler.round))
            if self.pending.round in waiting:
                return
            self.sampler.update(self.pending, norms_of(self.pending))
            self.pending = None


def check(path, straight, said):
    """What was said to be done is there, and nothing else than what a straight run would do."""
    with journalled(path) as sampler:
        outstanding = {cohort.round: cohort for cohort in sampler.outstanding()}
        assert len(outstanding) <= 1
        for word in said:
            done = int(word[1:])
            assert done < sampler.round
            assert word[0] == "d" or done not in outstanding
        straight.follow(sampler.round, outstanding)
        assert_same(sampler, straight.sampler)
        for cohort in outstanding.values():
            for name in ("ids", "count", "expected", "weight", "response", "availability"):
                assert np.array_equal(getattr(cohort, name), getattr(straight.pending, name)), name
        history = read(path)
        assert history.about.rounds == sampler.round
        assert history.participation().sum() == history.table().size.sum()


def main(folder, kills, seed):
    rng, straight = random.Random(seed), {}
    for k in range(kills):
        member = MEMBERS[k // 5 % len(MEMBERS)]
        path = Path(folder) / f"{k // 5}.kvib"  # killed five times, then another file
        said = killed(path, member, rng)
        where = said.pop() if said and said[-1].startswith("before") else "at-any-time"
        if path.exists():
            check(path, straight.setdefault(path, Straight(*member)), said)
        else:
            assert not said
        print(where, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""Runs a journalled sampler in child processes and kills them; see test_journal_crash.py.

python tests/journal/journal_crash.py FOLDER KILLS SEED
"""

import os
import random
import select
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvib
from kvib.files import storage
from kvib.journal import journalled, read

N, BUDGET, EVERY, KEEP = 40, 6, 3, 5
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)


class Member(NamedTuple):
    """A sampler, and what happens to it, one event after another and then again."""

    policy: Any
    procedure: kvib.Procedure
    script: str
    options: dict[str, Any] = {}  # noqa: RUF012

    def given(self):
        options = {"seed": 3, "response": kvib.EstimatedRate()} | self.options
        return (self.policy, WEIGHTS, BUDGET, self.procedure), options

    def do(self, k, sampler, outstanding):
        """Event k of the run; `outstanding` cohorts are answered, the oldest first."""
        actions = self.script.split()
        return ACTIONS[actions[k % len(actions)]](sampler, k, outstanding)


def norms_of(cohort):
    rng = np.random.default_rng([7, cohort.round])
    norms = rng.lognormal(0, 1, 10_000)[cohort.ids].astype(np.float32)
    norms[rng.random(len(norms)) < 0.1] = np.nan
    return norms


def some(sampler, k, share):
    return np.flatnonzero(np.random.default_rng([8, k]).random(len(sampler)) < share)


def somebody(sampler, k):
    """One of those who are here."""
    here = sampler.state.population.here()
    return int(here[k % len(here)])


ACTIONS = {
    "draw": lambda sampler, k, outstanding: sampler.draw(),
    "absent": lambda sampler, k, outstanding: sampler.draw(absent=some(sampler, k, 0.2)),
    "among": lambda sampler, k, outstanding: sampler.draw(available=some(sampler, k, 0.8)),
    "update": lambda sampler, k, outstanding: sampler.update(
        outstanding[0], norms_of(outstanding[0])
    ),
    "give_up": lambda sampler, k, outstanding: sampler.give_up(outstanding[0]),
    "join": lambda sampler, k, outstanding: sampler.join([0.5 + k % 3]),
    "leave": lambda sampler, k, outstanding: sampler.leave([somebody(sampler, k)]),
    "reweigh": lambda sampler, k, outstanding: sampler.reweigh([somebody(sampler, k)], [1 + k % 5]),
    "open": lambda sampler, k, outstanding: sampler.admit(somebody(sampler, k)),
    "gather": lambda sampler, k, outstanding: sampler.gather(
        [i for i in sampler.state.population.here().tolist() if sampler.admit(i)]
    ),
}
"""Each is one event of the journal."""
MEMBERS = [
    Member(
        kvib.KVib(),
        kvib.independent,
        "join absent draw update leave update reweigh open gather give_up",
        {"cool_down": 1},
    ),
    Member(kvib.Forecast(), kvib.pivotal, "draw join update among reweigh update leave"),
    Member(
        kvib.KVib(mix=0.3, by_weight=True),
        kvib.ordered,
        "draw join update absent leave draw update update reweigh",
        {"cool_down": 2},
    ),
    Member(kvib.Vrb(), kvib.with_replacement, "draw update join leave among update reweigh"),
    Member(kvib.Avare(), kvib.systematic, "draw update among draw give_up update"),
]
INSIDE = [
    "INSERT INTO event",
    "INSERT INTO drawn",
    "INSERT INTO heard",
    "UPDATE tip SET",
    "COMMIT",
    "INSERT INTO chunk",
    "DELETE FROM chunk",
    "DELETE FROM event",  # compaction
]


def serve(path, member, tell):
    """Go on with the script where the last process left it: the journal has counted."""
    given, options = member.given()
    sampler = journalled(path, *given, snapshot_every=EVERY, keep=KEEP, **options)
    while True:
        k = sampler.recorder.file.last
        member.do(k, sampler, sampler.outstanding())
        tell(f"{k} ")


def killed(path, member, rng):
    """What a child said to have done before it was killed, from outside or between statements."""
    statement = rng.choice([None, None, None, "", *INSIDE])  # "" is any
    occurrence = rng.randrange(1, 150 if statement == "" else 9)
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
        if array.size or theirs[name].size:  # no variables of 40 clients are none of 41
            assert np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f"), name


class Straight:
    """A sampler that nobody kills, taken as far as the journalled one."""

    def __init__(self, member):
        self.member, self.done, self.outstanding = member, 0, []
        given, options = member.given()
        self.sampler = kvib.Sampler(*given, **options)

    def follow(self, events):
        for k in range(self.done, events):
            before = self.sampler.round
            result = self.member.do(k, self.sampler, self.outstanding)
            if self.sampler.round > before:
                self.outstanding.append(result)
            elif self.outstanding and self.sampler.state.rounds.updated[self.outstanding[0].round]:
                self.outstanding.pop(0)
        self.done = events


def check(path, straight, said):
    """What was said to be done is there, and nothing else than what a straight run would do."""
    with journalled(path) as sampler:
        events = sampler.recorder.file.last
        assert max((int(word) for word in said), default=-1) < events
        straight.follow(events)
        assert_same(sampler, straight.sampler)
        outstanding = sampler.outstanding()
        for cohort, other in zip(outstanding, straight.outstanding, strict=True):
            for name in (
                "ids",
                "count",
                "expected",
                "weight",
                "answer_probability",
                "availability",
            ):
                assert np.array_equal(getattr(cohort, name), getattr(other, name)), name
        history = read(path)
        assert history.about.rounds == sampler.round
        assert history.participation().sum() == history.table().size.sum()
    return events


def main(folder, kills, seed):
    rng, straight = random.Random(seed), {}
    for k in range(kills):
        member = MEMBERS[k // 5 % len(MEMBERS)]
        path = Path(folder) / f"{k // 5}.kvib"  # killed five times, then another file
        said = killed(path, member, rng)
        where, events = "at-any-time", 0
        if said and said[-1].startswith("before"):
            where = said.pop()
        if path.exists():
            events = check(path, straight.setdefault(path, Straight(member)), said)
        else:
            assert not said
        print(where, events, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

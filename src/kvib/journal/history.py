"""What a journal knows of past rounds; reading never changes it, also while it is written."""

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvib import storage
from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.journal.cohorts import alone, lengthened, with_moments
from kvib.journal.file import Event, JournalFile
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure


class Logged(NamedTuple):
    """One past round."""

    cohort: Cohort
    """As drawn, expected counts and rates to single precision."""
    norms: FloatArray
    """‖g‖ in the order of its ids; NaN where there was no answer."""
    heard: bool
    """False: drawn, but no feedback came (yet)."""


class Table(NamedTuple):
    """Numbers of every round, [T] each."""

    round: IntArray
    size: IntArray
    budget: FloatArray
    coefficients: FloatArray
    """Σλ·count/(q·expected): 1 on average, where all clients were available."""
    answered: FloatArray
    """NaN where no feedback came (yet)."""
    variance: FloatArray
    """Estimated from the norms; NaN where the procedure needs more than norms."""


class About(NamedTuple):
    """What a journal says of itself."""

    policy: str
    procedure: str
    budget: float
    seed: int
    clients: int
    rounds: int
    """How many were drawn."""
    removed: int
    """Details of the rounds before this one were removed (`keep`)."""
    keep: int | None


def read(path: str | os.PathLike[str]) -> "History":
    """The past rounds of a journal, also of one in use."""
    history = History(Path(os.path.realpath(path)))
    with closing(JournalFile(history.path)):
        return history


class History:
    """Answers from a journal, each as of the moment it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def about(self) -> About:
        """What was begun, and how far it came."""
        with closing(JournalFile(self.path)) as file:
            said = file.about
            return About(
                policy=said["policy"],
                procedure=said["procedure"],
                budget=said["budget"],
                seed=said["seed"],
                clients=file.clients(),
                rounds=file.count(),
                removed=said["removed"],
                keep=said["keep"],
            )

    def configuration(self) -> tuple[Policy[Any], Procedure]:
        """Policy and procedure as objects, to replay: kvib's own, for a population that stayed."""
        with closing(JournalFile(self.path)) as file:
            said = storage.about(file.array("now", "header"), "sampler")
            since = {event.kind for event in file.events_after(file.about["snapshot"])}
        if said["population"]["changed"] or since & {"join", "leave", "reweigh"}:
            raise ValueError(
                f"{self.path}: clients joined, left or changed their weight, and past rounds can "
                "only be replayed for a population that stayed as it was"
            )
        if said["policy"] is None or said["procedure"] not in PROCEDURES:
            raise ValueError(
                f"{self.path} was drawn with a policy or procedure of your own; call "
                "kvib.replay.replay and kvib.plan.plan with it from Python"
            )
        policy: Policy[Any] = storage.restore_policy(said["policy"], None)
        return policy, PROCEDURES[said["procedure"]]

    def weights(self) -> FloatArray:
        """Weights of all clients at the last snapshot, [N], those who left included, in units of
        the total at the beginning: λ, where nobody ever came, left or changed."""
        with closing(JournalFile(self.path)) as file:
            return file.array("now", "weights")

    def rounds(self) -> Iterator[Logged]:
        """Every round whose details were kept, in order."""
        with closing(JournalFile(self.path)) as file:
            weights = file.array("begun", "weights")
            procedure = PROCEDURES.get(file.about["procedure"])
            independent = procedure is not None and alone(procedure)
            for events in _by_round(file):
                cohort = lengthened(
                    events[0].record, weights, round=events[0].round, token=file.about["token"]
                )
                if procedure is not None and independent:
                    cohort = with_moments(cohort, procedure)
                heard = len(events) > 1
                norms = events[1].record["norms"] if heard else np.full(len(cohort), np.nan)
                yield Logged(cohort, norms.astype(np.float64), heard)

    def participation(self) -> IntArray:
        """In how many rounds each client was drawn, [N]; rounds whose details are gone included."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            total = np.zeros(file.clients(), np.int64)
            for earlier in file.arrays("removed").values():
                total[: len(earlier)] += earlier
            for events in _by_round(file, "draw"):
                ids = events[0].record["ids"]
                new = int(ids.max(initial=-1)) + 1 - len(total)  # since the last snapshot
                total = np.pad(total, (0, new)) if new > 0 else total
                total[ids] += 1
            return total

    def table(self) -> Table:
        """Numbers of every round, also of those whose details are gone."""
        with closing(JournalFile(self.path)) as file:
            rows = file.rounds(", ".join(Table._fields))
        columns = zip(*rows, strict=True) if rows else [()] * len(Table._fields)
        round, size, *others = (np.array(column, dtype=np.float64) for column in columns)
        return Table(round.astype(np.int64), size.astype(np.int64), *others)


def _by_round(file: JournalFile, kind: str = "%") -> Iterator[list[Event]]:
    """The events of each round that was kept: its draw, and its feedback if that came."""
    events = file.events_of_rounds(file.about["removed"], file.count(), kind)
    return (list(group) for _, group in groupby(events, key=attrgetter("round")))

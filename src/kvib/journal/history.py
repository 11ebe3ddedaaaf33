"""What a journal knows of past rounds; reading never changes it, also while it is written."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvib.checks import available_ids
from kvib.files import storage
from kvib.files.part import Saved
from kvib.journal import switches
from kvib.journal.cohorts import lengthened, with_moments
from kvib.journal.file import JournalFile
from kvib.journal.layout import Upgrade
from kvib.journal.past import Past, clients, names
from kvib.journal.records import EventRecord
from kvib.journal.switches import Switch, procedure_of
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.replay.logged import Logged
from kvib.replay.terms import Terms
from kvib.sampler.sampler import Sampler
from kvib.types import FloatArray, IntArray, Key


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
    """That of today; `History.switches` has those before it."""
    procedure: str
    budget: float
    seed: int
    clients: int
    """How many ever took part: ids are below it."""
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
        with closing(JournalFile(self.path)) as file, file.at_once():
            said = file.about
            return About(
                policy=said["policy"],
                procedure=said["procedure"],
                budget=said["budget"],
                seed=said["seed"],
                clients=clients(file),
                rounds=file.tip.rounds,
                removed=said["removed"],
                keep=said["keep"],
            )

    def terms(self, policy: Policy[Any] | None = None, procedure: Procedure | None = None) -> Terms:
        """What the sampler was given at its beginning, to replay its rounds.

        Args:
            policy: needed if it is your own, not one of kvib's.
            procedure: needed if it is your own.
        """
        with closing(JournalFile(self.path)) as file, file.at_once():
            arrays, past = file.arrays("now"), Past(file)
            prices, most = past.prices, past.most()
        about = storage.about(arrays["header"], "sampler")
        own = about["policy"] is None and policy is None
        if own or (about["procedure"] not in PROCEDURES and procedure is None):
            raise ValueError(
                f"{self.path} was drawn with a policy or procedure of your own; give it from "
                "Python: history = kvib.journal.read(path), terms = history.terms(policy=…, "
                "procedure=…), then kvib.replay.replay(history, policies, terms) and "
                "kvib.plan.plan(history, policy, terms)"
            )
        sampler = Sampler.restored(Saved(about, arrays), policy, procedure)
        return Terms(
            past.weights,
            procedure=sampler.procedure,
            policy=sampler.policy,
            budget=sampler.budget,
            variables=sampler.state.eligible.variables[: len(past.weights)],
            prices=prices,
            most=most,
        )

    def given(self, policy: Policy[Any] | None = None, procedure: Procedure | None = None) -> Terms:
        """The name of `terms` in version 0.1."""
        return self.terms(policy, procedure)

    def weights(self) -> FloatArray:
        """Weights of all clients at the last snapshot, [N], those who left included, in units of
        the total at the beginning: λ, where nobody ever came, left or changed."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            return file.array("now", "weights")

    def keys(self) -> Sequence[Key]:
        """What all clients are called who ever took part, by their ids."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            called = names(file)
            return range(clients(file)) if called is None else called

    def upgrades(self) -> list[Upgrade]:
        """Versions of kvib that took over and would have drawn or learned otherwise, in order."""
        with closing(JournalFile(self.path)) as file:
            return [Upgrade(**said) for said in file.about.get("upgrades", [])]

    def switches(self) -> list[Switch]:
        """Policies that took over from others in the middle of the run, in order."""
        with closing(JournalFile(self.path)) as file:
            return switches.listed(file.about)

    def rounds(self) -> Iterator[Logged]:
        """Every round whose details were kept, in order, as of the moment the first is asked for.

        Each says who came and went before it (`Logged.changes`). Where a journal has forgotten its
        beginning, the changes of the first round lead to the population of that time; rounds of
        which the population is not known are left out.

        As long as they are read the file cannot tidy up after itself.
        """
        with closing(JournalFile(self.path)) as file, file.at_once():
            past = Past(file)
            weights, cool_down = past.weights, file.about["begun"]["cool_down"]
            count = len(weights)  # of clients who have come by then
            waiting: deque[IntArray] = deque(maxlen=cool_down)
            known: int | None = None  # who waits is known from here on
            for changes, drawn, answers in past.rounds():
                record, round = drawn.record, drawn.round
                assert round is not None
                known = (round + cool_down if round else 0) if known is None else known
                cohort = lengthened(record, weights, round=round, token=file.about["token"])
                cohort = with_moments(cohort, PROCEDURES.get(procedure_of(file.about, round)))
                norms = np.full(len(cohort), np.nan) if answers is None else answers.record["norms"]
                count = max([count, *(int(one.ids.max(initial=-1)) + 1 for one in changes)])
                absent = np.concatenate([_listed(record, "absent", count), *waiting])
                yield Logged(
                    cohort=cohort,
                    norms=norms.astype(np.float64),
                    answered=answers is not None,
                    available=_drawn_among(record, count),
                    absent=np.unique(absent) if round >= known else None,
                    order=(drawn.number, (answers or drawn).number),
                    changes=changes,
                )
                waiting.append(cohort.ids)

    def participation(self) -> IntArray:
        """In how many rounds each client was drawn, [N]; rounds whose details are gone included."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            total = np.zeros(clients(file), np.int64)
            for earlier in file.arrays("removed").values():
                total[: len(earlier)] += earlier
            kept = file.rounds()[file.about["removed"] :]
            for event in file.events(drawn.event for drawn, _ in kept):
                total[event.record["ids"]] += 1
            return total

    def table(self) -> Table:
        """Numbers of every round, also of those whose details are gone."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            rounds = file.rounds()
        drawn, answers = [row for row, _ in rounds], [row for _, row in rounds if row is not None]
        answered, variance = np.full((2, len(drawn)), np.nan)
        at = [row.round for row in answers]
        answered[at] = [row.answered for row in answers]
        variance[at] = [row.variance for row in answers]  # None becomes NaN
        return Table(
            round=np.arange(len(drawn)),
            size=np.array([row.size for row in drawn], np.int64),
            budget=np.array([row.budget for row in drawn], np.float64),
            coefficients=np.array([row.coefficients for row in drawn], np.float64),
            answered=answered,
            variance=variance,
        )


def _drawn_among(record: EventRecord, count: int) -> IntArray | None:
    """Whom a draw was told to choose among; in a check-in whoever asked could be drawn, and
    everybody could ask."""
    if "checked in" in record:
        return np.arange(count)
    return _listed(record, "available", count) if "given available" in record else None


def _listed(record: EventRecord, name: str, count: int) -> IntArray:
    """Clients that a draw was told of, ascending ids; nobody where it was not."""
    given = record.get(f"given {name}", np.empty(0, np.int64))
    # a mask is of those who had come by then: fewer than `count`, where a beginning was forgotten
    return available_ids(given, len(given) if given.dtype == np.bool_ else count)

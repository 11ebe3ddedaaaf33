"""Reading the past rounds of a journal, which never changes it, also while it is being written."""

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
    """A table that lists the numbers of every round: one array [T] per column.

    `History.table` makes it. It includes rounds whose details were removed.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.Uniform(), [1, 1, 1, 1], budget=2) as sampler:
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, [1.0] * len(cohort))
        ...     cohort = sampler.draw()
        >>> table = kvib.journal.read(path).table()
        >>> table.round, table.budget
        (array([0, 1]), array([2., 2.]))
        >>> bool(table.answered[0] == table.size[0]), float(table.answered[1])
        (True, nan)
    """

    round: IntArray
    """The number of the round, from 0."""
    size: IntArray
    """The number of clients in the cohort."""
    budget: FloatArray
    """The budget that the round was drawn with."""
    coefficients: FloatArray
    """Σλ·count/(q·expected): 1 on average, where all clients were available."""
    answered: FloatArray
    """The number of clients that answered; NaN where no feedback has arrived (yet)."""
    variance: FloatArray
    """The variance, estimated from the norms where they suffice, or from the updates (`step`,
    `begin(spread=True)`); NaN where it is not known."""


class About(NamedTuple):
    """A summary that a journal gives of itself: its sampler, and how many rounds it holds.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.KVib(), [10, 20, 30], budget=1, seed=7) as sampler:
        ...     cohort = sampler.draw()
        >>> about = kvib.journal.read(path).about
        >>> about.procedure, about.seed, about.clients, about.rounds
        ('independent', 7, 3, 1)
    """

    policy: str
    """The present policy. `History.switches` lists the policies before it."""
    procedure: str
    """The name of the present procedure."""
    budget: float
    """The budget per round: clients, costs or answers."""
    seed: int
    """The seed that decides every draw, with the number of its round."""
    clients: int
    """The number of clients that ever took part. Ids are below it."""
    rounds: int
    """The number of rounds that were drawn."""
    removed: int
    """The first round whose details are kept. Details of earlier rounds were removed (`keep`)."""
    keep: int | None
    """The number of last rounds whose details are kept; None means all."""


def read(path: str | os.PathLike[str]) -> "History":
    """Read the past rounds of a journal, which may be in use by another process meanwhile.

    All that is read is checked, and the file is never changed.

    Args:
        path: The file of the journal.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.Uniform(), [1, 2, 3], budget=1) as sampler:
        ...     cohort = sampler.draw()
        ...     history = kvib.journal.read(path)           # the file is in use
        >>> history.about.rounds
        1
    """
    history = History(Path(os.path.realpath(path)))
    with closing(JournalFile(history.path)):
        return history


class History:
    """A reader that answers questions about the past rounds of a journal.

    Each answer holds for the moment at which the question is asked. `read` makes this object, and
    `kvib.replay.replay` and `kvib.plan.plan` take it as their log.

    Args:
        path: The file of the journal, without symbolic links.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.Uniform(), [1, 2, 3], 2, kvib.pivotal) as sampler:
        ...     for _ in range(4):
        ...         cohort = sampler.draw()
        ...         sampler.update(cohort, [1.0] * len(cohort))
        >>> history = kvib.journal.read(path)
        >>> int(history.participation().sum())              # 4 rounds of 2 clients
        8
        >>> [len(logged.cohort) for logged in history.rounds()]
        [2, 2, 2, 2]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def about(self) -> About:
        """The summary of the journal: its sampler, and how many rounds it holds."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            entries = file.about
            return About(
                policy=entries["policy"],
                procedure=entries["procedure"],
                budget=entries["budget"],
                seed=entries["seed"],
                clients=clients(file),
                rounds=file.tip.rounds,
                removed=entries["removed"],
                keep=entries["keep"],
            )

    def terms(self, policy: Policy[Any] | None = None, procedure: Procedure | None = None) -> Terms:
        """The terms that the sampler was given at its beginning, to replay its rounds.

        Args:
            policy: The policy of the journal. It is needed only if it is your own, not one of
                kvib's.
            procedure: The procedure of the journal. It is needed only if it is your own.
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
        """Return `terms(policy, procedure)`, under the name that version 0.1 had for it.

        Args:
            policy: The policy of the journal. It is needed only if it is your own.
            procedure: The procedure of the journal. It is needed only if it is your own.
        """
        return self.terms(policy, procedure)

    def weights(self) -> FloatArray:
        """Read the weights of all clients at the last snapshot, [N], departed ones included.

        They are in units of the total at the beginning: they are λ, where no client ever joined,
        left or changed its weight.
        """
        with closing(JournalFile(self.path)) as file, file.at_once():
            return file.array("now", "weights")

    def keys(self) -> Sequence[Key]:
        """Read the keys of all clients that ever took part, in the order of their ids."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            called = names(file)
            return range(clients(file)) if called is None else called

    def upgrades(self) -> list[Upgrade]:
        """List, in order, the versions of kvib that would have drawn or learned otherwise."""
        with closing(JournalFile(self.path)) as file:
            return [Upgrade(**entry) for entry in file.about.get("upgrades", [])]

    def switches(self) -> list[Switch]:
        """List the policies that took over from others in the middle of the run, in order."""
        with closing(JournalFile(self.path)) as file:
            return switches.listed(file.about)

    def rounds(self) -> Iterator[Logged]:
        """Read every round whose details are kept, in order.

        The rounds are those of the moment at which the first one is asked for. Each has the changes
        of the population before it (`Logged.changes`). Where the first rounds of a journal were
        removed, the changes of the first round that is left lead to the population of that time.
        Rounds whose population is not known are left out.

        While the rounds are being read, SQLite cannot clear its write-ahead log.
        """
        with closing(JournalFile(self.path)) as file, file.at_once():
            past = Past(file)
            weights, cool_down = past.weights, file.about["begun"]["cool_down"]
            count = len(weights)  # clients that have joined by then
            waiting: deque[IntArray] = deque(maxlen=cool_down)
            waiting_since: int | None = None  # the first round whose waiting clients are known
            for changes, drawn, answers in past.rounds():
                record, round = drawn.record, drawn.round
                assert round is not None
                if waiting_since is None:
                    waiting_since = round + cool_down if round else 0
                cohort = lengthened(record, weights, round=round, token=file.about["token"])
                cohort = with_moments(cohort, PROCEDURES.get(procedure_of(file.about, round)))
                norms = np.full(len(cohort), np.nan) if answers is None else answers.record["norms"]
                count = max([count, *(int(c.ids.max(initial=-1)) + 1 for c in changes)])
                absent = np.concatenate([_listed(record, "absent", count), *waiting])
                yield Logged(
                    cohort=cohort,
                    norms=norms.astype(np.float64),
                    answered=answers is not None,
                    available=_drawn_among(record, count),
                    absent=np.unique(absent) if round >= waiting_since else None,
                    order=(drawn.number, (answers or drawn).number),
                    changes=changes,
                )
                waiting.append(cohort.ids)

    def participation(self) -> IntArray:
        """Count the rounds in which each client was drawn, [N], removed rounds included."""
        with closing(JournalFile(self.path)) as file, file.at_once():
            total = np.zeros(clients(file), np.int64)
            for earlier in file.arrays("removed").values():
                total[: len(earlier)] += earlier
            kept = file.rounds()[file.about["removed"] :]
            for event in file.events(drawn.event for drawn, _ in kept):
                total[event.record["ids"]] += 1
            return total

    def table(self) -> Table:
        """Read the numbers of every round, also of rounds whose details were removed."""
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
    """Ids of the clients that were available for a draw, ascending; None means all.

    In a check-in every client that asks can be drawn, and every client can ask.
    """
    if "checked in" in record:
        return np.arange(count)
    return _listed(record, "available", count) if "given available" in record else None


def _listed(record: EventRecord, name: str, count: int) -> IntArray:
    """Ids of the clients that a draw was given under this name, ascending; empty without them."""
    given = record.get(f"given {name}", np.empty(0, np.int64))
    # A mask covers the clients that had joined by then. After rounds were removed, `count` may be
    # larger.
    return available_ids(given, len(given) if given.dtype == np.bool_ else count)

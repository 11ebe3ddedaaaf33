"""The tables of a journal, and the seals that check every row when it is read."""

import math
from typing import Any, NamedTuple, Self
from zlib import crc32

from kvib.journal.records import EventRecord

APPLICATION = int.from_bytes(b"kvib", "big")
"""SQLite's `application_id`, by which a file is recognised as a journal."""
VERSION = 2
"""The version of the tables that this kvib writes."""
GIVE_UP = "give up"
"""The kind of events that close a round without a row in `heard`."""

SCHEMA = (
    "CREATE TABLE about (only INTEGER PRIMARY KEY, said BLOB, crc INTEGER)",
    "CREATE TABLE event "
    "(number INTEGER PRIMARY KEY, kind TEXT, round INTEGER, payload BLOB, crc INTEGER)",
    "CREATE TABLE waiting (round INTEGER PRIMARY KEY, cohort BLOB, crc INTEGER)",
    "CREATE TABLE array (name TEXT PRIMARY KEY, dtype TEXT, shape TEXT, chunks BLOB, crc INTEGER)",
    "CREATE TABLE chunk (hash BLOB PRIMARY KEY, bytes BLOB)",
)
"""Tables that version 1 has too. There `event` also has an index by round."""
ROUNDS = (
    "CREATE TABLE drawn (round INTEGER PRIMARY KEY, "
    "event INTEGER, size INTEGER, budget REAL, coefficients REAL, crc INTEGER)",
    "CREATE TABLE heard (round INTEGER PRIMARY KEY, "
    "event INTEGER, answered INTEGER, variance REAL, norms BLOB, crc INTEGER)",
    "CREATE TABLE tip "
    "(only INTEGER PRIMARY KEY, last INTEGER, rounds INTEGER, heard INTEGER, crc INTEGER)",
)
"""Tables that are new in version 2. Rows of `drawn` and `heard` are written once and stay. `tip`
counts them, so that reading notices a missing row."""


class Event(NamedTuple):
    """A journal event: one call that changed the sampler."""

    number: int
    """Events are numbered from 1, without gaps."""
    kind: str
    """The name of the call, a key of `events.KINDS`."""
    round: int | None
    """The round that the event belongs to; None if it belongs to none."""
    record: EventRecord
    """The arguments of the call and its outcome."""


class Drawn(NamedTuple):
    """A row of table `drawn`: the numbers of one draw."""

    round: int
    event: int
    """The number of the event; 0 where it was removed before it could be written here."""
    size: int
    """The number of clients in the cohort."""
    budget: float
    coefficients: float
    """The sum of the cohort's coefficients."""


class Answered(NamedTuple):
    """A row of table `heard`: the numbers of the feedback to one round."""

    round: int
    event: int
    """The number of the event; 0 where it was removed before it could be written here."""
    answered: int
    """The number of clients that answered."""
    variance: float | None
    """The estimated variance; None where it is not known."""
    norms: bytes
    """A digest of the norms, by which an identical repeat is recognised."""


FileRow = Drawn | Answered
"""A row that an event adds to its round."""
RoundRows = tuple[Drawn, Answered | None]
"""Both rows of a round; None where no feedback has arrived (yet)."""


class Tip(NamedTuple):
    """The row of table `tip`: counts of what a journal holds."""

    last: int = 0
    """The number of the last event."""
    rounds: int = 0
    """The number of rounds that were drawn."""
    answered: int = 0
    """The number of rounds with feedback. Its column is called `heard`."""

    def after(self, row: FileRow | None) -> Self:
        """The counts after one more event, which wrote this row."""
        return self._replace(
            last=self.last + 1,
            rounds=self.rounds + isinstance(row, Drawn),
            answered=self.answered + isinstance(row, Answered),
        )


class Upgrade(NamedTuple):
    """A record that another version of kvib, or of the user's policy, went on with a journal.

    It is written only where that version would have drawn or learned differently. The recorded
    cohorts stay as they were drawn. `History.upgrades` lists these records.

    Examples:
        >>> from kvib.journal import Upgrade
        >>> print(Upgrade(version="0.3.0", round=12, relearned=False))
        kvib 0.3.0 took round 12 as drawn, in which it would draw others
    """

    version: str
    """The version of kvib that took over."""
    round: int | None
    """The first recorded round that it would have drawn differently; None: there is none."""
    relearned: bool
    """Whether it learned from all rounds again, since the policy's state had another form."""

    def __str__(self) -> str:
        parts = ["learned from all rounds again"] if self.relearned else []
        if self.round is not None:
            parts.append(f"took round {self.round} as drawn, in which it would draw others")
        return f"kvib {self.version} {' and '.join(parts)}"


TABLES: dict[type[Any], str] = {Drawn: "drawn", Answered: "heard", Tip: "tip"}
"""The table of each kind of row."""
_COLUMNS = {(Tip, "answered"): "heard"}
"""Columns whose name is not that of their field."""


def seal(data: bytes, name: str) -> int:
    """The checksum of some bytes and of the name of their place.

    A row that is copied to another place does not match it.
    """
    return crc32(data, crc32(name.encode()))


def row_seal(row: FileRow | Tip) -> int:
    """The checksum of a row."""
    return seal(repr(tuple(row)).encode(), TABLES[type(row)])


def storable(number: float) -> float | None:
    """A number as SQLite stores it: None for NaN, which SQLite does not have."""
    return None if math.isnan(number) else float(number)


def columns(kind: type[Any]) -> str:
    """The columns of a kind of rows for a query, the seal last."""
    names = (_COLUMNS.get((kind, field), field) for field in kind._fields)
    return ", ".join((*names, "crc"))

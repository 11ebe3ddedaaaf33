"""The tables of a journal, and the seals by which every row that is read is checked."""

import math
from typing import Any, NamedTuple, Self
from zlib import crc32

from kvib.journal.records import EventRecord

APPLICATION = int.from_bytes(b"kvib", "big")
VERSION = 2
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
"""As in version 1, whose `event` also has an index by round."""
ROUNDS = (
    "CREATE TABLE drawn (round INTEGER PRIMARY KEY, "
    "event INTEGER, size INTEGER, budget REAL, coefficients REAL, crc INTEGER)",
    "CREATE TABLE heard (round INTEGER PRIMARY KEY, "
    "event INTEGER, answered INTEGER, variance REAL, norms BLOB, crc INTEGER)",
    "CREATE TABLE tip "
    "(only INTEGER PRIMARY KEY, last INTEGER, rounds INTEGER, heard INTEGER, crc INTEGER)",
)
"""New in version 2. Rows of `drawn` and `heard` are written once and stay, and `tip` counts them,
so that a row that is gone is missed."""


class Event(NamedTuple):
    """Something that changed the sampler."""

    number: int
    kind: str
    round: int | None
    record: EventRecord


class Drawn(NamedTuple):
    """A row of the draw of each round."""

    round: int
    event: int
    """The number of the event; 0 where it was removed before it could be written here."""
    size: int
    budget: float
    coefficients: float


class Answered(NamedTuple):
    """A row of the feedback of each round that was answered."""

    round: int
    event: int
    answered: int
    variance: float | None
    norms: bytes
    """A digest, by which a repeat is known."""


FileRow = Drawn | Answered
Round = tuple[Drawn, Answered | None]
"""None where no feedback came (yet)."""


class Tip(NamedTuple):
    """How far a journal has come."""

    last: int = 0
    """The number of the last event."""
    rounds: int = 0
    heard: int = 0

    def after(self, row: FileRow | None) -> Self:
        """One event further, which wrote this row."""
        return self._replace(
            last=self.last + 1,
            rounds=self.rounds + isinstance(row, Drawn),
            heard=self.heard + isinstance(row, Answered),
        )


class Upgrade(NamedTuple):
    """Another version of kvib, or of the user's policy, that went on with a journal."""

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


def seal(data: bytes, name: str) -> int:
    """The checksum of some bytes in their place."""
    return crc32(data, crc32(name.encode()))


def row_seal(row: FileRow | Tip) -> int:
    """The checksum of a row."""
    return seal(repr(tuple(row)).encode(), TABLES[type(row)])


def storable(number: float) -> float | None:
    """As SQLite gives it back: it has no NaN."""
    return None if math.isnan(number) else float(number)


def columns(kind: type[Any]) -> str:
    """The columns of a kind of rows, the seal last."""
    return ", ".join((*kind._fields, "crc"))

"""The file of a journal: SQLite in WAL mode, one writer, every event durable once appended."""

import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Arrays
from kvib.journal.access import connected, tidied, torn, trouble
from kvib.journal.records import Record, decode, encode
from kvib.storage import plain_json, sync_folder

APPLICATION = int.from_bytes(b"kvib", "big")
VERSION = 1
CHUNK = 2**18
"""Bytes; a snapshot writes those chunks of the state that changed since the last one."""
_HASH = 16
_TOGETHER = 256
"""Rounds that are read into memory together."""

_SCHEMA = """
CREATE TABLE about (only INTEGER PRIMARY KEY, said BLOB, crc INTEGER);
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, round INTEGER, payload BLOB, crc INTEGER
);
CREATE INDEX event_of_round ON event (round) WHERE round IS NOT NULL;
CREATE TABLE round (
    round INTEGER PRIMARY KEY, size INTEGER, budget REAL, coefficients REAL,
    answered INTEGER, variance REAL, norms BLOB
);
CREATE TABLE waiting (round INTEGER PRIMARY KEY, cohort BLOB, crc INTEGER);
CREATE TABLE array (name TEXT PRIMARY KEY, dtype TEXT, shape TEXT, chunks BLOB, crc INTEGER);
CREATE TABLE chunk (hash BLOB PRIMARY KEY, bytes BLOB);
"""


class Event(NamedTuple):
    """Something that changed the sampler."""

    number: int
    kind: str
    round: int | None
    record: Record


class JournalFile:
    """Events with their numbers, the last snapshot, and the numbers of every round.

    What is read is checked (CRC-32 of events, hashes of chunks); a file that fails is a ValueError.
    Without `write` nothing of it is ever changed.
    """

    def __init__(self, path: Path, write: bool = False) -> None:
        self.path, self._write = path, write
        if not path.exists():
            raise FileNotFoundError(f"there is no journal {path}")
        self._db = connected(path, write)
        try:
            with self.reading():
                self._check_kind()
                self._look()
        except BaseException:
            self._db.close()
            raise

    def _look(self) -> None:
        self.about: dict[str, Any] = json.loads(
            self._checked("SELECT said, crc FROM about WHERE only = 1", "about")
        )
        (self.last,) = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'event'")
        """Number of the last event."""

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
        if not self._write:
            tidied(self.path)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Errors of SQLite as errors that say the way out."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise trouble(self.path, error) from error

    def _check_kind(self) -> None:
        (kind,), (version,) = (
            self._one(f"PRAGMA {name}") for name in ("application_id", "user_version")
        )
        if kind != APPLICATION:
            raise ValueError(
                f"{self.path} is not a kvib journal but some other file; give another name"
            )
        if version != VERSION:
            raise ValueError(
                f"{self.path} has journal version {version}, this kvib reads {VERSION}: install "
                "the kvib that wrote it"
            )

    def _one(self, query: str, *values: Any) -> tuple[Any, ...]:
        row = self._db.execute(query, values).fetchone()
        if row is None:
            raise torn(self.path, "a row is missing")
        return tuple(row)

    def _checked(self, query: str, seal: str, *values: Any) -> bytes:
        data, crc = self._one(query, *values)
        return self._whole(data, crc, seal)

    def _whole(self, data: Any, crc: Any, seal: str) -> bytes:
        if not isinstance(data, bytes) or _crc(data, seal) != crc:
            raise torn(self.path, f"{seal} does not match its checksum")
        return data

    # Writing: every method is one transaction, durable when it returns.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._db.execute("ROLLBACK")
            raise

    def append(
        self, kind: str, round: int | None, record: Record, numbers: Mapping[str, Any]
    ) -> None:
        """The next event; `numbers` are columns of the round's row."""
        with self._transaction():
            self.put(Event(self.last + 1, kind, round, record), numbers)
        self.last += 1

    def put(self, event: Event, numbers: Mapping[str, Any]) -> None:
        """An event, inside a transaction."""
        number, kind, round, record = event
        payload = encode(record)
        self._db.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
            (number, kind, round, payload, _crc(payload, f"event {number} {kind} {round}")),
        )
        if numbers:
            names = ", ".join(numbers)
            changed = ", ".join(f"{name} = excluded.{name}" for name in numbers)
            marks = ", ".join("?" * len(numbers))
            self._db.execute(
                f"INSERT INTO round (round, {names}) VALUES (?, {marks}) "
                f"ON CONFLICT (round) DO UPDATE SET {changed}",
                (round, *numbers.values()),
            )

    def snapshot(
        self, arrays: Mapping[str, Arrays], waiting: Mapping[int, Record], **about: Any
    ) -> None:
        """The state after the last event, groups of arrays by name; only what changed is written.

        With `removed=r`, details of the rounds before r are removed.
        """
        with self._transaction():
            for round, record in waiting.items():
                data = encode(record)
                self._db.execute(
                    "INSERT INTO waiting VALUES (?, ?, ?)",
                    (round, data, _crc(data, f"cohort {round}")),
                )
            about = {**self.about, **about, "snapshot": self.last}
            # Rounds heard since the last snapshot were still needed to replay from there.
            self._db.execute(
                "DELETE FROM waiting WHERE round < ? OR round IN "
                "(SELECT round FROM round WHERE answered IS NOT NULL)",
                (about["removed"],),
            )
            if about["removed"] > self.about["removed"]:
                self._db.execute(
                    "DELETE FROM event WHERE number < (SELECT number FROM event "
                    "WHERE round >= ? ORDER BY round, number LIMIT 1)",
                    (about["removed"],),
                )
            names = dict(self.about["arrays"])
            for group, members in arrays.items():
                self._store(group, members)
                names[group] = sorted(members)
            self._drop_chunks()
            about["arrays"] = names
            self._say(about)
        self.about = about

    def say(self, **about: Any) -> None:
        """Change what the file says of itself."""
        with self._transaction():
            self._say({**self.about, **about})
        self.about |= about

    def _say(self, about: dict[str, Any]) -> None:
        said = plain_json(about).encode()
        self._db.execute("REPLACE INTO about VALUES (1, ?, ?)", (said, _crc(said, "about")))

    def _store(self, group: str, arrays: Arrays) -> None:
        known = {hash for (hash,) in self._db.execute("SELECT hash FROM chunk")}
        self._db.execute("DELETE FROM array WHERE name LIKE ?", (f"{group}/%",))
        for name, array in arrays.items():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            hashes = []
            for start in range(0, len(data), CHUNK):
                piece = data[start : start + CHUNK].data
                hashes.append(_hash(piece))
                if hashes[-1] not in known:
                    self._db.execute("INSERT INTO chunk VALUES (?, ?)", (hashes[-1], piece))
                    known.add(hashes[-1])
            shape, chunks = json.dumps(array.shape), b"".join(hashes)
            seal = f"array {group}/{name} {array.dtype.str} {shape}"
            self._db.execute(
                "INSERT INTO array VALUES (?, ?, ?, ?, ?)",
                (f"{group}/{name}", array.dtype.str, shape, chunks, _crc(chunks, seal)),
            )

    def _drop_chunks(self) -> None:
        """Those that no array consists of any more."""
        used = {
            chunks[start : start + _HASH]
            for (chunks,) in self._db.execute("SELECT chunks FROM array")
            for start in range(0, len(chunks), _HASH)
        }
        known = {hash for (hash,) in self._db.execute("SELECT hash FROM chunk")}
        unused = ((hash,) for hash in known - used)
        self._db.executemany("DELETE FROM chunk WHERE hash = ?", unused)

    # Reading

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Several questions about one moment, whatever is written meanwhile."""
        with self.reading():
            self._db.execute("BEGIN")
            try:
                self._look()  # it may have been tidied up since it was opened
                yield
            finally:
                self._db.execute("ROLLBACK")

    def arrays(self, group: str) -> Arrays:
        """A group of arrays as of the last snapshot, by their names; empty if there is none."""
        return {name: self.array(group, name) for name in self.about["arrays"].get(group, [])}

    def array(self, group: str, name: str) -> NDArray[Any]:
        """One array of a group."""
        query = "SELECT dtype, shape, chunks, crc FROM array WHERE name = ?"
        with self.reading():
            dtype, shape, chunks, crc = self._one(query, f"{group}/{name}")
            chunks = self._whole(chunks, crc, f"array {group}/{name} {dtype} {shape}")
            return self._read(dtype, tuple(json.loads(shape)), chunks)

    def _read(self, dtype: str, shape: tuple[int, ...], chunks: bytes) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8)
        for k in range(len(chunks) // _HASH):
            hash = chunks[k * _HASH : (k + 1) * _HASH]
            (piece,) = self._one("SELECT bytes FROM chunk WHERE hash = ?", hash)
            if not isinstance(piece, bytes) or _hash(piece) != hash:
                raise torn(self.path, "a part of the state does not match its hash")
            data[k * CHUNK : k * CHUNK + len(piece)] = np.frombuffer(piece, np.uint8)
        return array

    def events_after(self, number: int) -> Iterator[Event]:
        """All events since one, none of them missing."""
        query = "SELECT number, kind, round, payload, crc FROM event WHERE number > ? ORDER BY 1"
        with self.reading():
            for row in self._db.execute(query, (number,)):
                event = self._event(*row)
                number += 1
                if event.number != number:
                    break
                yield event
        if number != self.last:
            raise torn(self.path, f"event {number} of {self.last} is missing")

    def events_since_snapshot(self, kinds: Collection[str]) -> list[Event]:
        """Events of these kinds that the last snapshot does not know."""
        query = (
            "SELECT number, kind, round, payload, crc FROM event "
            f"WHERE number > ? AND kind IN ({', '.join('?' * len(kinds))}) ORDER BY number"
        )
        with self.reading():
            rows = self._db.execute(query, (self.about["snapshot"], *kinds)).fetchall()
            return [self._event(*row) for row in rows]

    def events_of_rounds(self, first: int, end: int, kind: str = "%") -> Iterator[Event]:
        """Events of the rounds from `first` to before `end`, round by round, draws first."""
        query = (
            "SELECT number, kind, round, payload, crc FROM event "
            "WHERE round >= ? AND round < ? AND kind LIKE ? ORDER BY round, number"
        )
        for start in range(first, end, _TOGETHER):
            with self.reading():
                some = self._db.execute(
                    query, (start, min(start + _TOGETHER, end), kind)
                ).fetchall()
                yield from (self._event(*row) for row in some)

    def _event(self, number: int, kind: str, round: int | None, payload: Any, crc: Any) -> Event:
        data = self._whole(payload, crc, f"event {number} {kind} {round}")
        return Event(number, kind, round, decode(data))

    def waiting(self, round: int) -> Record | None:
        """The cohort of a round that had not been heard of by the last snapshot."""
        query = "SELECT cohort, crc FROM waiting WHERE round = ?"
        with self.reading():
            row = self._db.execute(query, (round,)).fetchone()
        return None if row is None else decode(self._whole(row[0], row[1], f"cohort {round}"))

    def rounds(self, columns: str) -> list[tuple[Any, ...]]:
        """These columns of the rows of all rounds, in order."""
        with self.reading():
            return self._db.execute(f"SELECT {columns} FROM round ORDER BY round").fetchall()

    def count(self) -> int:
        """How many rounds were drawn."""
        with self.reading():
            (last,) = self._one("SELECT max(round) FROM round")
        return 0 if last is None else int(last) + 1

    def clients(self) -> int:
        """How many there were at the last snapshot."""
        with self.reading():
            (shape,) = self._one("SELECT shape FROM array WHERE name = 'now/weights'")
        return int(json.loads(shape)[0])

    def column_of(self, round: int, column: str) -> Any:
        """One number of a round."""
        with self.reading():
            return self._one(f"SELECT {column} FROM round WHERE round = ?", round)[0]


def create(path: Path, arrays: Mapping[str, Arrays], about: dict[str, Any]) -> None:
    """A new file with a first snapshot, there as a whole or not at all; call it under a `Lock`."""
    left = Path(f"{path}-wal")
    if left.exists() and left.stat().st_size:
        raise ValueError(
            f"{left} is left of a journal {path} that is gone; put that back or remove this, since "
            "SQLite would take it for part of the new one"
        )
    new = Path(f"{path}.new")  # a fixed name: what a killed process left is not kept for ever
    for name in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
        name.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)
            db.execute("INSERT INTO sqlite_sequence VALUES ('event', 0)")
            said = plain_json(about).encode()
            db.execute("INSERT INTO about VALUES (1, ?, ?)", (said, _crc(said, "about")))
        with closing(JournalFile(new, write=True)) as file:
            file.snapshot(arrays, {})
        os.replace(new, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        new.unlink(missing_ok=True)
        raise trouble(path, error) from error


def _crc(data: bytes, seal: str) -> int:
    return crc32(data, crc32(seal.encode()))


def _hash(piece: Any) -> bytes:
    return blake2b(piece, digest_size=_HASH).digest()

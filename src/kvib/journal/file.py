"""The file of a journal: SQLite in WAL mode, with one writer. An appended event is durable."""

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvib.files.storage import plain_json, sync_folder
from kvib.journal import earlier
from kvib.journal.access import (
    connected,
    has_other_names,
    name_of,
    other_name,
    tidied,
    torn,
    trouble,
)
from kvib.journal.layout import (
    APPLICATION,
    GIVE_UP,
    ROUNDS,
    SCHEMA,
    TABLES,
    VERSION,
    Answered,
    Drawn,
    Event,
    FileRow,
    RoundRows,
    Tip,
    columns,
    row_seal,
    seal,
)
from kvib.journal.lock import OWNER_ONLY, held
from kvib.journal.records import EventRecord, decode, encode
from kvib.types import Arrays

CHUNK = 2**18
"""Bytes of a chunk. A snapshot writes the chunks of the state that changed since the last one."""
_HASH = 16
"""Bytes of the hash of a chunk."""
_TOGETHER = 256
"""Events that are read into memory together."""
_EVENT = "SELECT number, kind, round, payload, crc FROM event"

R = TypeVar("R", Drawn, Answered)
S = TypeVar("S", Drawn, Answered, Tip)


class JournalFile:
    """The file of a journal: numbered events, the last snapshot, and a row of numbers per round.

    Everything that is read is checked: rows by their CRC-32, chunks by their hashes, and counts by
    the tip, so that a missing row is noticed. A file that fails a check raises ValueError.

    Args:
        path: The file, which must exist.
        write: Whether to open it for writing. Then a file of an earlier version becomes a file of
            this version. Without it nothing in the file is ever changed.
    """

    def __init__(self, path: Path, write: bool = False) -> None:
        self.path, self._write = path, write
        if not path.exists():
            raise FileNotFoundError(f"there is no journal {path}")
        self._db = connected(path, write)
        try:
            with self.at_once():
                outdated = write and self.version < VERSION
            if outdated:
                with self.reading():
                    self._upgrade()
        except BaseException:
            self._db.close()
            raise

    def _look(self) -> None:
        """Read the kind, the description and the tip of the file, and check them."""
        self._check_kind()
        content = self._checked("SELECT said, crc FROM about WHERE only = 1", "about")
        self.about: dict[str, Any] = json.loads(content)
        if self.about.get("version", 1) != self.version:
            raise torn(self.path, f"it does not say that it is of version {self.version}")
        home = self.about.get("home", None if self._write else name_of(self.path))
        if home != name_of(self.path) and has_other_names(self.path):
            raise other_name(self.path)
        self.tip = earlier.tip(self) if self.version < VERSION else self._tip()
        (last,) = self.one("SELECT max(number) FROM event")
        if (last or 0) != self.last:
            raise torn(
                self.path, f"event {min(last or 0, self.last) + 1} of {self.last} is missing"
            )

    def _tip(self) -> Tip:
        """The counts of the file, as they are stored now."""
        (*tip, crc) = self.one(f"SELECT {columns(Tip)} FROM tip WHERE only = 1")
        return self._row(Tip(*tip), crc)

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.tip.last

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        if not (self._write or held(self.path)):
            tidied(self.path)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that name the way out."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise trouble(self.path, error) from error

    def _check_kind(self) -> None:
        """Refuse a file that is not a journal, or one of a later version."""
        (kind,), (version,) = (
            self.one(f"PRAGMA {name}") for name in ("application_id", "user_version")
        )
        if kind != APPLICATION:
            raise ValueError(
                f"{self.path} is not a kvib journal but some other file; give another name"
            )
        if not 1 <= version <= VERSION:
            raise ValueError(
                f"{self.path} has journal version {version}, this kvib reads up to {VERSION}: "
                "install the kvib that wrote it"
            )
        self.version: int = version

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """The one row that a query finds."""
        row = self._db.execute(query, values).fetchone()
        if row is None:
            raise torn(self.path, "a row is missing")
        return tuple(row)

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""
        with self.reading():
            return self._db.execute(query).fetchall()

    def _checked(self, query: str, name: str) -> bytes:
        """The bytes that a query finds, checked by their seal."""
        data, crc = self.one(query)
        return self._whole(data, crc, name)

    def _whole(self, data: Any, crc: Any, name: str) -> bytes:
        """Bytes that match their seal."""
        if not isinstance(data, bytes) or seal(data, name) != crc:
            raise self._broken(name)
        return data

    def _row(self, row: S, crc: Any) -> S:
        """A row that matches its seal."""
        if row_seal(row) != crc:
            raise self._broken(f"a row of {TABLES[type(row)]}")
        return row

    def _broken(self, name: str) -> ValueError:
        """The error for a part of the file that does not match its seal."""
        return torn(self.path, f"{name} does not match its checksum")

    # Writing: `append`, `snapshot` and `say` are one transaction each, durable when they return.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction, rolled back after an error."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that is refused if another process wrote since the last one."""
        with self._transaction():
            if self._tip() != self.tip:
                raise self._not_alone()
            yield

    def _not_alone(self) -> BlockingIOError:
        """The error for a file that another process writes too."""
        return BlockingIOError(
            f"{self.path} was written by another process; let only one have it open"
        )

    def append(
        self, kind: str, round: int | None, record: EventRecord, row: FileRow | None
    ) -> None:
        """Append an event and its row in a transaction of their own (see `put`)."""
        with self._transaction():
            self.put(kind, round, record, row)

    def put(self, kind: str, round: int | None, record: EventRecord, row: FileRow | None) -> None:
        """Append an event inside a transaction.

        Args:
            kind: The kind of the event.
            round: The round that it belongs to, if any.
            record: The arguments of the call and its outcome.
            row: The row that it adds to its round, if any.
        """
        before, self.tip = self.tip, self.tip.after(row)
        moved = self._db.execute(
            "UPDATE tip SET last = ?, rounds = ?, heard = ?, crc = ? WHERE only = 1 AND last = ?",
            (*self.tip, row_seal(self.tip), before.last),
        )
        if moved.rowcount != 1:
            raise self._not_alone()
        payload, number = encode(record), self.tip.last
        self._db.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
            (number, kind, round, payload, seal(payload, f"event {number} {kind} {round}")),
        )
        if row is not None:
            self._insert(row._replace(event=number))

    def _insert(self, row: FileRow) -> None:
        """Insert a row with its seal."""
        marks = ", ".join("?" * (len(row) + 1))
        table = TABLES[type(row)]
        self._db.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, row_seal(row)))

    def _upgrade(self) -> None:
        """Turn a file of version 1 into one of this version, as a whole or not at all."""
        rounds = earlier.rounds(self)
        with self._transaction():
            for statement in (*ROUNDS, "DROP INDEX event_of_round", "DROP TABLE round"):
                self._db.execute(statement)
            for row in chain.from_iterable(rounds):
                if row is not None:
                    self._insert(row)
            self._db.execute(
                "INSERT INTO tip VALUES (1, ?, ?, ?, ?)", (*self.tip, row_seal(self.tip))
            )
            self._say(self.about | {"version": VERSION})
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        for name in (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm", ".lock"))):
            with suppress(OSError):  # it does not exist, or belongs to another user
                name.chmod(OWNER_ONLY)
        self._look()

    def snapshot(
        self,
        arrays: Mapping[str, Arrays],
        open_cohorts: Mapping[int, EventRecord],
        event: tuple[str, EventRecord] | None = None,
        **about: Any,
    ) -> None:
        """Write the state after the last event. Only chunks that changed are written.

        Args:
            arrays: Groups of arrays, by the name of the group.
            open_cohorts: Cohorts without feedback, by their rounds (table `waiting`).
            event: Kind and record of an event that is appended first. The snapshot contains its
                effect, so that opening does not do it again.
            about: Entries of the description that change. With `removed=r`, details of the rounds
                before r are removed.
        """
        with self.writing():
            if event is not None:
                kind, event_record = event
                self.put(kind, None, event_record, None)
            for round, record in open_cohorts.items():
                data = encode(record)
                self._db.execute(
                    "REPLACE INTO waiting VALUES (?, ?, ?)",
                    (round, data, seal(data, f"cohort {round}")),
                )
            about = {**self.about, **about, "snapshot": self.last}
            self._remove(about["removed"])
            names = dict(self.about["arrays"])
            for group, members in arrays.items():
                self._store(group, members)
                names[group] = sorted(members)
            self._drop_chunks()
            about["arrays"] = names
            self._say(about)
        self.about = about

    def _remove(self, removed: int) -> None:
        """Remove details of the rounds before this one, and cohorts that are not open any more."""
        # Cohorts of rounds that closed since the last snapshot were needed to replay from there.
        self._db.execute(
            "DELETE FROM waiting WHERE round < ? OR round IN (SELECT round FROM heard) OR round IN "
            "(SELECT round FROM event WHERE number > ? AND kind = ?)",
            (removed, self.about["snapshot"], GIVE_UP),
        )
        if removed > self.about["removed"]:
            first = self.row(Drawn, removed).event
            self._db.execute("DELETE FROM event WHERE number < ?", (first,))

    def say(self, **about: Any) -> None:
        """Change entries of the file's description."""
        with self.writing():
            self._say({**self.about, **about})
        self.about |= about

    def _say(self, about: dict[str, Any]) -> None:
        """Replace the file's description inside a transaction."""
        content = plain_json(about).encode()
        self._db.execute("REPLACE INTO about VALUES (1, ?, ?)", (content, seal(content, "about")))

    def _store(self, group: str, arrays: Arrays) -> None:
        """Replace a group of arrays. Chunks that the file has already are not written again."""
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
            place = f"array {group}/{name} {array.dtype.str} {shape}"
            self._db.execute(
                "INSERT INTO array VALUES (?, ?, ?, ?, ?)",
                (f"{group}/{name}", array.dtype.str, shape, chunks, seal(chunks, place)),
            )

    def _drop_chunks(self) -> None:
        """Remove the chunks that no array uses any more."""
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
        """A read transaction: all queries in it see the file at one moment."""
        with self.reading():
            self._db.execute("BEGIN")
            try:
                self._look()  # old rounds may have been removed since the file was opened
                yield
            finally:
                if self._db.in_transaction:  # SQLite may have rolled back by itself
                    self._db.execute("ROLLBACK")

    def arrays(self, group: str) -> Arrays:
        """A group of arrays in the last snapshot, by their names; empty if there is no group."""
        return {name: self.array(group, name) for name in self.about["arrays"].get(group, [])}

    def array(self, group: str, name: str) -> NDArray[Any]:
        """One array of a group."""
        with self.reading():
            return self._read(*self._described(group, name))

    def clients(self) -> int:
        """The number of clients at the last snapshot, departed ones included."""
        with self.reading():
            _, shape, _ = self._described("now", "weights")
        return shape[0]

    def _described(self, group: str, name: str) -> tuple[str, tuple[int, ...], bytes]:
        """Type and shape of an array, and the hashes of its chunks."""
        query = "SELECT dtype, shape, chunks, crc FROM array WHERE name = ?"
        dtype, shape, chunks, crc = self.one(query, f"{group}/{name}")
        hashes = self._whole(chunks, crc, f"array {group}/{name} {dtype} {shape}")
        return dtype, tuple(json.loads(shape)), hashes

    def _read(self, dtype: str, shape: tuple[int, ...], chunks: bytes) -> NDArray[Any]:
        """An array from its chunks, each checked by its hash."""
        array = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8)
        for k in range(len(chunks) // _HASH):
            hash = chunks[k * _HASH : (k + 1) * _HASH]
            (piece,) = self.one("SELECT bytes FROM chunk WHERE hash = ?", hash)
            if not isinstance(piece, bytes) or _hash(piece) != hash:
                raise torn(self.path, "a part of the state does not match its hash")
            data[k * CHUNK : k * CHUNK + len(piece)] = np.frombuffer(piece, np.uint8)
        return array

    def events_after(self, number: int) -> Iterator[Event]:
        """All events after the one with this number."""
        return self.events(range(number + 1, self.last + 1))

    def events_since_snapshot(self, kinds: Collection[str]) -> list[Event]:
        """Events of these kinds after the last snapshot."""
        return [event for event in self.events_after(self.about["snapshot"]) if event.kind in kinds]

    def events(self, numbers: Iterable[int]) -> Iterator[Event]:
        """The events with these numbers, in this order, none of them missing."""
        for some in _batched(numbers, _TOGETHER):
            with self.reading():
                query = f"{_EVENT} WHERE number IN ({', '.join('?' * len(some))})"
                found = {row[0]: row for row in self._db.execute(query, some)}
            for number in some:
                if number not in found:
                    raise torn(self.path, f"event {number} of {self.last} is missing")
                yield self._event(*found[number])

    def _event(self, number: int, kind: str, round: int | None, payload: Any, crc: Any) -> Event:
        """An event from its row, checked by its seal."""
        data = self._whole(payload, crc, f"event {number} {kind} {round}")
        return Event(number, kind, round, decode(data))

    def open_cohort(self, round: int) -> EventRecord | None:
        """The exact cohort of a round that had no feedback by the last snapshot, as a record."""
        query = "SELECT cohort, crc FROM waiting WHERE round = ?"
        with self.reading():
            row = self._db.execute(query, (round,)).fetchone()
        return None if row is None else decode(self._whole(row[0], row[1], f"cohort {round}"))

    def rounds(self) -> list[RoundRows]:
        """The rows of all rounds, in order, none of them missing."""
        if self.version < VERSION:
            return earlier.rounds(self)
        drawn, answers = self._rows(Drawn), {row.round: row for row in self._rows(Answered)}
        if [row.round for row in drawn] != list(range(self.tip.rounds)):
            raise torn(self.path, f"one of {self.tip.rounds} rounds is missing")
        if len(answers) != self.tip.answered:
            raise torn(self.path, f"feedback to one of {self.tip.answered} rounds is missing")
        return [(row, answers.get(row.round)) for row in drawn]

    def _rows(self, kind: type[R]) -> list[R]:
        """All rows of a kind, by round, each checked by its seal."""
        query = f"SELECT {columns(kind)} FROM {TABLES[kind]} ORDER BY round"
        with self.reading():
            return [self._row(kind(*row), crc) for *row, crc in self._db.execute(query)]

    def row(self, kind: type[R], round: int) -> R:
        """The row of one round."""
        query = f"SELECT {columns(kind)} FROM {TABLES[kind]} WHERE round = ?"
        with self.reading():
            *row, crc = self.one(query, round)
            found = self._row(kind(*row), crc)
        if found.round != round:
            raise torn(self.path, f"round {round} is missing")
        return found


def create(path: Path, arrays: Mapping[str, Arrays], about: dict[str, Any]) -> None:
    """Create a file with a first snapshot, as a whole or not at all. Call it under a `Lock`.

    Args:
        path: The new file.
        arrays: Groups of arrays of the first snapshot.
        about: The description of the file.
    """
    left = Path(f"{path}-wal")
    if left.exists() and left.stat().st_size:
        raise ValueError(
            f"{left} is left of a journal {path} that is gone; put that back or remove this, since "
            "SQLite would take it for part of the new one"
        )
    new = Path(f"{path}.new")  # a fixed name, so that leftovers of a killed process are replaced
    for name in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
        name.unlink(missing_ok=True)
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            for statement in (*SCHEMA, *ROUNDS):
                db.execute(statement)
            content, tip = plain_json(about | {"version": VERSION}).encode(), Tip()
            db.execute("INSERT INTO about VALUES (1, ?, ?)", (content, seal(content, "about")))
            db.execute("INSERT INTO tip VALUES (1, ?, ?, ?, ?)", (*tip, row_seal(tip)))
        with closing(JournalFile(new, write=True)) as file:
            file.snapshot(arrays, {})
        os.replace(new, path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        new.unlink(missing_ok=True)
        raise trouble(path, error) from error


def _batched(values: Iterable[int], size: int) -> Iterator[list[int]]:
    """Lists of this size, the last one shorter."""
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


def _hash(piece: Any) -> bytes:
    """The hash of a chunk."""
    return blake2b(piece, digest_size=_HASH).digest()

"""Connections to the file of a journal, with errors that name the way out."""

import os
import sqlite3
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from kvib.journal.wal import broken

_SYSTEM = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
"""SQLite's codes for errors of the machine, not of the contents of the file."""
_LARGEST_LOG = 2**26
"""Bytes to which SQLite cuts its log once the log has been copied into the file."""


def name_of(path: Path) -> str:
    """A digest of the name of a file."""
    return blake2b(os.fsencode(path), digest_size=16).hexdigest()


def has_other_names(path: Path) -> bool:
    """Whether a file has several names (hard links).

    SQLite finds its log by the name of the file. Rounds in the log are not seen under another name.
    """
    return path.stat().st_nlink > 1


def other_name(path: Path) -> BlockingIOError:
    """The error for a file that is written under another name."""
    return BlockingIOError(
        f"{path} has another name (a hard link), under which it was opened before and may be open "
        "now; use that one, or a copy"
    )


def connected(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to an existing file, which it changes only with `write`."""
    address, wal = path.absolute().as_uri(), Path(f"{path}-wal")
    with suppress(FileNotFoundError):
        if broken(wal):
            raise torn(path, f"its log {wal.name} is damaged")
    try:
        return _opened(f"{address}?mode={'rw' if write else 'ro'}", write)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        no_access = error_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if write or not no_access or (wal.exists() and wal.stat().st_size):
            raise trouble(path, error) from error
    try:  # SQLite may not put its side files into this folder, so no process writes the file
        return _opened(f"{address}?immutable=1", write)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise trouble(path, error) from error


def tidied(path: Path) -> None:
    """Remove the empty side files that SQLite puts beside a file for a reader.

    A connection for reading leaves them. Only the last connection for writing removes them when it
    closes, so one is opened and closed here. A log that is not empty stays: it may be left from a
    crash, and reading changes nothing.
    """
    try:
        if not Path(f"{path}-wal").stat().st_size:
            _opened(f"{path.absolute().as_uri()}?mode=rw", write=False).close()
    except (OSError, sqlite3.Error):
        return  # removed by now, or not ours to remove


def _opened(address: str, write: bool) -> sqlite3.Connection:
    """A connection to this address, tried out."""
    db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA schema_version")
        if write:
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA journal_size_limit = {_LARGEST_LOG}")
            db.execute("BEGIN IMMEDIATE")  # refused where the file is read-only
            db.execute("ROLLBACK")
    except BaseException:
        db.close()
        raise
    return db


def trouble(path: Path, error: Exception) -> Exception:
    """An error of SQLite turned into one that names the way out."""
    if error_code(error) == sqlite3.SQLITE_IOERR and has_other_names(path):
        return other_name(path)  # the file is open in this process under that name
    if isinstance(error, OSError) or error_code(error) in _SYSTEM:
        return OSError(
            f"{path} cannot be read or written ({error}): make the file and its folder accessible, "
            "free space on the disk, and open it again"
        )
    return torn(path, str(error))


class TornError(ValueError):
    """Raised for a file that something else than a crash has damaged."""


def torn(path: Path, why: str) -> TornError:
    """The error for a damaged file, with the reason."""
    return TornError(
        f"{path} is not a whole kvib journal ({why}); nothing was changed: put back the last copy"
    )


def error_code(error: Exception) -> int:
    """SQLite's code of an error; 0 if the error is not SQLite's."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF

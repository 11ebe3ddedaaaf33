"""Getting at the file of a journal, with errors that say the way out."""

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
"""Errors of the machine, not of what the file says."""


def name_of(path: Path) -> str:
    """A digest of the name of a file."""
    return blake2b(os.fsencode(path), digest_size=16).hexdigest()


def has_other_names(path: Path) -> bool:
    """Whether a file has hard links. SQLite's log goes by the name of the file, so rounds in it are
    not seen under another name."""
    return path.stat().st_nlink > 1


def other_name(path: Path) -> BlockingIOError:
    """The file is written under another name."""
    return BlockingIOError(
        f"{path} has another name (a hard link), under which it was opened before and may be open "
        "now; use that one, or a copy"
    )


def connected(path: Path, write: bool) -> sqlite3.Connection:
    """A connection that never makes a file, and changes one only if it is to."""
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
    try:  # a folder where SQLite may not put its side files: then nobody writes there either
        return _opened(f"{address}?immutable=1", write)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise trouble(path, error) from error


def tidied(path: Path) -> None:
    """Remove the empty side files that a reader has SQLite put beside a file nobody writes.

    A connection for reading leaves them; the last one for writing takes them with it, and only the
    last. A log that is not empty stays: it may be of a crash, and reading changes nothing.
    """
    try:
        if not Path(f"{path}-wal").stat().st_size:
            _opened(f"{path.absolute().as_uri()}?mode=rw", write=False).close()
    except (OSError, sqlite3.Error):
        return  # gone by now, or not ours to remove


def _opened(address: str, write: bool) -> sqlite3.Connection:
    db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA schema_version")
        if write:
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA journal_size_limit = {2**26}")
            db.execute("BEGIN IMMEDIATE")  # refused where the file is read-only
            db.execute("ROLLBACK")
    except BaseException:
        db.close()
        raise
    return db


def trouble(path: Path, error: Exception) -> Exception:
    """An error of SQLite as one that says the way out."""
    if error_code(error) == sqlite3.SQLITE_IOERR and has_other_names(path):
        return other_name(path)  # which is open in this process
    if isinstance(error, OSError) or error_code(error) in _SYSTEM:
        return OSError(
            f"{path} cannot be read or written ({error}): make the file and its folder accessible, "
            "free space on the disk, and open it again"
        )
    return torn(path, str(error))


class TornError(ValueError):
    """A file that was damaged by something else than a crash."""


def torn(path: Path, why: str) -> TornError:
    """The error that says what is wrong with a file."""
    return TornError(
        f"{path} is not a whole kvib journal ({why}); nothing was changed: put back the last copy"
    )


def error_code(error: Exception) -> int:
    """What SQLite calls an error; 0 if it is not SQLite's."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF

"""Getting at the file of a journal: one writer, and errors that say the way out."""

import sqlite3
from pathlib import Path

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


class Lock:
    """Only one process writes a journal; whoever dies lets go.

    An exclusive transaction on an empty database beside the file: SQLite knows how to lock on every
    system, and readers of the journal itself are not kept out.
    """

    def __init__(self, path: Path) -> None:
        file = Path(f"{path}.lock")
        try:
            self._db = sqlite3.connect(  # whichever thread stops the sampler lets go
                file, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise trouble(file, error) from error
        try:
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            self._db.close()
            if _code(error) != sqlite3.SQLITE_BUSY:
                raise trouble(file, error) from error
            raise BlockingIOError(
                f"{path} is open elsewhere, in another process or a second time in this one; close "
                "it there first. kvib.journal.read(path) answers questions meanwhile"
            ) from error

    def release(self) -> None:
        """Let others in."""
        self._db.close()


def connected(path: Path, write: bool) -> sqlite3.Connection:
    """A connection that never makes a file, and changes one only if it is to."""
    address = path.absolute().as_uri()
    try:
        return _opened(f"{address}?mode={'rw' if write else 'ro'}", write)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        wal = Path(f"{path}-wal")
        no_access = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
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
    wal = Path(f"{path}-wal")
    try:
        if not wal.stat().st_size:
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
    if _code(error) in _SYSTEM:
        return OSError(
            f"{path} cannot be read or written ({error}): make the file and its folder accessible, "
            "free space on the disk, and open it again"
        )
    return torn(path, str(error))


def torn(path: Path, why: str) -> ValueError:
    """The file was damaged by something else than a crash."""
    return ValueError(
        f"{path} is not a whole kvib journal ({why}); nothing was changed: put back the last copy"
    )


def _code(error: Exception) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF

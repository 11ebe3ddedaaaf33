"""The lock that lets one process at a time write a journal. It ends with that process."""

import os
import sqlite3
import struct
import sys
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from kvib.journal.access import error_code, trouble

with suppress(ImportError):  # not on every system
    import fcntl

OWNER_ONLY = 0o600
"""Permissions of a journal and of the files beside it."""
_FLOCK = "hhqqi0q"
"""C's struct flock: kind, whence, start, length, process."""
_FIRST_BYTE, _BYTES = 2**30, 512
"""The bytes that SQLite locks in its files."""


class Lock:
    """The right to write a journal: a lock on an empty file beside it.

    The journal itself is not locked, so that others can read it.

    Linux has locks that belong to an open file. POSIX locks belong to the process, and are lost as
    soon as anything in the process closes the locked file, even after reading it only. Systems that
    have only POSIX locks get SQLite's lock. Both kinds lock the same bytes and see each other, so
    that every version of kvib keeps out every other one.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        file = Path(f"{path}.lock")
        try:
            held = _OpenFile if _belong_to_files() else _Database
            self._held: _OpenFile | _Database = held(file)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{path} is open elsewhere, in another process or a second time in this one; close "
                "it there first. kvib.journal.read(path) answers questions meanwhile"
            ) from error
        except (OSError, sqlite3.Error) as error:
            raise trouble(file, error) from error

    def release(self) -> None:
        """Release the lock, so that another process can write."""
        self._held.close()


class _OpenFile:
    """A lock that belongs to an open file."""

    def __init__(self, file: Path) -> None:
        fd = os.open(file, os.O_RDWR | os.O_CREAT, OWNER_ONLY)
        self.close = weakref.finalize(self, os.close, fd)
        """Release the lock. This also happens when the object is deleted. In a forked child it
        leaves the lock with the parent alone."""
        try:
            _lock(fd)
        except OSError:
            self.close()
            raise
        _INHERITED.add(self)


class _Database:
    """A lock by an exclusive transaction on an empty database."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(  # any thread may stop the sampler and release the lock
            file, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            self._db.close()
            if error_code(error) == sqlite3.SQLITE_BUSY:
                raise BlockingIOError from error
            raise

    def close(self) -> None:
        """Release the lock."""
        self._db.close()


_INHERITED: weakref.WeakSet[_OpenFile] = weakref.WeakSet()
"""Locks that a forked child would inherit."""


def _let_go_in_child() -> None:
    """Release all locks in a forked child, which may outlive its parent."""
    for held in list(_INHERITED):
        held.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def held(path: Path) -> bool:
    """Whether some process holds the lock of a journal; False where the system cannot tell."""
    if not _belong_to_files():
        return False
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # the lock file belongs to another user
    try:
        return _locked_by_another(fd)
    finally:
        os.close(fd)


@cache
def _belong_to_files() -> bool:
    """Whether this system has locks that belong to an open file."""
    if sys.platform != "linux":
        return False
    fd = os.memfd_create("kvib")
    try:
        _lock(fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _lock(fd: int) -> None:
    """Lock the bytes that SQLite locks, or raise BlockingIOError."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _request())


def _locked_by_another(fd: int) -> bool:
    """Whether another open file holds the lock."""
    kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _request()))
    return bool(kind != fcntl.F_UNLCK)


def _request() -> bytes:
    """The request for an exclusive lock on the bytes that SQLite locks, as C's struct flock."""
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _FIRST_BYTE, _BYTES, 0)

"""One writer of a journal at a time. The lock goes with the process that holds it."""

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


class Lock:
    """The right to write a journal: a lock on an empty file beside it, so that readers of the
    journal itself are not kept out.

    Linux has locks that belong to an open file. The usual ones (POSIX) belong to the process, and
    are lost as soon as anything in it closes that file, be it after a look. Systems that have no
    others get SQLite's. Both lock the same bytes and see each other, so that kvib of any version
    keeps out any other.
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
        """Let others in."""
        self._held.close()


class _OpenFile:
    """A lock that belongs to an open file."""

    def __init__(self, file: Path) -> None:
        fd = os.open(file, os.O_RDWR | os.O_CREAT, OWNER_ONLY)
        self.close = weakref.finalize(self, os.close, fd)
        """Let go; this also happens when the object is deleted. In a forked child it leaves the
        lock with the parent, and with the parent alone."""
        try:
            _lock(fd)
        except OSError:
            self.close()
            raise
        _INHERITED.add(self)


class _Database:
    """A lock by an exclusive transaction on an empty database."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(  # whichever thread stops the sampler lets go
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
        self._db.close()


_INHERITED: weakref.WeakSet[_OpenFile] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A child that outlives its parent must not keep others out."""
    for held in list(_INHERITED):
        held.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def held(path: Path) -> bool:
    """Whether a process has the right to write a journal, as far as this system can say."""
    if not _belong_to_files():
        return False
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's
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
    kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _request()))
    return bool(kind != fcntl.F_UNLCK)


def _request() -> bytes:
    first, length = 2**30, 512
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, first, length, 0)

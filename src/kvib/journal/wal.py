"""SQLite's write-ahead log, looked at for damage that SQLite takes for its end.

SQLite reads a log up to the first frame (a page with a checksum) that is not whole, as it must
after a crash. But every transaction is on the disk before the next one begins, so that a crash
leaves at most one behind that frame. Where two in a row are there, the log was damaged by something
else, and rounds that were durable would be lost without a word.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PAGE = 4096
"""Bytes of a page, where a log does not say it."""
_TOGETHER = 2048
"""Frames that are read into memory together."""

Words = NDArray[np.uint32]


class Head:
    """The first 32 bytes of a log: eight words, the last two a checksum of the others."""

    def __init__(self, data: bytes) -> None:
        self.words: Words = np.frombuffer(data, ">u4").astype(np.uint32)
        self.order = ">u4" if self.words[0] & 1 else "<u4"
        """How checksums read words."""
        own = np.frombuffer(data, self.order, 6).astype(np.uint32)
        self.whole = bool((_sums(own[None], np.zeros((1, 2), np.uint32)) == self.words[6:]).all())
        self.page = int(self.words[2]) if self.whole else _PAGE


class Frame(NamedTuple):
    """A page in a log."""

    follows: bool
    """Whether it is whole and goes on from the frame before it."""
    commits: bool
    """Whether a transaction ends with it."""


def broken(wal: Path) -> bool:
    """Whether transactions of a log are lost to damage.

    While another process writes, one look sees several moments. What two looks agree on is true.
    """
    first = _break(wal)
    return first is not None and first == _break(wal)


def _break(wal: Path) -> tuple[bytes, int] | None:
    """The first frame that is not whole, if two transactions in a row come after it, and what the
    log begins with, since SQLite writes it over again and again."""
    with open(wal, "rb") as file:
        data = file.read(32)
        at, commits = None, 0
        for number, frame in enumerate(_frames(file, Head(data)) if len(data) == 32 else ()):
            if not frame.follows:
                at, commits = number if at is None else at, 0
            commits += frame.commits
            if at is not None and commits > 1:
                return data, at
    return None


def _frames(file: BinaryIO, head: Head) -> Iterator[Frame]:
    """The frames after the head; those of an earlier use of the log follow and commit nothing."""
    size, salt = 24 + head.page, head.words[4:6]
    before = head.words[6:] + np.uint32(not head.whole)  # nothing follows one that is not whole
    while count := len(data := file.read(_TOGETHER * size)) // size:
        frames = np.frombuffer(data, np.uint8, count * size).reshape(count, size)
        heads: Words = frames[:, :24].copy().view(">u4").astype(np.uint32)
        if not head.whole:
            salt = heads[0, 2:4]
        sealed = np.concatenate([frames[:, :8], frames[:, 24:]], axis=1).view(head.order)
        sums = _sums(sealed.astype(np.uint32), np.concatenate([before[None], heads[:-1, 4:]]))
        ours = (heads[:, 2:4] == salt).all(axis=1)
        follows = ours & (sums == heads[:, 4:]).all(axis=1)
        yield from map(Frame, follows.tolist(), (ours & (heads[:, 1] != 0)).tolist())
        before = heads[-1, 4:]


def _sums(words: Words, before: Words) -> Words:
    """Checksums (a, b) of rows of words, [n, 2]: for each pair x, y of them a += x + b, b += y + a,
    modulo 2³², from what they were before."""
    start, each = _factors(words.shape[1])
    return before @ start + words @ each


@cache
def _factors(count: int) -> tuple[Words, Words]:
    """Factors of (a, b) before, [2, 2], and of each of the words, [count, 2], in (a, b) after."""
    # A pair x, y takes (a, b) to (a, b) @ step + x·(1, 1) + y·(0, 1).
    step = np.array([[1, 1], [1, 2]], np.uint32)
    each, after = np.empty((count, 2), np.uint32), np.eye(2, dtype=np.uint32)
    for k in range(count - 2, -1, -2):
        each[k], each[k + 1] = after.sum(axis=0, dtype=np.uint32), after[1]
        after = step @ after
    return after, each

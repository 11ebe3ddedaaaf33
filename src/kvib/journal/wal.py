"""A check of SQLite's write-ahead log for damage that SQLite takes for the end of the log.

SQLite reads a log up to the first frame (a page with a checksum) that is not whole, as it must
after a crash. But every transaction is on the disk before the next one begins, so that a crash
leaves at most one transaction after that frame. Where two in a row follow it, something else
damaged the log, and SQLite would drop durable rounds without an error.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PAGE = 4096
"""Bytes of a page, where the head of a log is damaged and does not tell."""
_TOGETHER = 2048
"""Frames that are read into memory together."""
_HEAD = 32
"""Bytes of the head of a log, in SQLite's format."""
_FRAME_HEAD = 24
"""Bytes of the head of a frame: page, commit, two salts, two checksums, of four bytes each."""

Words = NDArray[np.uint32]
"""Numbers of four bytes."""


class Head:
    """The first 32 bytes of a log: eight words, of which the last two are a checksum."""

    def __init__(self, data: bytes) -> None:
        self.words: Words = np.frombuffer(data, ">u4").astype(np.uint32)
        self.order = ">u4" if self.words[0] & 1 else "<u4"
        """The byte order in which checksums read words."""
        own = np.frombuffer(data, self.order, 6).astype(np.uint32)
        self.whole = bool((_sums(own[None], np.zeros((1, 2), np.uint32)) == self.words[6:]).all())
        self.page = int(self.words[2]) if self.whole else _PAGE


class Frame(NamedTuple):
    """A page in a log."""

    follows: bool
    """Whether the frame is whole and continues the frame before it."""
    commits: bool
    """Whether a transaction ends with the frame."""


def broken(wal: Path) -> bool:
    """Whether damage to a log would lose transactions.

    While another process writes, one pass over the log may see several moments. Damage that two
    passes find alike is real.
    """
    first = _break(wal)
    return first is not None and first == _break(wal)


def _break(wal: Path) -> tuple[bytes, int] | None:
    """The first frame that is not whole, if two transactions in a row follow it; None otherwise.

    The head of the log comes with it, since SQLite writes over a log again and again.
    """
    with open(wal, "rb") as file:
        data = file.read(_HEAD)
        at, commits = None, 0
        for number, frame in enumerate(_frames(file, Head(data)) if len(data) == _HEAD else ()):
            if not frame.follows:
                at, commits = number if at is None else at, 0
            commits += frame.commits
            if at is not None and commits > 1:
                return data, at
    return None


def _frames(file: BinaryIO, head: Head) -> Iterator[Frame]:
    """The frames after the head.

    Frames of an earlier use of the log have another salt: for them `follows` and `commits` are
    False.
    """
    size, salt = _FRAME_HEAD + head.page, head.words[4:6]
    # No frame continues a damaged head: its checksum is made wrong.
    before = head.words[6:] + np.uint32(not head.whole)
    while count := len(data := file.read(_TOGETHER * size)) // size:
        frames = np.frombuffer(data, np.uint8, count * size).reshape(count, size)
        heads: Words = frames[:, :_FRAME_HEAD].copy().view(">u4").astype(np.uint32)
        if not head.whole:
            salt = heads[0, 2:4]
        # Checksums cover page number and commit mark, then the page.
        sealed = np.concatenate([frames[:, :8], frames[:, _FRAME_HEAD:]], axis=1).view(head.order)
        sums = _sums(sealed.astype(np.uint32), np.concatenate([before[None], heads[:-1, 4:]]))
        ours = (heads[:, 2:4] == salt).all(axis=1)
        follows = ours & (sums == heads[:, 4:]).all(axis=1)
        yield from map(Frame, follows.tolist(), (ours & (heads[:, 1] != 0)).tolist())
        before = heads[-1, 4:]


def _sums(words: Words, before: Words) -> Words:
    """Checksums (a, b) of rows of words, [n, 2].

    For each pair x, y of words a += x + b and b += y + a, modulo 2³². `before` holds (a, b) before
    the first pair, [n, 2].
    """
    start, each = _factors(words.shape[1])
    return before @ start + words @ each


@cache
def _factors(count: int) -> tuple[Words, Words]:
    """The factors of (a, b) before, [2, 2], and of each word, [count, 2], in (a, b) after."""
    # A pair x, y takes (a, b) to (a, b) @ step + x·(1, 1) + y·(0, 1).
    step = np.array([[1, 1], [1, 2]], np.uint32)
    each, after = np.empty((count, 2), np.uint32), np.eye(2, dtype=np.uint32)
    for k in range(count - 2, -1, -2):
        each[k], each[k + 1] = after.sum(axis=0, dtype=np.uint32), after[1]
        after = step @ after
    return after, each

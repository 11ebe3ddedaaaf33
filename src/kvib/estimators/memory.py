"""What the server keeps of past updates: all of them, a few numbers of each, or means of groups.

Updates are rows of a NumPy array or of a torch tensor, [m, d]; memories live where updates do.
"""

import tempfile
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvib.estimators.tensors import (
    Rows,
    copied,
    double,
    doubled,
    half,
    is_numpy,
    single,
    to_numpy,
    zeros,
)
from kvib.estimators.tensors import like as like_of
from kvib.files import intact
from kvib.files.intact import CLOSE, COUNT, Range
from kvib.types import Arrays, FloatArray, IntArray, Tensor

BLOCK = 2**22
"""Numbers that are recalled at once where many clients are summed up."""

ENTRIES = Range("entries of updates", -1e100, 1e100)
"""No update has larger ones, and squares of these are numbers."""


def _nothing(like: Rows) -> Tensor:
    """Σλh before anything was seen, [d], in double precision."""
    return double(zeros(like, like.shape[1]))


def _representable(rows: Tensor, updates: Rows) -> Rows:
    """Within what the memory's precision, single or half, can say."""
    is_half = str(rows.dtype).endswith("float16")  # of NumPy and of torch
    most = float(np.finfo(np.float16 if is_half else np.float32).max)
    within: Rows = double(updates).clip(-most, most)
    return within


def _sum(store: "Store", ids: IntArray, weight: FloatArray) -> Tensor:
    """Σ weight·h, [d], of so many clients at a time that it fits into memory."""
    total = store.total * 0
    some = max(1, BLOCK // len(total))
    for low in range(0, len(ids), some):
        part = slice(low, low + some)
        total = total + doubled(weight[part], store.recall(ids[part]))
    return total


class Store(Protocol):
    """h of every client, and Σλh."""

    total: Tensor
    """Σλh, [d]."""

    def recall(self, ids: IntArray) -> Rows:
        """h of these clients, zero for those never seen, [m, d]."""

    def sum(self, ids: IntArray, weight: FloatArray) -> Tensor:
        """Σ weight·h of these clients, [d], in double precision."""

    def keep(self, ids: IntArray, weight: FloatArray, updates: Rows) -> None:
        """Remember these updates; others of the round are still recalled as before."""

    def settle(self) -> None:
        """The round is over: what was kept counts."""

    def packed(self) -> Arrays:
        """As arrays."""

    def restore(self, arrays: Arrays) -> None:
        """What `packed` packed."""


class Memory(Protocol):
    """How much to keep: frozen configuration."""

    def open(self, weights: FloatArray, like: Rows) -> Store:
        """An empty store for updates like these."""

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """The store that packed these arrays, in NumPy; an error where none can have done so."""


def _member(arrays: Arrays, name: str, shape: tuple[int, ...], allowed: Range = ENTRIES) -> None:
    """Refuse an array of another shape, or with other numbers."""
    intact.shaped(f"estimator.memory.{name}", arrays[name], shape, "iu" if allowed.whole else "f")
    intact.within(f"estimator.memory.{name}", arrays[name], allowed)


def _remembered(arrays: Arrays, clients: int, *others: str) -> tuple[int, int]:
    """How many clients are remembered, and how long their updates are."""
    intact.names("estimator.memory", arrays, ("ids", "total", *others))
    ids = intact.ids("estimator.memory.ids", arrays["ids"], clients)
    _member(arrays, "total", (arrays["total"].size,))
    return len(ids), arrays["total"].size


def _agreeing(store: Store, truth: Tensor, entries: NDArray[Any]) -> Store:
    """The store; its Σλh is made anew where it is not the sum of the entries remembered."""
    largest = max(float(entries.max(initial=0)), -float(entries.min(initial=0)))
    if np.abs(to_numpy(store.total - truth)).max(initial=0) > CLOSE * largest:
        store.total = truth
    return store


@dataclass(frozen=True)
class LastUpdates:
    """Every client's last update: N·d numbers. In NumPy arrays only clients seen take memory.

    Args:
        precision: float32, or float16 for half of it.
        limit: bytes beyond which it lies in a file instead, also that of tensors, which are on the
            device otherwise.
        folder: of that file; by default the system's for temporary files.
    """

    precision: str = "float32"
    limit: float = 4e9
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float16"):
            raise ValueError(f"precision {self.precision!r} is not one of float32, float16")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """Zeros."""
        return _LastUpdates(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Rows of those who were seen."""
        seen, d = _remembered(arrays, len(weights), "rows")
        _member(arrays, "rows", (seen, d))
        store = self.open(weights, np.zeros((1, d)))
        store.restore(arrays)
        rows = arrays["rows"]
        return _agreeing(store, doubled(weights[arrays["ids"]], rows), rows)


class _LastUpdates:
    def __init__(self, config: LastUpdates, weights: FloatArray, like: Rows) -> None:
        N, d = len(weights), like.shape[1]
        self._seen = np.zeros(N, dtype=np.bool_)
        self._like, kind = single(like[:0]), np.dtype(config.precision)
        if N * d * kind.itemsize > config.limit:
            folder = config.folder or tempfile.gettempdir()
            file = tempfile.NamedTemporaryFile(dir=folder, prefix="kvib-memory-")  # noqa: SIM115
            weakref.finalize(self, file.close)
            self._rows: Rows = np.memmap(file, kind, "w+", shape=(N, d))
        elif is_numpy(like):
            self._rows = np.zeros((N, d), kind)  # the system gives pages when touched
        else:
            other = half(self._like) if config.precision == "float16" else self._like
            self._rows = zeros(other, (N, d))
        self.total = _nothing(like)

    def recall(self, ids: IntArray) -> Rows:
        rows = single(self._rows[np.array(ids)])
        return rows if is_numpy(self._like) else like_of(self._like, rows)

    def sum(self, ids: IntArray, weight: FloatArray) -> Tensor:
        seen = self._seen[ids]
        return _sum(self, ids[seen], weight[seen])

    def keep(self, ids: IntArray, weight: FloatArray, updates: Rows) -> None:
        before = self.recall(ids)
        self._rows[np.array(ids)] = like_of(self._rows, _representable(self._rows, updates))
        self.total = self.total + doubled(weight, self.recall(ids)) - doubled(weight, before)
        self._seen[ids] = True

    def settle(self) -> None:
        """Clients have rows of their own."""

    def packed(self) -> Arrays:
        ids = np.flatnonzero(self._seen)
        rows = np.array(to_numpy(self._rows[ids]))
        return {"ids": ids, "rows": rows, "total": np.array(to_numpy(self.total))}

    def restore(self, arrays: Arrays) -> None:
        ids = arrays["ids"].astype(np.int64)
        self._rows[ids] = like_of(self._rows, arrays["rows"])
        self._seen[ids] = True
        self.total = like_of(self.total, arrays["total"])


@dataclass(frozen=True)
class GroupMeans:
    """Means of groups of clients whose updates point the same way: (groups + 1)·d numbers.

    A client joins the group whose mean is nearest in direction when it is first seen, and stays;
    clients never seen are taken for the mean of all.

    Args:
        groups: how many.
        rate: weight of a new update in its group's mean.
    """

    groups: int = 16
    rate: float = 0.2

    def __post_init__(self) -> None:
        if self.groups < 1 or not 0 < self.rate <= 1:
            raise ValueError(f"groups={self.groups}, rate={self.rate}: give 1 or more, 0 to 1")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """No group has a mean yet."""
        return _GroupMeans(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Means, and who is in which group."""
        intact.names("estimator.memory", arrays, ("group", "sizes", "means"))
        rows, means = self.groups + 1, arrays["means"]
        _member(arrays, "means", (rows, means.size // rows))
        _member(arrays, "sizes", (rows,), COUNT)
        _member(arrays, "group", weights.shape, Range("groups", 0, self.groups, whole=True))
        store = self.open(weights, means[:1])
        store.restore(arrays)
        return store


class _GroupMeans:
    """Row 0 is the mean of all, which stands for clients of no group."""

    def __init__(self, config: GroupMeans, weights: FloatArray, like: Rows) -> None:
        self._config, self._weights = config, weights
        rows = config.groups + 1
        self._group = np.zeros(len(weights), np.int64)
        self._sizes = np.zeros(rows, np.int64)
        self._means = like_of(like, np.zeros((rows, like.shape[1])))
        self._next: tuple[Rows, IntArray, IntArray] | None = None
        """Means, groups and sizes once the round is over."""
        self.total = _nothing(like)

    def recall(self, ids: IntArray) -> Rows:
        return self._means[self._group[ids]]

    def sum(self, ids: IntArray, weight: FloatArray) -> Tensor:
        mass: FloatArray = np.bincount(self._group[ids], weight, len(self._sizes)).astype(float)
        return doubled(mass, self._means)

    def keep(self, ids: IntArray, weight: FloatArray, updates: Rows) -> None:
        if self._next is None:
            self._next = copied(self._means), self._group.copy(), self._sizes.copy()
        means, group, sizes = self._next
        for k, i in enumerate(ids.tolist()):
            row = updates[k]
            if group[i] == 0:
                group[i] = self._nearest(means, sizes, row)
            for g in (0, int(group[i])):
                rate = max(self._config.rate, 1 / (sizes[g] + 1))
                means[g] = (1 - rate) * means[g] + rate * row
                sizes[g] += 1

    def _nearest(self, means: Rows, sizes: IntArray, row: Tensor) -> int:
        """An empty group, or the one whose mean points most the same way."""
        empty = np.flatnonzero(sizes[1:] == 0)
        if len(empty):
            return 1 + int(empty[0])
        lengths = ((means[1:] ** 2).sum(1) ** 0.5) + 1e-30
        return 1 + int(to_numpy((means[1:] @ row) / lengths).argmax())

    def settle(self) -> None:
        if self._next is not None:
            self._means, self._group, self._sizes = self._next
            self.total = self.sum(np.arange(len(self._group)), self._weights)
            self._next = None

    def packed(self) -> Arrays:
        means = np.array(to_numpy(self._means))
        return {"group": self._group.copy(), "sizes": self._sizes.copy(), "means": means}

    def restore(self, arrays: Arrays) -> None:
        means = like_of(self._means, arrays["means"])
        self._next = means, arrays["group"], arrays["sizes"]
        self.settle()


@dataclass(frozen=True)
class LargestEntries:
    """The largest entries of every client's last update: a sketch of 6 bytes per entry kept.

    Args:
        kept: entries per client.
    """

    kept: int = 1000

    def __post_init__(self) -> None:
        if self.kept < 1:
            raise ValueError(f"kept={self.kept} is not a number of entries; 1000 is a good one")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """Nothing kept."""
        return _LargestEntries(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Entries of those who were seen, and where they belong."""
        seen, d = _remembered(arrays, len(weights), "where", "value")
        kept = min(self.kept, d)
        _member(arrays, "where", (seen, kept), Range("places", 0, d - 1, whole=True))
        _member(arrays, "value", (seen, kept))
        store = self.open(weights, np.zeros((1, d)))
        store.restore(arrays)
        ids = arrays["ids"]
        return _agreeing(store, store.sum(ids, weights[ids]), arrays["value"])


class _LargestEntries:
    def __init__(self, config: LargestEntries, weights: FloatArray, like: Rows) -> None:
        self._kept = min(config.kept, like.shape[1])
        self._width = like.shape[1]
        N = len(weights)
        self._seen = np.zeros(N, dtype=np.bool_)
        self._where = np.zeros((N, self._kept), np.int32)
        self._value = np.zeros((N, self._kept), np.float16)
        self._like = like[:0]
        self.total = _nothing(like)

    def recall(self, ids: IntArray) -> Rows:
        rows = np.zeros((len(ids), self._width), np.float32)
        np.put_along_axis(rows, self._where[ids].astype(np.int64), self._value[ids], 1)
        rows[~self._seen[ids]] = 0
        return like_of(single(self._like), rows)

    def sum(self, ids: IntArray, weight: FloatArray) -> Tensor:
        seen = self._seen[ids]
        return _sum(self, ids[seen], weight[seen])

    def keep(self, ids: IntArray, weight: FloatArray, updates: Rows) -> None:
        before = self.recall(ids)
        rows = to_numpy(updates)
        top = np.argpartition(-np.abs(rows), self._kept - 1, axis=1)[:, : self._kept]
        self._where[ids] = top
        value = _representable(self._value, np.take_along_axis(rows, top, 1))
        self._value[ids] = to_numpy(value)
        self._seen[ids] = True
        self.total = self.total + doubled(weight, self.recall(ids)) - doubled(weight, before)

    def settle(self) -> None:
        """Clients have rows of their own."""

    def packed(self) -> Arrays:
        ids = np.flatnonzero(self._seen)
        total = np.array(to_numpy(self.total))
        return {"ids": ids, "where": self._where[ids], "value": self._value[ids], "total": total}

    def restore(self, arrays: Arrays) -> None:
        ids = arrays["ids"].astype(np.int64)
        self._where[ids], self._value[ids] = arrays["where"], arrays["value"]
        self._seen[ids] = True
        self.total = like_of(self.total, arrays["total"])

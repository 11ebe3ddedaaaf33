"""Memories of past updates: the last updates, their largest entries, or means of groups.

Updates are rows of a NumPy array or of a torch tensor, [m, d]. A memory lies where the updates lie,
on the host or on a device. h is what a memory holds of a client.
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
"""The most numbers that are recalled at once where many clients are summed up."""

ENTRIES = Range("entries of updates", -1e100, 1e100)
"""Entries that a saved memory may have. No update has larger ones, and their squares are finite."""
_TINY = 1e-30
"""Added to a norm so that nothing is divided by 0."""


def _nothing(like: Rows) -> Tensor:
    """Σλh of an empty memory, [d], in double precision."""
    return double(zeros(like, like.shape[1]))


def _representable(rows: Tensor, updates: Rows) -> Rows:
    """Updates clipped to the largest numbers of the memory's precision, single or half."""
    is_half = str(rows.dtype).endswith("float16")  # of NumPy and of torch
    most = float(np.finfo(np.float16 if is_half else np.float32).max)
    within: Rows = double(updates).clip(-most, most)
    return within


def _sum(store: "Store", ids: IntArray, weight: FloatArray) -> Tensor:
    """Σ weight·h of these clients, [d], recalled in parts of `BLOCK` numbers."""
    total = store.total * 0
    rows = max(1, BLOCK // len(total))
    for low in range(0, len(ids), rows):
        part = slice(low, low + rows)
        total = total + doubled(weight[part], store.recall(ids[part]))
    return total


class Store(Protocol):
    """The contents of a memory: h of every client, and Σλh."""

    total: Tensor
    """Σλh, [d]."""

    def recall(self, ids: IntArray) -> Rows:
        """h of these clients, [m, d]."""

    def sum(self, ids: IntArray, weight: FloatArray) -> Tensor:
        """Σ weight·h of these clients, [d], in double precision."""

    def keep(self, ids: IntArray, weight: FloatArray, updates: Rows) -> None:
        """Remember these updates. Other clients of the round are still recalled as before."""

    def settle(self) -> None:
        """End the round, so that all that was kept is recalled from now on."""

    def packed(self) -> Arrays:
        """The contents as arrays."""

    def restore(self, arrays: Arrays) -> None:
        """Take over what `packed` returned."""


class Memory(Protocol):
    """The frozen configuration of a memory, which opens stores."""

    def open(self, weights: FloatArray, like: Rows) -> Store:
        """Open an empty store for updates like these."""

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Make the store that packed these arrays, in NumPy; an error where no store can have."""


def _member(arrays: Arrays, name: str, shape: tuple[int, ...], allowed: Range = ENTRIES) -> None:
    """Refuse an array of another shape, or with numbers outside the range."""
    intact.shaped(f"estimator.memory.{name}", arrays[name], shape, "iu" if allowed.whole else "f")
    intact.within(f"estimator.memory.{name}", arrays[name], allowed)


def _remembered(arrays: Arrays, clients: int, *others: str) -> tuple[int, int]:
    """The number of clients that are remembered, and the length d of their updates."""
    intact.names("estimator.memory", arrays, ("ids", "total", *others))
    ids = intact.ids("estimator.memory.ids", arrays["ids"], clients)
    _member(arrays, "total", (arrays["total"].size,))
    return len(ids), arrays["total"].size


def _agreeing(store: Store, truth: Tensor, entries: NDArray[Any]) -> Store:
    """The store, with Σλh replaced by the true sum where the two differ by more than rounding.

    Args:
        store: A store that was restored from arrays.
        truth: Σλh, summed from the entries.
        entries: The remembered entries, whose size is the unit of rounding.
    """
    largest = max(float(entries.max(initial=0)), -float(entries.min(initial=0)))
    if np.abs(to_numpy(store.total - truth)).max(initial=0) > CLOSE * largest:
        store.total = truth
    return store


@dataclass(frozen=True)
class LastUpdates:
    """A memory that keeps the last update of every client: N·d numbers.

    It predicts that a client sends what it sent last. In NumPy arrays only the rows of clients that
    were seen take space.

    h_i is the last g_i, or 0 for a client that was never seen.

    Args:
        precision: The precision of the numbers: "float32", or "float16" for half the space.
        limit: The number of bytes beyond which the memory lies in a file. This holds for tensors
            too, which otherwise lie on their device.
        folder: The folder of that file. By default it is the system's folder for temporary files.

    Examples:
        >>> import numpy as np, kvib
        >>> memory = kvib.LastUpdates(precision="float16")
        >>> estimator = kvib.Difference(memory)
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 4, budget=4, estimator=estimator, seed=0)
        >>> for _ in range(2):
        ...     cohort = sampler.draw()
        ...     step = sampler.step(cohort, np.eye(4))
        >>> step
        array([0.25, 0.25, 0.25, 0.25])

    References:
        Jhunjhunwala et al. 2022 (FedVARP) remember last updates too, with β = 1.
    """

    precision: str = "float32"
    limit: float = 4e9
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float16"):
            raise ValueError(f"precision {self.precision!r} is not one of float32, float16")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """Open a store of zeros.

        Args:
            weights: The weights λ of all clients, [N].
            like: Updates whose kind, place and length the store shares.
        """
        return _LastUpdates(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Make a store from the rows of the clients that were seen.

        Args:
            weights: The weights λ of all clients, [N].
            arrays: The arrays that a store has packed.
        """
        seen, d = _remembered(arrays, len(weights), "rows")
        _member(arrays, "rows", (seen, d))
        store = self.open(weights, np.zeros((1, d)))
        store.restore(arrays)
        rows = arrays["rows"]
        return _agreeing(store, doubled(weights[arrays["ids"]], rows), rows)


class _LastUpdates:
    """One row per client, in memory, on a device or in a file."""

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
            # The system provides a page of zeros when it is first written.
            self._rows = np.zeros((N, d), kind)
        else:
            example = half(self._like) if config.precision == "float16" else self._like
            self._rows = zeros(example, (N, d))
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
        """Do nothing: `keep` changes only the rows of the clients whose updates it takes."""

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
    """A memory that keeps the means of groups of similar clients: (groups + 1)·d numbers.

    It predicts that a client sends the mean of its group. A client joins a group when it is first
    seen, an empty one or the one whose mean is nearest in direction, and stays there. A client that
    was never seen is predicted by the mean of all.

    mean ← (1 − rate)·mean + rate·g for the group of the client and for the mean of all. The first
    updates of a group are averaged with equal weights until `rate` is larger.

    Args:
        groups: The number of groups.
        rate: The weight of a new update in the mean of its group.

    Examples:
        >>> import numpy as np, kvib
        >>> own = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
        >>> estimator = kvib.Difference(kvib.GroupMeans(groups=2))
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 4, budget=4, estimator=estimator, seed=0)
        >>> for _ in range(2):
        ...     cohort = sampler.draw()
        ...     step = sampler.step(cohort, own[cohort.ids])
        >>> step
        array([2., 2.])

    References:
        Jhunjhunwala et al. 2022 (ClusterFedVARP) remember means of groups too, with β = 1.
    """

    groups: int = 16
    rate: float = 0.2

    def __post_init__(self) -> None:
        if self.groups < 1 or not 0 < self.rate <= 1:
            raise ValueError(f"groups={self.groups}, rate={self.rate}: give 1 or more, 0 to 1")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """Open a store of empty groups.

        Args:
            weights: The weights λ of all clients, [N].
            like: Updates whose kind, place and length the store shares.
        """
        return _GroupMeans(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Make a store from the means, the sizes and the group of every client.

        Args:
            weights: The weights λ of all clients, [N].
            arrays: The arrays that a store has packed.
        """
        intact.names("estimator.memory", arrays, ("group", "sizes", "means"))
        rows, means = self.groups + 1, arrays["means"]
        _member(arrays, "means", (rows, means.size // rows))
        _member(arrays, "sizes", (rows,), COUNT)
        _member(arrays, "group", weights.shape, Range("groups", 0, self.groups, whole=True))
        store = self.open(weights, means[:1])
        store.restore(arrays)
        return store


class _GroupMeans:
    """The means of the groups. Row 0 is the mean of all, which stands for clients of no group."""

    def __init__(self, config: GroupMeans, weights: FloatArray, like: Rows) -> None:
        self._config, self._weights = config, weights
        rows = config.groups + 1
        self._group = np.zeros(len(weights), np.int64)
        self._sizes = np.zeros(rows, np.int64)
        self._means = like_of(like, np.zeros((rows, like.shape[1])))
        self._next: tuple[Rows, IntArray, IntArray] | None = None
        """The means, groups and sizes from the next round on; None before updates are kept."""
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
            if group[i] == 0:  # the client is new
                group[i] = self._nearest(means, sizes, row)
            for g in (0, int(group[i])):
                rate = max(self._config.rate, 1 / (sizes[g] + 1))
                means[g] = (1 - rate) * means[g] + rate * row
                sizes[g] += 1

    def _nearest(self, means: Rows, sizes: IntArray, row: Tensor) -> int:
        """The first empty group, or the group whose mean is nearest in direction."""
        empty = np.flatnonzero(sizes[1:] == 0)
        if len(empty):
            return 1 + int(empty[0])
        lengths = ((means[1:] ** 2).sum(1) ** 0.5) + _TINY
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
    """A memory that keeps the largest entries of every client's last update, 6 bytes per entry.

    It predicts that the largest entries stay as they were, and all others by 0.

    h_ij is g_ij of the last update for the `kept` largest |g_ij|, else 0.

    Args:
        kept: The number of entries per client.

    Examples:
        >>> import numpy as np, kvib
        >>> estimator = kvib.Difference(kvib.LargestEntries(kept=1))
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 4, budget=4, estimator=estimator, seed=0)
        >>> for _ in range(2):
        ...     cohort = sampler.draw()
        ...     step = sampler.step(cohort, np.eye(4))
        >>> step
        array([0.25, 0.25, 0.25, 0.25])
    """

    kept: int = 1000

    def __post_init__(self) -> None:
        if self.kept < 1:
            raise ValueError(f"kept={self.kept} is not a number of entries; 1000 is a good one")

    def open(self, weights: FloatArray, like: Rows) -> "Store":
        """Open an empty store.

        Args:
            weights: The weights λ of all clients, [N].
            like: Updates whose kind, place and length the store shares.
        """
        return _LargestEntries(self, weights, like)

    def restored(self, weights: FloatArray, arrays: Arrays) -> Store:
        """Make a store from the entries of the clients that were seen, and their positions.

        Args:
            weights: The weights λ of all clients, [N].
            arrays: The arrays that a store has packed.
        """
        seen, d = _remembered(arrays, len(weights), "where", "value")
        kept = min(self.kept, d)
        _member(arrays, "where", (seen, kept), Range("places", 0, d - 1, whole=True))
        _member(arrays, "value", (seen, kept))
        store = self.open(weights, np.zeros((1, d)))
        store.restore(arrays)
        ids = arrays["ids"]
        return _agreeing(store, store.sum(ids, weights[ids]), arrays["value"])


class _LargestEntries:
    """The positions and the values of the entries that are kept, one row per client."""

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
        """Do nothing: `keep` changes only the rows of the clients whose updates it takes."""

    def packed(self) -> Arrays:
        ids = np.flatnonzero(self._seen)
        total = np.array(to_numpy(self.total))
        return {"ids": ids, "where": self._where[ids], "value": self._value[ids], "total": total}

    def restore(self, arrays: Arrays) -> None:
        ids = arrays["ids"].astype(np.int64)
        self._where[ids], self._value[ids] = arrays["where"], arrays["value"]
        self._seen[ids] = True
        self.total = like_of(self.total, arrays["total"])

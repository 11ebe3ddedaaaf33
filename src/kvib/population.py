"""Who there is: stable keys, weights that change, clients that come and go, at no cost in N."""

import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import checked_weights
from kvib.cohort import Arrays, BoolArray, FloatArray, IntArray

Key = Hashable
"""What a client is called: a string or an integer."""


class Population:
    """Clients by id, 0, 1, 2, … in the order in which they first came.

    Whoever leaves keeps its id, and its history with it. Weights are in units of the total at the
    beginning, so that what was learned keeps its meaning while λ = weight / total moves.

    Args:
        weights: any positive numbers.
        keys: strings or integers; by default clients are called by their ids.
    """

    def __init__(self, weights: ArrayLike, keys: Iterable[Key] | None = None) -> None:
        self.raw = checked_weights(weights)
        """Weights in those units; longer than the number of clients where more are expected."""
        self.unit = float(np.sum(weights, dtype=np.float64))
        """The total at the beginning, as the user gave it."""
        self.count = len(self.raw)
        """How many ids were given out."""
        self.gone: set[int] = set()
        self._total, self._lost = 1.0, 0.0
        self.names: list[Key] | None = None
        self._ids: dict[Key, int] = {}
        if keys is not None:
            self.names = []
            self._name(list(keys), self.count)

    def __len__(self) -> int:
        """How many clients are here."""
        return self.count - len(self.gone)

    @property
    def changed(self) -> bool:
        """Whether anybody ever came, left or changed its weight."""
        return bool(self.gone) or self._total != 1.0 or self._lost != 0.0

    @property
    def total(self) -> float:
        """Σ weight of those who are here."""
        return self._total + self._lost

    def share(self, ids: IntArray) -> FloatArray:
        """λ of these clients, as if they were here."""
        return self.raw[ids] / self.total if self.changed else self.raw[ids]

    def shares(self) -> FloatArray:
        """λ of all ids; 0 for those who left. To be looked at, not written to."""
        if not self.changed:
            return self.raw[: self.count]
        every = self.share(np.arange(self.count))
        every[list(self.gone)] = 0.0
        return every

    def here(self) -> IntArray:
        """Ids of those who are here, ascending."""
        every = np.arange(self.count)
        return np.delete(every, sorted(self.gone)) if self.gone else every

    def ids(self, keys: Any) -> IntArray:
        """Ids of clients by their keys."""
        if self.names is None:
            return self._known(np.atleast_1d(np.asarray(keys)))
        listed = [keys] if isinstance(keys, str | int) else list(keys)
        unknown = [key for key in listed if key not in self._ids]
        if unknown:
            raise ValueError(f"there is no client {unknown[0]!r}; it has to join first")
        return np.array([self._ids[key] for key in listed], np.int64)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """What these clients are called."""
        known = self._known(np.atleast_1d(np.asarray(ids)))
        return known.tolist() if self.names is None else [self.names[i] for i in known]

    def _known(self, given: Any) -> IntArray:
        if given.size == 0:
            return np.empty(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ValueError(
                f"clients are called 0 to {self.count - 1} here, not {given.flat[0]!r}"
            )
        bad = given[(given < 0) | (given >= self.count)]
        if len(bad):
            raise ValueError(f"unknown client id {bad[0]}; ids are 0 to {self.count - 1}")
        return np.asarray(given, np.int64)

    def is_here(self, ids: IntArray) -> BoolArray:
        """Whether they are."""
        if not self.gone:
            return np.ones(len(ids), np.bool_)
        return np.array([i not in self.gone for i in ids.tolist()], np.bool_)

    def prepare(self, keys: Sequence[Key] | None, number: int) -> tuple[IntArray, IntArray]:
        """Ids for clients that come: who is new, and who returns. Errors leave all as it was."""
        if keys is None:
            if self.names is not None:
                raise ValueError("clients have keys here; give the newcomers keys too")
            return np.arange(self.count, self.count + number), np.empty(0, np.int64)
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} weights; give one of each per client")
        if len(set(keys)) != number:
            twice = next(key for k, key in enumerate(keys) if key in keys[:k])
            raise ValueError(f"client {twice!r} is listed twice")
        known = self._ids if self.names is not None else range(self.count)
        back = [key for key in keys if key in known]
        ids = self.ids(back)
        still = ids[self.is_here(ids)]
        if len(still):
            raise ValueError(f"client {self.keys(still)[0]!r} is here already; use reweigh")
        fresh = number - len(back)
        if self.names is None and fresh:
            raise ValueError("clients are called by their ids here; let newcomers have theirs")
        return np.arange(self.count, self.count + fresh), ids

    def add(self, ids: IntArray, weights: FloatArray, keys: Sequence[Key] | None) -> None:
        """New ones, with the ids that `prepare` gave them, their weights in our units."""
        self.widen(self.count + len(ids))
        self.raw[ids] = weights
        if self.names is not None and keys is not None:
            self._name(list(keys), len(ids))
        self.count += len(ids)
        self._pay(float(weights.sum()))

    def widen(self, needed: int) -> int:
        """Room for so many ids, doubled when it is used up; how much there is now."""
        if needed > len(self.raw):
            room = max(needed, len(self.raw) + len(self.raw) // 2 + 1024)
            raw = np.ones(room)
            raw[: self.count] = self.raw[: self.count]
            self.raw = raw
        return len(self.raw)

    def leave(self, ids: IntArray) -> None:
        """They are gone, and may return."""
        self.gone.update(ids.tolist())
        self._pay(-float(self.raw[ids].sum()))

    def come_back(self, ids: IntArray) -> None:
        """As they were."""
        self.gone.difference_update(ids.tolist())
        self._pay(float(self.raw[ids].sum()))

    def reweigh(self, ids: IntArray, weights: FloatArray) -> FloatArray:
        """New weights in our units; the ratios new / old."""
        ratio = weights / self.raw[ids]
        here = self.is_here(ids)
        self._pay(float((weights - self.raw[ids])[here].sum()))
        self.raw = self.raw if self.raw.flags.writeable else self.raw.copy()
        self.raw[ids] = weights
        return ratio

    def about(self) -> dict[str, Any]:
        """Numbers for the header of a file."""
        named = self.names is not None
        return {"unit": self.unit, "total": self._total, "lost": self._lost, "named": named}

    def packed(self) -> Arrays:
        """As arrays; keys as one JSON text, which tells integers from strings."""
        arrays: Arrays = {"gone": np.array(sorted(self.gone), np.int64)}
        if self.names is not None:
            text = json.dumps(self.names, default=int).encode()
            arrays["keys"] = np.frombuffer(text, np.uint8)
        return arrays

    def restore(self, about: dict[str, Any], arrays: Arrays) -> None:
        """What `packed` packed, for weights that are restored already."""
        self.unit, self._total, self._lost = (about[key] for key in ("unit", "total", "lost"))
        self.gone = set(arrays["gone"].tolist())
        if about["named"]:
            self.names = []
            self._name(json.loads(arrays["keys"].tobytes()), self.count)

    def _pay(self, amount: float) -> None:
        """Knuth's exact sum: what rounding loses is kept beside it."""
        after = self._total + amount
        part = after - self._total
        self._lost += (self._total - (after - part)) + (amount - part)
        self._total = after

    def _name(self, keys: list[Key], number: int) -> None:
        assert self.names is not None
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} clients; give one per client")
        odd = [key for key in keys if not isinstance(key, str | int | np.integer)]
        if odd:
            raise ValueError(f"key {odd[0]!r} is neither a string nor an integer")
        first = len(self.names)
        self.names.extend(keys)
        self._ids.update((key, first + k) for k, key in enumerate(keys))
        if len(self._ids) != len(self.names):
            seen: set[Key] = set()
            twice = next(key for key in self.names if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"client {twice!r} is listed twice; keys name one client each")

"""The population: clients with stable keys and changing weights, who join, leave and return.

A change of some clients takes time in proportion to their number, not to the population's.
"""

import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvib import exact_sum, growing
from kvib.checks import normalise, positive_weights
from kvib.files import intact
from kvib.files.intact import FINITE, POSITIVE, demand
from kvib.files.part import Part, Saved
from kvib.types import Arrays, BoolArray, FloatArray, IntArray, Key


class Population(Part):
    """All clients by id: 0, 1, 2, … in the order in which they first joined.

    A client that leaves keeps its id and its history. Weights are in units of the total at the
    beginning, so that what was learned keeps its meaning while λ = weight/total changes.

    Args:
        weights: The weights of the clients at the beginning, any positive numbers.
        keys: The names of the clients, strings or integers. By default clients are named by ids.
    """

    def __init__(self, weights: ArrayLike, keys: Any = None) -> None:
        self.raw = positive_weights(weights)
        """Weights in these units, with room for clients that may join: at least [count]."""
        self.unit = normalise(self.raw)
        """The total at the beginning in the user's units, as two factors."""
        self.count = len(self.raw)
        """The number of ids, those of departed clients included."""
        self.departed: set[int] = set()
        """Ids of the clients that have left."""
        self.changed = False
        """Whether a client ever joined, left or changed its weight."""
        self._total = exact_sum.running(self.raw)
        self.names: list[Key] | None = None
        """The keys of all clients by id; None where clients are named by their ids."""
        self._ids: dict[Key, int] = {}
        if keys is not None:
            self.names = []
            self._name(listed(keys), self.count)

    def __len__(self) -> int:
        """The number of clients that have not left."""
        return self.count - len(self.departed)

    @property
    def total(self) -> float:
        """Σ weight of the clients that have not left."""
        return float(self._total.sum())

    def in_units(self, weights: FloatArray) -> FloatArray:
        """Weights in the user's units, converted to the units of this population."""
        with np.errstate(over="ignore", under="ignore"):
            own = weights / self.unit[0] / self.unit[1]
        bad = np.flatnonzero(~((own > 0) & np.isfinite(own)))
        if len(bad):
            raise ValueError(
                f"weight {weights[bad[0]]} cannot be compared with those at the beginning, whose "
                f"sum was {self.unit[1]:g} times {self.unit[0]:g}; give it in the same units"
            )
        return own

    def share(self, ids: IntArray) -> FloatArray:
        """λ of these clients, [m]. Departed ones are treated as if they had not left."""
        return self.raw[ids] / self.total if self.changed else self.raw[ids]

    def shares(self) -> FloatArray:
        """λ of all ids, [count], 0 for departed clients. The caller must not write to it."""
        if not self.changed:
            return self.raw[: self.count]
        shares = self.share(np.arange(self.count))
        shares[list(self.departed)] = 0.0
        return shares

    def here(self) -> IntArray:
        """Ids of the clients that have not left, ascending."""
        every = np.arange(self.count)
        return np.delete(every, sorted(self.departed)) if self.departed else every

    def ids(self, keys: Any) -> IntArray:
        """Ids of the clients with these keys, [m]; an error where a key is unknown."""
        if self.names is None:
            return self._checked_ids(np.atleast_1d(np.asarray(keys)))
        names = listed(keys)
        unknown = [key for key in names if key not in self._ids]
        if unknown:
            raise ValueError(f"there is no client {unknown[0]!r}; it has to join first")
        return np.array([self._ids[key] for key in names], np.int64)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """The keys of these clients."""
        checked = self._checked_ids(np.atleast_1d(np.asarray(ids)))
        return checked.tolist() if self.names is None else [self.names[i] for i in checked]

    def _checked_ids(self, ids: Any) -> IntArray:
        """Ids as integers, [m]; an error where no client has them."""
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(
                f"clients are called 0 to {self.count - 1} here, not {ids.ravel().tolist()[0]!r}"
            )
        bad = ids[(ids < 0) | (ids >= self.count)]
        if len(bad):
            raise ValueError(f"unknown client id {bad[0]}; ids are 0 to {self.count - 1}")
        return np.asarray(ids, np.int64)

    def is_here(self, ids: IntArray) -> BoolArray:
        """Whether these clients have not left, [m]."""
        if not self.departed:
            return np.ones(len(ids), np.bool_)
        return np.array([i not in self.departed for i in ids.tolist()], np.bool_)

    def found(self, keys: list[Key]) -> IntArray:
        """Ids of the clients with these keys, [m]; −1 for keys that no client ever had."""
        if self.names is None:
            ids = range(self.count)
            return np.array([key if key in ids else -1 for key in keys], np.int64)
        return np.array([self._ids.get(key, -1) for key in keys], np.int64)

    def prepare(self, keys: list[Key] | None, number: int) -> tuple[IntArray, BoolArray]:
        """Ids for clients that join, and which of them return. It changes nothing itself.

        Args:
            keys: Their keys. None means newcomers that are named by their ids.
            number: The number of clients that join.
        """
        if keys is None:
            if self.names is not None:
                raise ValueError("clients have keys here; give the newcomers keys too")
            return np.arange(self.count, self.count + number), np.zeros(number, np.bool_)
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} weights; give one of each per client")
        _refuse_twice(keys)
        existing = self._ids if self.names is not None else range(self.count)
        returning = np.array([key in existing for key in keys], np.bool_)
        if self.names is None and not returning.all():
            raise ValueError("clients are called by their ids here; let newcomers have theirs")
        ids = np.empty(number, np.int64)
        ids[returning] = self.ids([key for key in keys if key in existing])
        present = ids[returning][self.is_here(ids[returning])]
        if len(present):
            raise ValueError(f"client {self.keys(present)[0]!r} is here already; use reweigh")
        ids[~returning] = np.arange(self.count, self.count + number - np.count_nonzero(returning))
        return ids, returning

    def add(self, ids: IntArray, weights: FloatArray, keys: list[Key] | None) -> None:
        """Add new clients. `widen` has made room for them.

        Args:
            ids: The ids that `prepare` gave them.
            weights: Their weights in the units of this population.
            keys: Their keys, where clients have keys.
        """
        self.raw[ids] = weights
        if self.names is not None and keys is not None:
            self._name(keys, len(ids))
        self.count += len(ids)
        self._add_to_total(weights)

    def widen(self, entries: int) -> None:
        """Make room for more clients."""
        self.raw = growing.widened(self.raw, entries, empty=1)

    def leave(self, ids: IntArray) -> None:
        """Let these clients leave. They may return."""
        self.departed.update(ids.tolist())
        self._add_to_total(-self.raw[ids])

    def come_back(self, ids: IntArray) -> None:
        """Let these clients return with the weights that they had."""
        self.departed.difference_update(ids.tolist())
        self._add_to_total(self.raw[ids])

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Give these clients new weights, in the units of this population."""
        here = self.is_here(ids)
        self._add_to_total(-self.raw[ids[here]])
        self._add_to_total(weights[here])
        self.raw[ids] = weights

    HEADER = ("population",)
    ARRAYS = ("weights", "population")

    def about(self) -> dict[str, Any]:
        """The units, the total and two flags, for the header of a file."""
        header = {
            "unit": self.unit,
            "total": self._total.tolist(),
            "changed": self.changed,
            "named": self.names is not None,
        }
        return {"population": header}

    def packed(self, clients: int) -> Arrays:
        """Weights, departed ids and keys as arrays.

        The keys are one JSON text, which distinguishes integers from strings.
        """
        arrays: Arrays = {
            "weights": self.raw[:clients],
            "population.gone": np.array(sorted(self.departed), np.int64),
        }
        if self.names is not None:
            keys = json.dumps(self.names).encode()
            arrays["population.keys"] = np.frombuffer(keys, np.uint8)
        return arrays

    def restore(self, saved: Saved) -> None:
        """Take over a saved population of the same number of clients."""
        about, arrays = saved.about["population"], saved.part("population")
        self.raw[:] = saved.arrays["weights"]  # normalising again may change the last digit
        named = intact.flag(about, "named")
        intact.names("population", arrays, {"gone", "keys"} if named else {"gone"})
        departed = intact.ids("population.gone", arrays["gone"], self.count)
        demand(len(departed) < self.count, "population.gone lists all clients")
        self.departed, self.changed = set(departed.tolist()), intact.flag(about, "changed")
        unit, total = (np.array(about[name]) for name in ("unit", "total"))
        for name, pair, allowed in (("unit", unit, POSITIVE), ("total", total, FINITE)):
            intact.shaped(f"population's {name}", pair, (2,), "if")
            intact.within(f"population's {name}", pair, allowed)
        self.unit, self._total = (float(unit[0]), float(unit[1])), total.astype(np.float64)
        here = self.raw[self.here()] if self.departed else self.raw
        intact.close("the sum of weights", self.total, float(here.sum()))
        if not self.changed:
            demand(not self.departed, "population.gone lists clients, and none ever left")
            intact.close("the sum of weights", self.total, 1.0)
        if named:
            self.names = []
            self._name(_parsed(arrays["keys"]), self.count)

    def _add_to_total(self, amounts: FloatArray) -> None:
        """Add weights to the total, or negative ones to subtract them."""
        self.changed = True
        exact_sum.add(self._total, amounts)

    def _name(self, keys: list[Key], number: int) -> None:
        """Give the next ids, this many, their keys."""
        assert self.names is not None
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} clients; give one per client")
        _refuse_twice(keys)
        first = len(self.names)
        self.names.extend(keys)
        self._ids.update((key, first + k) for k, key in enumerate(keys))


def listed(keys: Any) -> list[Key]:
    """Keys, one or many, as plain strings and integers, which files and coins are made of."""
    items = keys.tolist() if isinstance(keys, np.ndarray | np.generic) else keys
    if isinstance(items, str | int) or not hasattr(items, "__iter__"):
        items = [items]
    if isinstance(items, bytes):
        raise ValueError(f"key {items!r} is neither a string nor an integer; decode it")
    return [key if type(key) is str or type(key) is int else _plain(key) for key in items]


def _parsed(text: NDArray[np.uint8]) -> list[Key]:
    """The keys in a JSON text."""
    try:
        keys = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"population.keys is not JSON: {error}") from error
    demand(isinstance(keys, list), "population.keys is not a list")
    return listed(keys)


def _plain(key: Any) -> Key:
    """A key as a plain string or integer; an error where it is neither."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, np.integer):
        return int(key)
    raise ValueError(f"key {key!r} is neither a string nor an integer")


def _refuse_twice(keys: list[Key]) -> None:
    """Refuse keys of which one is listed twice."""
    if len(set(keys)) < len(keys):
        seen: set[Key] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"client {twice!r} is listed twice; keys name one client each")

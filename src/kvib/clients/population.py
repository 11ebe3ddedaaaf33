"""Who there is: stable keys, weights that change, clients that come and go, at no cost in N."""

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
    """Clients by id, 0, 1, 2, … in the order in which they first came.

    Whoever leaves keeps its id, and its history with it. Weights are in units of the total at the
    beginning, so that what was learned keeps its meaning while λ = weight / total moves.

    Args:
        weights: any positive numbers.
        keys: strings or integers; by default clients are called by their ids.
    """

    def __init__(self, weights: ArrayLike, keys: Any = None) -> None:
        self.raw = positive_weights(weights)
        """Weights in those units; longer than the number of clients where more are expected."""
        self.unit = normalise(self.raw)
        """The total at the beginning, as the user gave it, in two factors."""
        self.count = len(self.raw)
        """How many ids were given out."""
        self.departed: set[int] = set()
        self.changed = False
        """Whether anybody ever came, left or changed its weight."""
        self._total = exact_sum.running(self.raw)
        self.names: list[Key] | None = None
        self._ids: dict[Key, int] = {}
        if keys is not None:
            self.names = []
            self._name(listed(keys), self.count)

    def __len__(self) -> int:
        """How many clients are here."""
        return self.count - len(self.departed)

    @property
    def total(self) -> float:
        """Σ weight of those who are here."""
        return float(self._total.sum())

    def in_units(self, weights: FloatArray) -> FloatArray:
        """Weights as the user gives them in the units of the total at the beginning."""
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
        """λ of these clients, as if they were here."""
        return self.raw[ids] / self.total if self.changed else self.raw[ids]

    def shares(self) -> FloatArray:
        """λ of all ids; 0 for those who left. To be looked at, not written to."""
        if not self.changed:
            return self.raw[: self.count]
        every = self.share(np.arange(self.count))
        every[list(self.departed)] = 0.0
        return every

    def here(self) -> IntArray:
        """Ids of those who are here, ascending."""
        every = np.arange(self.count)
        return np.delete(every, sorted(self.departed)) if self.departed else every

    def ids(self, keys: Any) -> IntArray:
        """Ids of clients by their keys."""
        if self.names is None:
            return self._known(np.atleast_1d(np.asarray(keys)))
        names = listed(keys)
        unknown = [key for key in names if key not in self._ids]
        if unknown:
            raise ValueError(f"there is no client {unknown[0]!r}; it has to join first")
        return np.array([self._ids[key] for key in names], np.int64)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """What these clients are called."""
        known = self._known(np.atleast_1d(np.asarray(ids)))
        return known.tolist() if self.names is None else [self.names[i] for i in known]

    def _known(self, given: Any) -> IntArray:
        if given.size == 0:
            return np.empty(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ValueError(
                f"clients are called 0 to {self.count - 1} here, not {given.ravel().tolist()[0]!r}"
            )
        bad = given[(given < 0) | (given >= self.count)]
        if len(bad):
            raise ValueError(f"unknown client id {bad[0]}; ids are 0 to {self.count - 1}")
        return np.asarray(given, np.int64)

    def is_here(self, ids: IntArray) -> BoolArray:
        """Whether they are."""
        if not self.departed:
            return np.ones(len(ids), np.bool_)
        return np.array([i not in self.departed for i in ids.tolist()], np.bool_)

    def found(self, keys: list[Key]) -> IntArray:
        """Ids of clients by their keys; −1 for keys of clients who never came."""
        if self.names is None:
            every = range(self.count)
            return np.array([key if key in every else -1 for key in keys], np.int64)
        return np.array([self._ids.get(key, -1) for key in keys], np.int64)

    def prepare(self, keys: list[Key] | None, number: int) -> tuple[IntArray, BoolArray]:
        """Ids for clients that come, and which of them return. Errors leave all as it was."""
        if keys is None:
            if self.names is not None:
                raise ValueError("clients have keys here; give the newcomers keys too")
            return np.arange(self.count, self.count + number), np.zeros(number, np.bool_)
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} weights; give one of each per client")
        _refuse_twice(keys)
        known = self._ids if self.names is not None else range(self.count)
        back = np.array([key in known for key in keys], np.bool_)
        if self.names is None and not back.all():
            raise ValueError("clients are called by their ids here; let newcomers have theirs")
        ids = np.empty(number, np.int64)
        ids[back] = self.ids([key for key in keys if key in known])
        still = ids[back][self.is_here(ids[back])]
        if len(still):
            raise ValueError(f"client {self.keys(still)[0]!r} is here already; use reweigh")
        ids[~back] = np.arange(self.count, self.count + number - np.count_nonzero(back))
        return ids, back

    def add(self, ids: IntArray, weights: FloatArray, keys: list[Key] | None) -> None:
        """New ones, with the ids that `prepare` gave them, their weights in our units; there is
        room for them."""
        self.raw[ids] = weights
        if self.names is not None and keys is not None:
            self._name(keys, len(ids))
        self.count += len(ids)
        self._pay(weights)

    def widen(self, entries: int) -> None:
        """Room for more clients."""
        self.raw = growing.widened(self.raw, entries, empty=1)

    def leave(self, ids: IntArray) -> None:
        """They are gone, and may return."""
        self.departed.update(ids.tolist())
        self._pay(-self.raw[ids])

    def come_back(self, ids: IntArray) -> None:
        """As they were."""
        self.departed.difference_update(ids.tolist())
        self._pay(self.raw[ids])

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """New weights in our units."""
        here = self.is_here(ids)
        self._pay(-self.raw[ids[here]])
        self._pay(weights[here])
        self.raw[ids] = weights

    HEADER = ("population",)
    ARRAYS = ("weights", "population")

    def about(self) -> dict[str, Any]:
        """Numbers for the header of a file."""
        said = {
            "unit": self.unit,
            "total": self._total.tolist(),
            "changed": self.changed,
            "named": self.names is not None,
        }
        return {"population": said}

    def packed(self, clients: int) -> Arrays:
        """As arrays; keys as one JSON text, which tells integers from strings."""
        arrays: Arrays = {
            "weights": self.raw[:clients],
            "population.gone": np.array(sorted(self.departed), np.int64),
        }
        if self.names is not None:
            keys = json.dumps(self.names).encode()
            arrays["population.keys"] = np.frombuffer(keys, np.uint8)
        return arrays

    def restore(self, saved: Saved) -> None:
        """What was saved, for as many clients as there are."""
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

    def _pay(self, amounts: FloatArray) -> None:
        self.changed = True
        exact_sum.add(self._total, amounts)

    def _name(self, keys: list[Key], number: int) -> None:
        assert self.names is not None
        if len(keys) != number:
            raise ValueError(f"{len(keys)} keys for {number} clients; give one per client")
        _refuse_twice(keys)
        first = len(self.names)
        self.names.extend(keys)
        self._ids.update((key, first + k) for k, key in enumerate(keys))


def listed(keys: Any) -> list[Key]:
    """Keys, one or many, as plain strings and integers: what a file says, and a coin is made of."""
    given = keys.tolist() if isinstance(keys, np.ndarray | np.generic) else keys
    if isinstance(given, str | int) or not hasattr(given, "__iter__"):
        given = [given]
    if isinstance(given, bytes):
        raise ValueError(f"key {given!r} is neither a string nor an integer; decode it")
    return [key if type(key) is str or type(key) is int else _plain(key) for key in given]


def _parsed(text: NDArray[np.uint8]) -> list[Key]:
    """Keys from their JSON."""
    try:
        keys = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"population.keys is not JSON: {error}") from error
    demand(isinstance(keys, list), "population.keys is not a list")
    return listed(keys)


def _plain(key: Any) -> Key:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, np.integer):
        return int(key)
    raise ValueError(f"key {key!r} is neither a string nor an integer")


def _refuse_twice(keys: list[Key]) -> None:
    if len(set(keys)) < len(keys):
        seen: set[Key] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"client {twice!r} is listed twice; keys name one client each")

"""Checks of what users give: every error names the value and the way out.

Arguments are checked once, where they enter kvib. The code behind that trusts them.
"""

from __future__ import annotations

import math
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import wraps
from importlib import import_module
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from kvib.types import FloatArray, IntArray

T = TypeVar("T")

LARGEST_NORM = 1e60
SMALLEST_FEEDBACK = 1e-60
"""Between these two limits, ratios of squares divided by cubes of probabilities stay finite."""
_ROUNDING = 1e-12
"""Relative rounding of a quotient: one this close below a whole number counts as that number."""


def short(value: Any) -> str:
    """The repr of a value, shortened to fit into one line of an error."""
    return " ".join(reprlib.repr(value).split())


def floats(values: Any, name: str, way_out: str) -> FloatArray:
    """Numbers of any kind as floats. Floats are not copied, and None becomes NaN."""
    try:
        if isinstance(values, Mapping | Set | Iterator | str):
            raise TypeError
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":
            raise TypeError
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} {short(values)} are not numbers; {way_out}") from None


def checked_weights(weights: ArrayLike) -> FloatArray:
    """λ, [N]: positive weights, normalised to the sum 1."""
    w = positive_weights(weights)
    normalise(w)
    return w


def normalise(weights: FloatArray) -> tuple[float, float]:
    """Normalise weights to the sum 1, in place.

    Returns the two factors by which they were divided. Their product, the old sum, could overflow.
    """
    largest = float(weights.max())
    weights /= largest
    rest = float(weights.sum())
    weights /= rest
    return largest, rest


def positive_weights(weights: ArrayLike, called: Sequence[Any] = ()) -> FloatArray:
    """A copy of the weights, [N]. Errors name a client by its entry in `called`, or its place."""
    if isinstance(weights, Mapping):
        raise ValueError(
            f"weights {short(weights)} are a mapping; write weights=list(d.values()), keys=list(d)"
        )
    w = floats(weights, "weights", "give one positive number per client, as a list or an array")
    if w.ndim != 1 or len(w) == 0:
        raise ValueError(f"weights have shape {w.shape}; give one positive number per client")
    bad = np.flatnonzero(~((w > 0) & np.isfinite(w)))
    if len(bad):
        who = called[bad[0]] if bad[0] < len(called) else int(bad[0])
        raise ValueError(
            f"weight {w[bad[0]]} of client {who!r} is not a positive finite number; "
            "leave out clients without data"
        )
    return np.array(w)


def checked_cost(cost: ArrayLike | None, clients: int) -> FloatArray | None:
    """A copy of the costs of drawing each client, [N]. None means a cost of 1 for every client."""
    if cost is None:
        return None
    costs = np.array(floats(cost, "costs", "give one positive number per client"))
    if costs.shape != (clients,) or not ((costs > 0) & np.isfinite(costs)).all():
        raise ValueError(
            f"cost of shape {costs.shape} is not one positive number for each of {clients} clients"
        )
    return costs


def checked_budget(budget: float, clients: float, cost: FloatArray | None = None) -> float:
    """The budget as a float: clients per round, or a sum of costs, that the population can meet."""
    if isinstance(budget, bool) or np.asarray(budget).dtype.kind not in "iuf":
        raise ValueError(f"budget {short(budget)} is not a number of clients per round")
    if not (np.isfinite(budget) and budget > 0):
        raise ValueError(f"budget {budget} is not a positive number of clients per round")
    if cost is not None:
        if budget > cost.sum():
            raise ValueError(
                f"budget {budget:g} exceeds the cost of all clients, {cost.sum():g}; lower it"
            )
    elif budget > clients:
        raise ValueError(
            f"budget {budget:g} exceeds the {clients} clients; lower it or add clients"
        )
    return float(budget)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line outside of kvib that led to the warning."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def renamed(home: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module: names of version 0.1 work until 0.3, with a warning.

    Args:
        home: The `__name__` of the module.
        names: Earlier names, and for each its name today. A name that has moved to another module
            has the module before it, with a dot.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {home!r} has no attribute {name!r}")
        place, _, today = names[name].rpartition(".")
        place = place or home
        warn(f"{home}.{name} is now {place}.{today}", DeprecationWarning)
        return getattr(import_module(place), today)

    return find


def earlier_names(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A decorator for classes whose fields had other names in version 0.1.

    Until version 0.3 the fields can be given and read by these names, with a warning.

    Args:
        names: Earlier names, and for each its name today.
    """

    def decorate(cls: type[T]) -> type[T]:
        hook = "__new__" if issubclass(cls, tuple) else "__init__"
        make = getattr(cls, hook)

        @wraps(make)
        def renaming(first: Any, *values: Any, **fields: Any) -> Any:
            for name in names.keys() & fields.keys():
                warn(f"{cls.__name__}({name}=…) is now {names[name]}=…", DeprecationWarning)
                if names[name] in fields:
                    raise TypeError(f"{name} is {names[name]} by its old name; give one of them")
                fields[names[name]] = fields.pop(name)
            return make(first, *values, **fields)

        def read(self: Any, name: str) -> Any:
            if name not in names:
                raise AttributeError(f"{cls.__name__!r} has no attribute {name!r}", name=name)
            warn(f"{cls.__name__}.{name} is now {names[name]}", DeprecationWarning)
            return getattr(self, names[name])

        setattr(cls, hook, renaming)
        setattr(cls, "__getattr__", read)  # noqa: B010  type checkers see today's names only
        return cls

    return decorate


def _ours(frame: FrameType) -> bool:
    """Whether a stack frame runs code of kvib."""
    return str(frame.f_globals.get("__name__")).split(".")[0] == "kvib"


def warn_of_fraction(budget: float, clients: int) -> None:
    """Warn of a budget below one client per round: in other libraries it is a share of clients."""
    if budget < 1 < clients:
        warn(
            f"budget {budget:g} is less than one client per round; for a share of the {clients} "
            f"clients write {budget:g} * {clients}"
        )


def warn_of_waiting(cool_down: int, clients: int, per_round: float) -> None:
    """Warn of a cool-down that is so long that too few clients are left to draw."""
    longest = max(math.floor(clients / per_round * (1 + _ROUNDING)) - 1, 0)
    if cool_down > longest:
        warn(
            f"cool_down={cool_down} is too long for {clients} clients of whom {per_round:g} are "
            "drawn per round: most of them wait, and rounds are short or empty; cool_down="
            f"{longest} is the longest that keeps rounds full"
        )


def checked_seed(seed: int) -> int:
    """The seed as an int ≥ 0."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed {seed!r} is not an integer ≥ 0")
    return int(seed)


def available_ids(available: Any, clients: int, name: str = "available") -> IntArray:
    """Ids in ascending order.

    Args:
        available: A mask of all clients, or a list or set of ids. None means all clients.
        clients: The number of clients N.
        name: The name of the argument in errors.
    """
    if available is None:
        return np.arange(clients)
    array = np.asarray(list(available) if isinstance(available, Set) else available)
    if array.dtype == np.bool_:
        if array.shape != (clients,):
            raise ValueError(
                f"{name}: the mask has shape {array.shape} for {clients} clients; "
                "give one boolean per client, or a list of ids"
            )
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}={short(available)} {_instead(array)}give one boolean per client, or a list "
            "of ids"
        )
    unknown = array[(array < 0) | (array >= clients)]
    if len(unknown):
        raise ValueError(
            f"unknown client id {unknown[0]}; ids are 0 to {clients - 1}, and sampler.ids(keys) "
            "gives those of keys"
        )
    ids = np.sort(array).astype(np.int64)
    twice = ids[1:][np.diff(ids) == 0]
    if len(twice):
        raise ValueError(
            f"client {twice[0]} is listed twice; give every id once, or a mask of booleans"
        )
    return ids


def _instead(array: Any) -> str:
    """The part of an error that guesses what a user meant who gave this array for ids."""
    if array.ndim == 0 and array.dtype.kind in "iuf":
        return f"is one number; did you mean budget={array}? Else "
    if array.dtype.kind in "USO":
        return "are not ids; sampler.ids(keys) gives those of keys; "
    return f"is an array of {array.dtype} with shape {array.shape}; "


def all_norms(norms: ArrayLike, clients: int) -> FloatArray:
    """‖g‖ of all clients, [N], for policies that need them before the draw."""
    values = floats(norms, "norms", "give ‖g‖ of every client")
    if values.shape != (clients,):
        raise ValueError(f"norms have shape {values.shape}; give one per client, {clients} in all")
    _refuse(values, np.isnan(values), np.arange(clients), "norms at draw must all be known")
    return finite_norms(values, np.arange(clients))


def finite_norms(values: FloatArray, ids: IntArray) -> FloatArray:
    """The norms of these clients, [m]. A norm that no update can have raises a ValueError."""
    way_out = (
        f"a norm is between 0 and {LARGEST_NORM:g}; report NaN for a client that failed or diverged"
    )
    _refuse(values, (values < 0) | (values > LARGEST_NORM), ids, way_out)
    return values


def _refuse(values: FloatArray, bad: Any, ids: IntArray, why: str) -> None:
    """Raise a ValueError that names the first client marked in `bad`."""
    at = np.flatnonzero(bad)
    if len(at):
        raise ValueError(f"norm {values[at[0]]} of client {ids[at[0]]}: {why}")


def checked_variables(variables: ArrayLike | None, clients: int) -> FloatArray:
    """What the server knows about every client beforehand, [N, d]. None means d = 0."""
    if variables is None:
        return np.empty((clients, 0))
    rows = np.asarray(variables, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or len(rows) != clients or not np.isfinite(rows).all():
        raise ValueError(
            f"variables of shape {rows.shape} are not of {clients} clients; give each a row of "
            "finite numbers"
        )
    return rows


def checked_kind(value: T | None, kind: type[T], name: str) -> T | None:
    """The value itself, which must be None or an object of this class."""
    if value is not None and not isinstance(value, kind):
        word = f"kvib.{kind.__name__}"
        raise ValueError(f"{name}={reprlib.repr(value)} is not a {word}; give {word}(), or None")
    return value


def checked_sketch(sketch: int) -> int:
    """The number of numbers in a sketch, a whole number ≥ 0."""
    if not np.isfinite(sketch) or int(sketch) != sketch or sketch < 0:
        raise ValueError(f"sketch={sketch} is not a number of numbers to keep; 32 is a good one")
    return int(sketch)

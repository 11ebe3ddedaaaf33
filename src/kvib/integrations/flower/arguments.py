"""Checks of arguments that would otherwise fail only in the middle of a run."""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, cast

from numpy.typing import NDArray

from kvib.integrations.kit import Hidden, Visible
from kvib.types import Key

Buffers = Callable[[str, NDArray[Any]], bool]
"""A function of the name and value of an array: whether it is averaged instead of learned."""


def known_updates(updates: Any) -> Visible | Hidden:
    """The way in which the server sees updates. Others are refused."""
    if isinstance(updates, Visible | Hidden):
        return updates
    name = getattr(updates, "__name__", repr(updates))
    raise ValueError(f"updates={name} is no way to see updates; write Visible() or Hidden()")


def known_buffers(buffers: Any) -> Buffers:
    """The function that decides which arrays are averaged. Others are refused."""
    if callable(buffers):
        return cast(Buffers, buffers)
    raise ValueError(
        f"buffers={buffers!r} is not a function of an array's name and value; to learn all arrays "
        "write buffers=lambda name, array: False"
    )


def by_key(weights: Any) -> Mapping[Key, float]:
    """The weights by client key. What is not a mapping is refused."""
    if isinstance(weights, Mapping):
        return weights
    raise ValueError(
        f"weights={weights!r} is not a mapping from client key to weight; write {{key: weight}}"
    )


def seconds(deadline: Any) -> float | None:
    """The seconds that the answers of a round may take. None means the timeout of `start`."""
    if deadline is None:
        return None
    if isinstance(deadline, Real) and float(deadline) > 0:
        return float(deadline)
    raise ValueError(f"deadline={deadline!r} is not a positive number of seconds, or None")

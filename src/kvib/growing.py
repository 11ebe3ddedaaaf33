"""Arrays with spare entries, so that clients can join without a copy for each of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPARE = 1024
"""Entries added at each growth besides half of those that exist, so that a small population does
not grow at every client that joins."""


def enough(needed: int, room: int) -> int:
    """The number of entries for `needed` clients, where `room` entries exist.

    It stays `room` if they suffice. Otherwise it grows by half and `_SPARE` entries, which makes
    copies rare, or to `needed` if that is more.
    """
    return room if needed <= room else max(needed, room + room // 2 + _SPARE)


def fewest(room: int) -> float:
    """The smallest number of clients for which `enough` can have returned `room`."""
    return (room - _SPARE) / 1.5


def widened(array: NDArray[Any], room: int, empty: float = 0, axis: int = -1) -> NDArray[Any]:
    """A copy with `room` entries along an axis; the new entries are `empty`."""
    more = list(array.shape)
    more[axis] = room - array.shape[axis]
    return np.concatenate([array, np.full(more, empty, array.dtype)], axis)

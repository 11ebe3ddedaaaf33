"""Arrays with spare entries, so that clients can join without a copy for each of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPARE = 1024
"""Spare entries at least, so that a small population does not grow at every client that joins."""


def enough(needed: int, room: int) -> int:
    """The number of entries for `needed` clients, where `room` entries exist.

    It stays `room` if they suffice. Otherwise it grows by half, which makes copies rare.
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

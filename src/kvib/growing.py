"""Room for clients that may come: arrays with more entries than there are clients."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def enough(needed: int, room: int) -> int:
    """Entries once this many are needed: as many as before, or half as many again."""
    return room if needed <= room else max(needed, room + room // 2 + 1024)


def fewest(room: int) -> float:
    """The fewest clients for which there can be this many entries."""
    return (room - 1024) / 1.5


def widened(array: NDArray[Any], room: int, empty: float = 0, axis: int = -1) -> NDArray[Any]:
    """An array with this many entries along an axis, those that were added `empty`."""
    more = list(array.shape)
    more[axis] = room - array.shape[axis]
    return np.concatenate([array, np.full(more, empty, array.dtype)], axis)

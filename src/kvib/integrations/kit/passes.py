"""Two passes over the numbers of replies: their distances from the model, and their weighted sum.

Numbers are read in place, in the precision in which they arrived. They are added in double
precision, in an order that depends only on the order of the replies.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvib import compiled
from kvib.compiled import kernel
from kvib.types import FloatArray

TILE = 32768
"""Numbers of each reply that are processed together: few enough for a cache, and enough to make the
calls cheap. BLAS is not used, since the order of its sums depends on its threads."""
LANES = 512
"""Partial sums of squares that are added at the end, since a processor works on several at once."""
AT_ONCE = 4
"""Replies that one call adds, so that the sum is read and written less often."""
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)

Flat = Any
"""The numbers of an array in the order of its indices, which can be sliced."""


def flat(array: NDArray[Any]) -> Flat:
    """A flat view of an array. Where there is none, an iterator whose slices are copies."""
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def squared_distance(x: NDArray[Any], y: NDArray[Any]) -> float:
    """‖x − y‖² of two arrays of one shape. It is not finite where they are not."""
    if compiled.available() and _at_hand(x) and _at_hand(y) and x.dtype == y.dtype:
        return _square(_read_only(x.reshape(-1)), _read_only(y.reshape(-1)))
    ours, theirs, kind, total = flat(x), flat(y), _kind([x, y]), 0.0
    for part in _tiles(x.size, TILE):
        total += _square(_piece(ours, part, kind), _piece(theirs, part, kind))
    return total


def add(
    x: NDArray[Any], replies: Sequence[NDArray[Any]], weights: FloatArray, total: FloatArray
) -> float:
    """Add Σ weight·(x − reply) to a total, and return ‖Σ weight·(x − reply)‖² for other weights.

    Args:
        x: The model's array, with n numbers.
        replies: The clients' arrays of the same shape, with finite numbers.
        weights: The weights of the replies for the total and, if wanted, the other weights, whose
            sum is only measured, [1 or 2, m]. Without other weights the result is 0.
        total: The total in double precision, [n].
    """
    ours, theirs, kind = flat(x), [flat(y) for y in replies], _kind([x, *replies])
    squared = 0.0
    for part in _tiles(x.size, TILE):
        pieces = [_piece(y, part, kind) for y in theirs]
        other = np.zeros(part.stop - part.start if len(weights) > 1 else 0)
        _add(_piece(ours, part, kind), pieces, weights, [total[part], other])
        squared += float(np.square(other, out=other).sum())
    return squared


def _tiles(size: int, step: int) -> Iterator[slice]:
    """Slices of this length that cover all numbers, the last one shorter."""
    return (slice(low, min(low + step, size)) for low in range(0, size, step))


def _kind(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any]:
    """The precision in which arrays are read: single if all are single, else double."""
    return SINGLE if all(array.dtype == SINGLE for array in arrays) else DOUBLE


def _at_hand(array: NDArray[Any]) -> bool:
    """Whether compiled code can read an array in place, so that no tiles are needed."""
    flags = array.flags
    return array.dtype in (SINGLE, DOUBLE) and flags.c_contiguous and flags.aligned


def _piece(numbers: Flat, part: slice, kind: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of this slice in this precision, aligned and read-only."""
    piece: NDArray[Any] = numbers[part]
    if piece.dtype != kind or not piece.flags.aligned:
        piece = piece.astype(kind)
    return _read_only(piece)


def _read_only(view: NDArray[Any]) -> NDArray[Any]:
    """The view, marked read-only, so that code is compiled once and not for writable arrays too."""
    view.flags.writeable = False
    return view


def _square(x: NDArray[Any], y: NDArray[Any]) -> float:
    """‖x − y‖² of two flat arrays."""
    if compiled.available():
        return float(_compiled_square(x, y, np.zeros(LANES)))
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.subtract(x, y, dtype=np.float64)
        return float(np.square(apart, out=apart).sum())


def _add(
    x: NDArray[Any], pieces: list[NDArray[Any]], weights: FloatArray, sums: list[FloatArray]
) -> None:
    """Add Σ weight·(x − piece) to each sum, with the weights of its row."""
    if not compiled.available():
        rows = np.empty((len(pieces), len(x)))
        for row, piece in zip(rows, pieces, strict=True):
            np.subtract(x, piece, out=row, dtype=np.float64)
        for weight, total in zip(weights, sums, strict=False):
            total += np.einsum("i,ij->j", weight, rows)
        return
    w = np.zeros((2, -(-len(pieces) // AT_ONCE) * AT_ONCE))
    w[: len(weights), : len(pieces)] = weights
    for at in _tiles(len(pieces), AT_ONCE):
        some = pieces[at]
        some += some[-1:] * (AT_ONCE - len(some))  # the last one repeated, with weight 0
        a, b, c, d = some
        _compiled_add(x, a, b, c, d, w, at.start, *sums)


@kernel
def _compiled_square(x: Any, y: Any, lanes: Any) -> float:
    """‖x − y‖², summed in lanes that start at 0."""
    for low in range(0, len(x), len(lanes)):
        _square_lanes(x[low : low + len(lanes)], y[low : low + len(lanes)], lanes)
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@kernel
def _square_lanes(x: Any, y: Any, lanes: Any) -> None:
    """Add (x − y)² to the lanes, number by number."""
    for j in range(len(x)):
        apart = np.float64(x[j]) - np.float64(y[j])
        lanes[j] += apart * apart


@kernel
def _compiled_add(
    x: Any, a: Any, b: Any, c: Any, d: Any, w: Any, at: int, first: Any, second: Any
) -> None:
    """Add four replies to the first sum, and to the second one unless it is empty."""
    _add_four(x, a, b, c, d, w[0, at : at + 4], first)
    if len(second) > 0:
        _add_four(x, a, b, c, d, w[1, at : at + 4], second)


@kernel
def _add_four(x: Any, a: Any, b: Any, c: Any, d: Any, w: Any, total: Any) -> None:
    """Add Σ weight·(x − reply) over four replies to a total."""
    of_a, of_b, of_c, of_d = w[0], w[1], w[2], w[3]
    for j in range(len(x)):
        at = np.float64(x[j])
        total[j] += (
            of_a * (at - a[j]) + of_b * (at - b[j]) + of_c * (at - c[j]) + of_d * (at - d[j])
        )

"""Running sums that stay accurate however often numbers are added and subtracted.

A running sum is two numbers: the rounded sum, and the rounding errors that it has lost. Several
running sums are the columns of one array, [2, n].
"""

import numpy as np

from kvib.compiled import kernel
from kvib.types import BoolArray, FloatArray, IntArray


def running(values: FloatArray) -> FloatArray:
    """The running sum of these values, [2]: the rounded sum, and its rounding error."""
    parts = np.zeros(2)
    add(parts, values)
    return parts


def add(parts: FloatArray, values: FloatArray) -> None:
    """Add each of these values, which may be negative, to a running sum, [2]."""
    _add_all(parts, values)


@kernel
def add_at(sums: FloatArray, at: IntArray, values: FloatArray) -> None:
    """Add each value to the sum in the column `at`."""
    for k in range(len(at)):
        _add(sums, at[k], values[k])


@kernel
def take_at(sums: FloatArray, at: IntArray, values: FloatArray, last: BoolArray) -> None:
    """Subtract each value from the sum in the column `at`.

    A value marked in `last` is the only one left in its sum, which becomes exactly 0.
    """
    for k in range(len(at)):
        _take(sums, at[k], values[k], last[k])


@kernel
def change_at(
    sums: FloatArray,
    source: IntArray,
    old: FloatArray,
    last: BoolArray,
    target: IntArray,
    new: FloatArray,
) -> None:
    """Move values between sums: subtract each from `source`, then add its new value to `target`.

    An old value marked in `last` is the only one left in its sum, which becomes exactly 0.
    """
    for k in range(len(source)):
        _take(sums, source[k], old[k], last[k])
        _add(sums, target[k], new[k])


@kernel
def _add_all(parts: FloatArray, values: FloatArray) -> None:
    """Add each value to one running sum, [2]."""
    total, lost = parts[0], parts[1]
    for k in range(len(values)):
        total, less = _plus(total, values[k])
        lost += less
    parts[0], parts[1] = total, lost


@kernel
def _take(sums: FloatArray, at: int, x: float, last: bool) -> None:
    """Subtract one number from the sum in a column, or set the sum to 0 if it was the last."""
    if last:
        sums[0, at] = sums[1, at] = 0.0
    else:
        _add(sums, at, -x)


@kernel
def _add(sums: FloatArray, at: int, x: float) -> None:
    """Add one number to the sum in a column."""
    sums[0, at], less = _plus(sums[0, at], x)
    sums[1, at] += less


@kernel
def _plus(before: float, x: float) -> tuple[float, float]:
    """Knuth's exact sum of two numbers: the rounded sum, and its rounding error."""
    after = before + x
    part = after - before
    return after, (before - (after - part)) + (x - part)

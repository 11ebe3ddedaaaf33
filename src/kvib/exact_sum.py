"""Running sums that stay as good as new, whatever is added and taken away.

Several of them are the columns of one array, [2, n]: the sums, and what rounding lost of each.
"""

import numpy as np

from kvib.compiled import kernel
from kvib.types import BoolArray, FloatArray, IntArray


def running(values: FloatArray) -> FloatArray:
    """Their sum, and beside it what rounding lost of it, [2]."""
    parts = np.zeros(2)
    add(parts, values)
    return parts


def add(parts: FloatArray, values: FloatArray) -> None:
    """Add each of these values to a running sum, [2]; negative ones are taken away."""
    _add_all(parts, values)


@kernel
def add_at(sums: FloatArray, at: IntArray, values: FloatArray) -> None:
    """Add each value to the sum in the column `at`."""
    for k in range(len(at)):
        _add(sums, at[k], values[k])


@kernel
def take_at(sums: FloatArray, at: IntArray, values: FloatArray, last: BoolArray) -> None:
    """Take each value from the sum in the column `at`; the last one leaves exactly 0."""
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
    """One after another, take an old value from the column `source`, where the last one leaves
    exactly 0, and add the new one to the column `target`."""
    for k in range(len(source)):
        _take(sums, source[k], old[k], last[k])
        _add(sums, target[k], new[k])


@kernel
def _add_all(parts: FloatArray, values: FloatArray) -> None:
    total, lost = parts[0], parts[1]
    for k in range(len(values)):
        total, less = _plus(total, values[k])
        lost += less
    parts[0], parts[1] = total, lost


@kernel
def _take(sums: FloatArray, at: int, x: float, last: bool) -> None:
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
    """Knuth's exact sum of two numbers: the rounded sum, and what rounding lost."""
    after = before + x
    part = after - before
    return after, (before - (after - part)) + (x - part)

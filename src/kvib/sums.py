"""Running sums that stay as good as new, whatever is added and taken away."""

import numpy as np

from kvib import compiled
from kvib.cohort import FloatArray


def running(values: FloatArray) -> FloatArray:
    """Their sum, and beside it what rounding lost of it, [2]."""
    parts = np.zeros(2)
    add(parts, values)
    return parts


def add(parts: FloatArray, values: FloatArray) -> None:
    """Each of these values to a running sum; negative to take it away."""
    compiled.run(_add, parts, values)


def _add(parts: FloatArray, values: FloatArray) -> None:
    """Knuth's exact sum of two numbers: what rounding loses goes to the second part."""
    for k in range(len(values)):
        before, x = parts[0], values[k]
        after = before + x
        part = after - before
        parts[0] = after
        parts[1] += (before - (after - part)) + (x - part)

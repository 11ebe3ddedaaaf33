"""Checks of what was read from a file, before a part of a sampler takes it over.

Checksums show that a file is as it was written. They do not show that a sampler wrote it. So each
part refuses values that it cannot have written, and the error names the array.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.types import IntArray

_LARGEST = float(np.finfo(np.float64).max)
_SMALLEST = math.ulp(0.0)
CLOSE = 1e-6
"""The largest relative difference between a running sum and the sum computed anew."""


def demand(condition: Any, complaint: str) -> None:
    """Refuse a file with this complaint, unless the condition holds."""
    if not condition:
        raise ValueError(complaint)


def names(
    part: str, arrays: Collection[str], needed: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse a part of a file that lacks an array, or has an unknown one.

    Args:
        part: The name of the part, for errors.
        arrays: The names of its arrays in the file.
        needed: The names that it must have.
        optional: The names that it may have.
    """
    prefix = f"{part}." if part else ""
    there, wanted = ({f"{prefix}{name}" for name in some} for some in (arrays, needed))
    allowed = wanted | {f"{prefix}{name}" for name in optional}
    missing, more = sorted(wanted - there), sorted(there - allowed)
    demand(not missing, f"{', '.join(missing)} is missing")
    demand(not more, f"{', '.join(more)} is not known to this kvib")


class Range(NamedTuple):
    """The numbers that a field can hold: by default all finite numbers."""

    words: str = "finite"
    """The range in words, for errors."""
    low: float = -_LARGEST
    """The smallest number."""
    high: float = _LARGEST
    """The largest number."""
    unknown: bool = False
    """Whether the field may be NaN, which means that its value is not known yet."""
    whole: bool = False
    """Whether the numbers are integers."""


def or_unknown(allowed: Range) -> Range:
    """The numbers of a range, and NaN for a value that is not known yet."""
    return allowed._replace(words=f"{allowed.words}, or not known yet", unknown=True)


FINITE = Range()
NOT_NEGATIVE = Range("at least 0", low=0.0)
POSITIVE = Range("positive", low=_SMALLEST)
ORDINARY = Range("of ordinary size", low=-1e18, high=1e18)
"""Numbers whose squares and products are finite."""
COUNT = Range("whole and at least 0", low=0.0, whole=True)


def within(name: str, values: Any, allowed: Range) -> None:
    """Refuse numbers that are outside of their range."""
    array = np.asarray(values)
    if array.dtype.kind not in ("iu" if allowed.whole else "biuf"):
        raise ValueError(f"{name} is {array.dtype}, and must be {allowed.words}")
    if array.size == 0:
        return
    least, most = (np.fmin, np.fmax) if allowed.unknown else (np.minimum, np.maximum)
    low, high = float(least.reduce(array, axis=None)), float(most.reduce(array, axis=None))
    if allowed.unknown and math.isnan(low):
        return
    if not (allowed.low <= low and high <= allowed.high):  # NaN fails too
        raise ValueError(f"{name} goes from {low} to {high}, and must be {allowed.words}")


def shaped(name: str, array: NDArray[Any], shape: tuple[int, ...], kinds: str = "f") -> None:
    """Refuse an array of another shape, or with a dtype whose kind is not one of `kinds`."""
    if array.shape != shape or array.dtype.kind not in kinds:
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, and must be of shape {shape}"
        )


def each(name: str, array: NDArray[Any], clients: int, size: int) -> None:
    """Refuse an array that does not have one row of this size per client.

    If the size is 0, the number of rows does not matter.
    """
    shaped(name, array, (clients if size else len(array), size))


def ids(name: str, array: NDArray[Any], clients: int) -> IntArray:
    """The ids in an array, which must be different and below the number of clients."""
    shaped(name, array, (array.size,), "iu")
    within(name, array, Range(f"ids below {clients}", 0.0, clients - 1.0, whole=True))
    found = array.astype(np.int64)
    ordered = np.sort(found)
    demand((ordered[1:] > ordered[:-1]).all(), f"{name} lists a client twice")
    return found


def close(name: str, value: float, truth: float) -> None:
    """Refuse a running sum that is not close to the sum of its parts."""
    demand(
        math.isclose(value, truth, rel_tol=CLOSE),  # NaN fails too
        f"{name} is {value}, and its parts sum to {truth}",
    )


def has_entries(about: Mapping[str, Any], needed: Collection[str]) -> None:
    """Refuse a header that lacks one of the needed entries."""
    missing = sorted(set(needed) - set(about))
    demand(not missing, f"its header does not say {', '.join(missing)}")


def flag(about: Mapping[str, Any], name: str) -> bool:
    """The value of a header's entry that must be true or false."""
    value = about[name]
    demand(isinstance(value, bool), f"{name} is {value!r}, and must be true or false")
    return bool(value)


def number(about: Mapping[str, Any], name: str, allowed: Range = POSITIVE) -> Any:
    """The value of a header's entry that must be a number in this range."""
    value = about[name]
    demand(type(value) in (int, float), f"{name} is {value!r}, and must be {allowed.words}")
    within(name, value, allowed)
    return value

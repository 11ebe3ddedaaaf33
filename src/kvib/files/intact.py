"""What a file must say before a part of a sampler believes it.

Checksums show that a file says what was written. They do not show that a sampler wrote it: each
part refuses what it could not have packed, and the error names the array.
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
"""How far sums that were kept up to date may be from sums made afresh."""


def demand(condition: Any, complaint: str) -> None:
    """Refuse a file, for this reason, unless the condition holds."""
    if not condition:
        raise ValueError(complaint)


def names(
    part: str, arrays: Collection[str], needed: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Refuse a part of a file that lacks one of its arrays, or has one that it does not know."""
    prefix = f"{part}." if part else ""
    there, wanted = ({f"{prefix}{name}" for name in given} for given in (arrays, needed))
    known = wanted | {f"{prefix}{name}" for name in optional}
    missing, more = sorted(wanted - there), sorted(there - known)
    demand(not missing, f"{', '.join(missing)} is missing")
    demand(not more, f"{', '.join(more)} is not known to this kvib")


class Range(NamedTuple):
    """Numbers that a field can hold; finite ones, unless it says otherwise."""

    words: str = "finite"
    low: float = -_LARGEST
    high: float = _LARGEST
    unknown: bool = False
    """Whether NaN may stand for what is not known yet."""
    whole: bool = False


def or_unknown(allowed: Range) -> Range:
    """These numbers, or NaN where there is none yet."""
    return allowed._replace(words=f"{allowed.words}, or not known yet", unknown=True)


FINITE = Range()
NOT_NEGATIVE = Range("at least 0", low=0.0)
POSITIVE = Range("positive", low=_SMALLEST)
ORDINARY = Range("of ordinary size", low=-1e18, high=1e18)
"""Numbers whose squares and products are numbers too."""
COUNT = Range("whole and at least 0", low=0.0, whole=True)


def within(name: str, values: Any, allowed: Range) -> None:
    """Refuse numbers outside their range."""
    given = np.asarray(values)
    if given.dtype.kind not in ("iu" if allowed.whole else "biuf"):
        raise ValueError(f"{name} is {given.dtype}, and must be {allowed.words}")
    if given.size == 0:
        return
    least, most = (np.fmin, np.fmax) if allowed.unknown else (np.minimum, np.maximum)
    low, high = float(least.reduce(given, axis=None)), float(most.reduce(given, axis=None))
    if allowed.unknown and math.isnan(low):
        return
    if not (allowed.low <= low and high <= allowed.high):  # NaN fails too
        raise ValueError(f"{name} goes from {low} to {high}, and must be {allowed.words}")


def shaped(name: str, array: NDArray[Any], shape: tuple[int, ...], kinds: str = "f") -> None:
    """Refuse an array of another shape or kind of number."""
    if array.shape != shape or array.dtype.kind not in kinds:
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, and must be of shape {shape}"
        )


def each(name: str, array: NDArray[Any], clients: int, size: int) -> None:
    """Refuse an array that has not a row of this size for each client; no rows if that is 0."""
    shaped(name, array, (clients if size else len(array), size))


def ids(name: str, array: NDArray[Any], clients: int) -> IntArray:
    """Ids of different clients, each below this number of them; refused if they are not."""
    shaped(name, array, (array.size,), "iu")
    within(name, array, Range(f"ids below {clients}", 0.0, clients - 1.0, whole=True))
    found = array.astype(np.int64)
    ordered = np.sort(found)
    demand((ordered[1:] > ordered[:-1]).all(), f"{name} lists a client twice")
    return found


def close(name: str, value: float, truth: float) -> None:
    """Refuse a sum that was kept up to date and is not that of its parts."""
    demand(
        math.isclose(value, truth, rel_tol=CLOSE),  # NaN fails too
        f"{name} is {value}, and its parts sum to {truth}",
    )


def said(about: Mapping[str, Any], needed: Collection[str]) -> None:
    """Refuse a header that leaves out what it must say."""
    missing = sorted(set(needed) - set(about))
    demand(not missing, f"its header does not say {', '.join(missing)}")


def flag(about: Mapping[str, Any], name: str) -> bool:
    """What a header answers with yes or no."""
    value = about[name]
    demand(isinstance(value, bool), f"{name} is {value!r}, and must be true or false")
    return bool(value)


def number(about: Mapping[str, Any], name: str, allowed: Range = POSITIVE) -> Any:
    """A number of a header."""
    value = about[name]
    demand(type(value) in (int, float), f"{name} is {value!r}, and must be {allowed.words}")
    within(name, value, allowed)
    return value

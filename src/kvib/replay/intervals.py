"""Ratios of sums over rounds, with intervals that take skewness into account."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from kvib.types import FloatArray


class Interval(NamedTuple):
    """A value and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def check_level(level: float) -> None:
    """Refuse what is not a probability."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not a probability between 0 and 1")


def normal_quantile(level: float) -> float:
    """Standard errors to either side that hold a normal number with this probability."""
    return NormalDist().inv_cdf((1 + level) / 2)


def ratio_over_rounds(top: FloatArray, bottom: FloatArray, z: float) -> Interval:
    """Σtop/Σbottom over rounds, and all ρ for which Σ(top − ρ·bottom) may be 0 by chance.

    Rounds are weighed by their spread, which trends make too large, not too small. What a skewed
    law has not shown yet is accounted for as Fay and Feuer (1997) do for rates: by one more round
    like the most extreme one. The coverage is in docs/replay.md.
    """
    if bottom.sum() <= 0:
        return Interval(math.nan, math.nan, math.nan)
    value = max(0.0, float(top.sum() / bottom.sum()))

    def too_high(rho: float) -> bool:
        return _below_zero(top - rho * bottom, z)

    def too_low(rho: float) -> bool:
        return _below_zero(rho * bottom - top, z)

    low = _between(value, 0.0, too_low) if too_low(0.0) else 0.0
    if not _below_zero(-bottom, z):  # the bottom itself may be 0
        return Interval(value, low, math.inf)
    far = 2 * value + float(np.ptp(top) / bottom.mean())
    while far > value and not too_high(far):
        far *= 2
    return Interval(value, low, _between(value, far, too_high))


def mean_over_rounds(values: FloatArray, z: float) -> Interval:
    """Mean over rounds, with an interval like that of `ratio_over_rounds`."""
    return ratio_over_rounds(values, np.ones_like(values), z)


def _below_zero(d: FloatArray, z: float) -> bool:
    """Whether E[Σd] < 0, even if one more round like the largest had come."""
    T, total = len(d), float(d.sum())
    off = d - total / T
    most = float(off.max())
    return total + most + z * math.sqrt(T / (T - 1) * float(off @ off) + most**2) < 0


def _between(inside: float, outside: float, refuted: Callable[[float], bool]) -> float:
    """Where refutation begins, by bisection."""
    for _ in range(40):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if refuted(middle) else (middle, outside)
    return inside

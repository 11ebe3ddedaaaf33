"""Ratios of sums over rounds, with intervals that allow for skewed estimates."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from kvib.types import FloatArray

_HALVINGS = 40
"""Steps of a bisection, which leave 2⁻⁴⁰ of the first distance."""


class Interval(NamedTuple):
    """An estimated value that is given with its interval.

    The interval is made to hold the true value with the probability `level` of `replay` or `plan`.
    docs/replay.md shows how often it does in simulated worlds.

    Examples:
        >>> from kvib.replay import Interval
        >>> print(Interval(0.51, 0.42, 0.63))
        0.51 (0.42 to 0.63)
    """

    value: float
    """The estimate."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval; inf where the log does not bound it."""

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def check_level(level: float) -> None:
    """Refuse a level that is not a probability between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} is not a probability between 0 and 1")


def normal_quantile(level: float) -> float:
    """The z for which a normal variable lies within z standard errors with this probability."""
    return NormalDist().inv_cdf((1 + level) / 2)


def ratio_over_rounds(top: FloatArray, bottom: FloatArray, z: float) -> Interval:
    """The ratio Σtop/Σbottom over rounds, with its interval.

    The interval holds all ρ for which Σ(top − ρ·bottom) may be 0 by chance. The standard error is
    that of the spread between rounds, which trends make too large, not too small. A skewed law may
    not have shown its largest values yet. This is accounted for as Fay and Feuer (1997) do for
    rates: by one more round like the most extreme one. The coverage is in docs/replay.md.

    Args:
        top: The numerator of every round, [T].
        bottom: The denominator of every round, [T].
        z: The half-width of the interval in standard errors (`normal_quantile`).
    """
    if bottom.sum() <= 0:
        return Interval(math.nan, math.nan, math.nan)
    value = max(0.0, float(top.sum() / bottom.sum()))

    def too_high(rho: float) -> bool:
        """Whether the rounds refute this ratio, since the true one is below it."""
        return _below_zero(top - rho * bottom, z)

    def too_low(rho: float) -> bool:
        """Whether the rounds refute this ratio, since the true one is above it."""
        return _below_zero(rho * bottom - top, z)

    low = _between(value, 0.0, too_low) if too_low(0.0) else 0.0
    if not _below_zero(-bottom, z):  # the sum of `bottom` may be 0: no upper bound
        return Interval(value, low, math.inf)
    far = 2 * value + float(np.ptp(top) / bottom.mean())
    while far > value and not too_high(far):
        far *= 2
    return Interval(value, low, _between(value, far, too_high))


def mean_over_rounds(values: FloatArray, z: float) -> Interval:
    """The mean over rounds, with an interval like that of `ratio_over_rounds`."""
    return ratio_over_rounds(values, np.ones_like(values), z)


def _below_zero(d: FloatArray, z: float) -> bool:
    """Whether E[Σd] < 0 at z standard errors, even with one more round like the largest."""
    T, total = len(d), float(d.sum())
    off = d - total / T
    most = float(off.max())
    return total + most + z * math.sqrt(T / (T - 1) * float(off @ off) + most**2) < 0


def _between(inside: float, outside: float, refuted: Callable[[float], bool]) -> float:
    """The value between `inside` and `outside` at which `refuted` becomes true, by bisection."""
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if refuted(middle) else (middle, outside)
    return inside

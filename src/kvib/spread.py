"""The sampling noise of a round, estimated while its updates pass by."""

import math
from typing import Any

import numpy as np

from kvib import rows
from kvib.cohort import BoolArray, Cohort, FloatArray
from kvib.estimators import decided, phantom
from kvib.rows import Rows


class Spread:
    """What `kvib.estimated_variance` says of a round, from norms and one running sum.

    With ζ = λg/(a·expected), two identities take the place of all inner products:
    Σf‖ζ − ζ̄‖² = Σf‖ζ‖² − ‖Σfζ‖²/Σf and ½ΣΣff′‖ζ − ζ′‖² = ΣfΣf‖ζ‖² − ‖Σfζ‖², where f is known
    before anybody answers. Where pairs of clients differ in how likely they are drawn together
    (conditional Poisson), or where second moments are lost (after a restart), Deville's
    approximation (1999), made for such draws, takes their place.
    """

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._a = cohort.availability
        self._r = cohort.response / cohort.availability
        self._zeta = cohort.weight / (self._a * cohort.expected)
        pairs = None if cohort.pairs is None else cohort.pairs()
        self._pairs = None if pairs is None or isinstance(pairs.ratio, np.ndarray) else pairs
        self.norms_suffice = pairs is not None and pairs.uncorrelated
        """As for independent draws; then no sum is kept."""
        # with replacement nothing is known without second moments
        self._complete = cohort.most <= 1 if pairs is None else pairs.complete
        if self._pairs is None:
            self._f = (1 - np.minimum(cohort.expected, 1.0)) / self._r
        else:
            self._f = cohort.count / self._r
        self._sum: Any = 0.0

    def add(self, at: BoolArray, updates: Rows) -> None:
        """Take in updates, [m, d], of those marked."""
        if not self.norms_suffice:
            added = rows.doubled(self._f[at] * self._zeta[at], updates)
            self._sum = rows.plus(self._sum, added)

    def value(self, norms: FloatArray) -> float:
        """The variance, given the norms of those who came, NaN of others; NaN if not known."""
        came, r, a = ~np.isnan(norms), self._r, self._a
        if not self._complete or self._cohort.take(came).guarantee == "biased":
            return math.nan
        count, squared = self._cohort.count, (self._zeta * norms) ** 2
        silence = count**2 * (1 - r) / r**2 + count * self._cohort.expected * (1 - a) / r
        away = float((silence * squared)[came].sum())
        f, square = self._f[came], float(np.dot(self._f[came], squared[came]))
        if self._pairs is None:
            return away + self._approximate(f, square)
        own = float((count * self._pairs.size / r * squared)[came].sum())
        if self.norms_suffice or len(f) < 2:
            return own + away
        between = float(f.sum()) * square - self._together()
        return own - (1 - 1 / float(self._pairs.ratio)) * between + away

    def _together(self) -> float:
        """‖Σfζ‖²."""
        return 0.0 if np.ndim(self._sum) == 0 else float(rows.norms(self._sum[None])[0]) ** 2

    def _approximate(self, f: FloatArray, square: float) -> float:
        """Σf‖ζ − ζ̄‖²/(1 − Σw²), ζ̄ the mean with weights w ∝ f (Deville 1999)."""
        if decided(self._cohort):
            return 0.0
        f = np.append(f, phantom(self._cohort))
        if np.count_nonzero(f) < 2:
            return math.nan
        total = f.sum()
        w = f / total
        within = square - self._together() / total
        return float(max(within, 0.0) / (1 - (w * w).sum()))

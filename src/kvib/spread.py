"""The sampling noise of a round, estimated while its updates pass by."""

import math

import numpy as np

from kvib.cohort import BoolArray, Cohort, FloatArray
from kvib.estimators import decided, phantom, seen


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
        """As for independent draws; then no sum is needed."""
        # with replacement nothing is known without second moments
        self._complete = cohort.most <= 1 if pairs is None else pairs.complete
        if self._pairs is None:
            self._f = (1 - np.minimum(cohort.expected, 1.0)) / self._r
        else:
            self._f = cohort.count / self._r
        self.weights = self._f * self._zeta
        """Of every update in that sum, Σ weight·g over those who come."""

    def value(self, norms: FloatArray, squared_sum: float = math.nan) -> float:
        """The variance, given the norms of those who came, NaN of others; NaN if not known.

        Args:
            norms: of what the guard left of each update.
            squared_sum: ‖Σ weight·g‖²; where a server does not see updates, norms must suffice.
        """
        came = ~np.isnan(norms)
        if not self._complete or self._cohort.guarantee == "biased":
            return math.nan
        return seen(self._cohort, came, self._value(came, norms, squared_sum))

    def _value(self, came: BoolArray, norms: FloatArray, squared_sum: float) -> float:
        r, a = self._r, self._a
        count, squared = self._cohort.count, (self._zeta * norms) ** 2
        silence = count**2 * (1 - r) / r**2 + count * self._cohort.expected * (1 - a) / r
        away = float((silence * squared)[came].sum())
        f, square = self._f[came], float(np.dot(self._f[came], squared[came]))
        if self._pairs is None:
            return away + self._approximate(f, square, squared_sum)
        own = float((count * self._pairs.size / r * squared)[came].sum())
        if self.norms_suffice or len(f) < 2:
            return own + away
        between = float(f.sum()) * square - squared_sum
        return own - (1 - 1 / float(self._pairs.ratio)) * between + away

    def _approximate(self, f: FloatArray, square: float, squared_sum: float) -> float:
        """Σf‖ζ − ζ̄‖²/(1 − Σw²), ζ̄ the mean with weights w ∝ f (Deville 1999)."""
        if decided(self._cohort):
            return 0.0
        f = np.append(f, phantom(self._cohort))
        if np.count_nonzero(f) < 2:
            return math.nan
        total = f.sum()
        w = f / total
        within = square - squared_sum / total
        return float(max(within, 0.0) / (1 - (w * w).sum()))

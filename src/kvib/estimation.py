"""The estimate of one round, fed with updates as they come."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvib import rows
from kvib.cohort import BoolArray, Cohort, FloatArray
from kvib.rows import Rows

if TYPE_CHECKING:
    from kvib.sampler import Sampler


class Estimation:
    """Σ coefficient·(g − βh) + βΣλh, accumulated: memory holds the updates of one part at a time.

    Made by `Sampler.begin`. Parts may come in any order; who is never added did not answer.
    """

    def __init__(
        self, sampler: "Sampler", cohort: Cohort, coefficients: Callable[[Cohort], FloatArray]
    ) -> None:
        self._sampler, self._cohort = sampler, cohort
        self._factors = coefficients(cohort)
        self._d: Any = sampler.remembered.known() if sampler.remembered is not None else 0.0
        self.norms = np.full(len(cohort), np.nan)
        """‖g − βh‖ of those who were added, as the policy will learn them."""
        self.cut = 0.0
        """What the guard has cut off so far: a bound on the bias of this round."""
        self._shares = 0.0
        self._sketches = np.zeros((len(cohort), sampler.sketches.size))

    def add(self, at: BoolArray, updates: Rows) -> Rows:
        """Take in the updates of the clients that `at` marks; returns g − βh, [m, d]."""
        sampler, part = self._sampler, self._cohort.take(at)
        residuals = updates
        if sampler.remembered is not None:
            residuals = sampler.remembered.residuals(part.ids, updates)
        lengths, factors = rows.norms(residuals), self._factors[at]
        if sampler.guard is not None:
            shares = factors * lengths
            shorter = sampler.guard.shorten(shares, sampler.usual_step)
            factors, lengths = factors * shorter, lengths * shorter
            self.cut += float((shares * (1 - shorter)).sum())
            self._shares += float((shares * shorter).sum())
        self.norms[at] = lengths
        if sampler.sketches.size:
            self._sketches[at] = rows.sketch(updates, sampler.sketches.size)
        self._d = self._d + rows.weighted(factors, residuals)
        if sampler.remembered is not None and np.isfinite(lengths).all():
            sampler.remembered.keep(part, updates)
        return residuals

    def finish(self) -> Any:
        """The estimated step d; the sampler has learned from the round then. 0 if nobody came."""
        self._sampler.finish(self._cohort, self.norms, self._sketches, self._shares)
        return self._d

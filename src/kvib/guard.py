"""A bound on what one client can do to the model in a round."""

from dataclasses import dataclass

import numpy as np

from kvib.cohort import FloatArray

FORGET = 0.9
"""Per round, of the size of a usual step."""


@dataclass(frozen=True)
class Guard:
    """Shorten an update whose share of the step, coefficient·‖g‖, exceeds `limit` usual steps.

    Importance sampling seeks out large updates, so a client whose local training explodes would be
    drawn again and again. The usual step is the running mean of Σ coefficient·‖g‖, whose mean is
    Σλ‖g‖. Where the guard fires the estimate is biased by at most what it cut off, which is
    reported; in a calm run it never fires.

    Args:
        limit: in usual steps.
    """

    limit: float = 2.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"limit={self.limit} is not a positive number of usual steps")

    def shorten(self, shares: FloatArray, usual: float) -> FloatArray:
        """The factor for every update, given its share coefficient·‖g‖, [m]; 1 for most."""
        if np.isnan(usual):
            return np.ones(len(shares))
        most = self.limit * usual
        return np.asarray(most / np.maximum(shares, most))

    def learn(self, usual: float, total: float) -> float:
        """The usual step after a round whose shares, cut off, sum to `total`."""
        if total <= 0:
            return usual
        return total if np.isnan(usual) else FORGET * usual + (1 - FORGET) * total

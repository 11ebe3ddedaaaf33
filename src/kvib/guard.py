"""A bound on what one client can do to the model in a round."""

from dataclasses import dataclass

import numpy as np

from kvib.cohort import BoolArray, FloatArray

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

    def watch(self, clients: int, usual: float) -> "Watch":
        """For a round of so many clients, when a usual step is this long."""
        return Watch(self.limit * usual, clients)

    def learn(self, usual: float, total: float) -> float:
        """The usual step after a round whose shares, cut off, sum to `total`."""
        if total <= 0:
            return usual
        return total if np.isnan(usual) else FORGET * usual + (1 - FORGET) * total


class Watch:
    """What the clients of one round add to its step, coefficient·‖g‖, each at most `most`.

    Args:
        most: NaN before anything is usual: then nothing is cut off.
        clients: of the round.
    """

    def __init__(self, most: float, clients: int) -> None:
        self._most = most
        self._shares = np.full(clients, np.nan)
        self._calm = np.ones(clients, dtype=np.bool_)
        self.cut = 0.0
        """What was cut off so far: a bound on the bias of this round."""

    def shorten(self, at: BoolArray, shares: FloatArray, whole: FloatArray) -> FloatArray:
        """The factor for every update, [m]; 1 for most.

        Args:
            at: the clients of the round that these are.
            shares: coefficient·‖g − βh‖ of each, which is what they add.
            whole: coefficient·‖g‖. A usual step is one of these: residuals shrink while a memory
                fills.
        """
        factors = np.ones(len(shares))
        if not np.isnan(self._most):
            factors = self._most / np.maximum(shares, self._most)
        self.cut += float((shares * (1 - factors)).sum())
        self._calm[at] = factors == 1
        self._shares[at] = np.where(factors == 1, whole, shares * factors)
        return np.asarray(factors)

    def total(self) -> float:
        """Σ coefficient·‖g‖ of the round; without those cut off, unless they are the most."""
        came = ~np.isnan(self._shares)
        calm = came & self._calm
        if calm.sum() < came.sum() / 2:
            calm = came
        return float(self._shares[calm].sum())

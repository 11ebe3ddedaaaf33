"""A few numbers of each client's last update: to balance draws on, and to see what persists."""

import math

import numpy as np

from kvib.cohort import Arrays, Cohort, FloatArray, IntArray

FORGET = 0.9
"""Per round, of how alike successive updates were."""


class Sketches:
    """The last sketch of every client."""

    def __init__(self, clients: int, size: int) -> None:
        self.size = size
        """Numbers per client; 0: none are kept."""
        self.rows = np.full((clients, size), np.nan)
        """[N, size]; NaN for clients never seen."""
        self._returns = np.zeros(3)

    @property
    def seen(self) -> IntArray:
        """Clients that have one."""
        return np.flatnonzero(~np.isnan(self.rows).any(axis=1)) if self.size else np.arange(0)

    def keep(self, cohort: Cohort, new: FloatArray) -> None:
        """Take in the sketches of those who answered, [m, size]."""
        if self.size == 0:
            return
        old = self.rows[cohort.ids]
        back = ~np.isnan(old).any(axis=1)
        p = np.minimum(cohort.expected, 1.0)
        w = (cohort.count * (cohort.weight / p) ** 2 * (1 - p))[back]
        g, h = new[back], old[back]
        now = [w @ (a * b).sum(axis=1) for a, b in ((g, h), (h, h), (g, g))]
        self._returns = FORGET * self._returns + now
        self.rows[cohort.ids] = new

    def filled(self, ids: IntArray, weights: FloatArray) -> FloatArray:
        """Of these clients, the mean of all for those never seen, [m, size]; [m, 0] if none was."""
        seen = self.seen
        if len(seen) == 0:
            return np.empty((len(ids), 0))
        mean = np.average(self.rows[seen], axis=0, weights=weights[seen])
        rows = self.rows[ids]
        return np.where(np.isnan(rows), mean, rows)

    @property
    def resemblance(self) -> float:
        """How much of ‖g‖² a client's last update explains at best; NaN: nobody came back yet."""
        product, old, new = self._returns
        if old * new <= 0:
            return math.nan
        return float(max(product, 0.0) ** 2 / (old * new))

    def packed(self) -> Arrays:
        """As arrays."""
        return {"rows": self.rows, "returns": self._returns}

    def restore(self, arrays: Arrays) -> None:
        """What `packed` packed."""
        if arrays["rows"].shape != self.rows.shape or arrays["returns"].shape != (3,):
            raise ValueError(
                f"sketches of shape {arrays['rows'].shape} are not of {len(self.rows)} clients"
            )
        self.rows, self._returns = arrays["rows"].copy(), arrays["returns"].copy()

"""Sketches: a few numbers of each client's last update.

Procedures balance draws on them, and `kvib.diagnose` sees from them how much of an update persists.
"""

import math
from typing import Any

import numpy as np

from kvib import growing
from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import FINITE, NOT_NEGATIVE, Range
from kvib.files.part import Part, Saved
from kvib.types import Arrays, FloatArray, IntArray

RETURNS_DECAY = 0.9
"""Weight of the past in the sums that compare successive updates of a client. About ten rounds
count, since training changes how alike updates are."""


class Sketches(Part):
    """The last sketch of every client.

    Args:
        clients: The number of clients.
        size: The number of entries of a sketch. 0 means that no sketches are kept.
    """

    def __init__(self, clients: int, size: int) -> None:
        self.size = size
        """The number of entries of a sketch; 0 means that no sketches are kept."""
        self.rows = np.full((clients, size), np.nan)
        """The sketches, [N, size]; NaN for clients that were never seen."""
        self._returns = np.zeros(4)
        """Σw⟨g, h⟩, Σw‖h‖² and Σw‖g‖² over clients that returned, and Σw‖g‖² over all clients.

        g is the sketch of an update, h the client's last one, w the weight of its noise."""

    @property
    def seen(self) -> IntArray:
        """Ids of the clients that have a sketch."""
        return np.flatnonzero(~np.isnan(self.rows).any(axis=1)) if self.size else np.arange(0)

    def keep(self, cohort: Cohort, new: FloatArray) -> None:
        """Keep the sketches of the clients that answered, [m, size]."""
        if self.size == 0:
            return
        old, w = self.rows[cohort.ids], cohort.noise
        returned = ~np.isnan(old).any(axis=1)
        g, h, noise = new[returned], old[returned], w[returned]
        sums = [noise @ (a * b).sum(axis=1) for a, b in ((g, h), (h, h), (g, g))]
        self._returns = RETURNS_DECAY * self._returns + [*sums, w @ (new * new).sum(axis=1)]
        self.rows[cohort.ids] = new

    def filled(self, ids: IntArray, weights: FloatArray) -> FloatArray:
        """The sketches of these clients, [m, size], or [m, 0] where no client has a sketch.

        Clients that were never seen get the mean of all sketches, weighted by `weights`, [N].
        """
        seen = self.seen
        if len(seen) == 0:
            return np.empty((len(ids), 0))
        mean = np.average(self.rows[seen], axis=0, weights=weights[seen])
        rows = self.rows[ids]
        return np.where(np.isnan(rows), mean, rows)

    @property
    def remembered(self) -> float:
        """The share of ‖g‖² that last updates explain at best, over all clients that answered.

        A client that answered for the first time had no last update. NaN means that no client has
        answered yet.
        """
        product, old, _, new = self._returns
        return _explained(product, old, new)

    @property
    def resemblance(self) -> float:
        """The share of ‖g‖² that last updates explain at best, over clients that returned.

        NaN means that no client has returned yet.
        """
        product, old, new, _ = self._returns
        return _explained(product, old, new) if old > 0 else math.nan

    def widen(self, entries: int) -> None:
        """Make room for more clients, who were never seen."""
        self.rows = growing.widened(self.rows, entries, empty=math.nan, axis=0)

    HEADER = ("sketch",)
    ARRAYS = ("sketches",)

    def about(self) -> dict[str, Any]:
        """The length of a sketch, for the header of a file."""
        return {"sketch": self.size}

    def packed(self, clients: int) -> Arrays:
        """The sketches and the sums as arrays."""
        return {"sketches.rows": self.rows[:clients], "sketches.returns": self._returns}

    def restore(self, saved: Saved) -> None:
        """Take over the saved sketches and sums."""
        arrays = saved.part("sketches")
        intact.names("sketches", arrays, ("rows", "returns"))
        rows, returns = arrays["rows"], arrays["returns"]
        if returns.shape == (3,):  # an older file, in which first updates were not counted
            returns = np.append(returns, returns[2])
        intact.each("sketches.rows", rows, *self.rows.shape)
        intact.within("sketches.rows", rows, Range(unknown=True))
        intact.shaped("sketches.returns", returns, (4,))
        intact.within("sketches.returns", returns[:1], FINITE)
        intact.within("sketches.returns", returns[1:], NOT_NEGATIVE)
        self.rows = rows.astype(np.float64, copy=False)
        self._returns = returns.astype(np.float64, copy=False)


def _explained(product: float, old: float, new: float) -> float:
    """1 − min_β Σw‖g − βh‖² / Σw‖g‖² = ⟨g, h⟩²/(‖h‖²‖g‖²), for β ≥ 0."""
    if new <= 0:
        return math.nan
    return float(max(product, 0.0) ** 2 / (old * new)) if old > 0 else 0.0

"""A few numbers of each client's last update: to balance draws on, and to see what persists."""

import math
from typing import Any

import numpy as np

from kvib import growing
from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import FINITE, NOT_NEGATIVE, Range
from kvib.files.part import Part, Saved
from kvib.types import Arrays, FloatArray, IntArray

FORGET = 0.9
"""Weight of the past in how alike successive updates are: about ten rounds count, since training
changes it."""


class Sketches(Part):
    """The last sketch of every client."""

    def __init__(self, clients: int, size: int) -> None:
        self.size = size
        """Numbers per client; 0: none are kept."""
        self.rows = np.full((clients, size), np.nan)
        """[N, size]; NaN for clients never seen."""
        self._returns = np.zeros(4)
        """Of those who came back Σw⟨g, h⟩, Σw‖h‖² and Σw‖g‖², and of all Σw‖g‖²: g is an update, h
        the client's last one, w what its noise weighs."""

    @property
    def seen(self) -> IntArray:
        """Clients that have one."""
        return np.flatnonzero(~np.isnan(self.rows).any(axis=1)) if self.size else np.arange(0)

    def keep(self, cohort: Cohort, new: FloatArray) -> None:
        """Take in the sketches of those who answered, [m, size]."""
        if self.size == 0:
            return
        old, w = self.rows[cohort.ids], cohort.noise
        back = ~np.isnan(old).any(axis=1)
        g, h, both = new[back], old[back], w[back]
        now = [both @ (a * b).sum(axis=1) for a, b in ((g, h), (h, h), (g, g))]
        self._returns = FORGET * self._returns + [*now, w @ (new * new).sum(axis=1)]
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
    def remembered(self) -> float:
        """How much of ‖g‖² the last updates explain at best, of all clients that came.

        NaN: nobody came yet. Who came for the first time had nothing to be remembered by.
        """
        product, old, _, new = self._returns
        return _explained(product, old, new)

    @property
    def resemblance(self) -> float:
        """The same of those who came back; NaN: nobody did yet."""
        product, old, new, _ = self._returns
        return _explained(product, old, new) if old > 0 else math.nan

    def widen(self, entries: int) -> None:
        """Room for more clients, who were never seen."""
        self.rows = growing.widened(self.rows, entries, empty=math.nan, axis=0)

    HEADER = ("sketch",)
    ARRAYS = ("sketches",)

    def about(self) -> dict[str, Any]:
        """The length of a sketch, for the header of a file."""
        return {"sketch": self.size}

    def packed(self, clients: int) -> Arrays:
        """As arrays."""
        return {"sketches.rows": self.rows[:clients], "sketches.returns": self._returns}

    def restore(self, saved: Saved) -> None:
        """What was saved."""
        arrays = saved.part("sketches")
        intact.names("sketches", arrays, ("rows", "returns"))
        rows, returns = arrays["rows"], arrays["returns"]
        if returns.shape == (3,):  # of a time when first updates were not counted
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

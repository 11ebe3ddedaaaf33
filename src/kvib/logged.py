"""A round of the past, and under which conditions it was drawn."""

from typing import NamedTuple

import numpy as np

from kvib.cohort import Cohort, FloatArray, IntArray

_NOBODY = np.empty(0, np.int64)


class Logged(NamedTuple):
    """One past round."""

    cohort: Cohort
    """As drawn; from a journal with expected counts and rates to single precision."""
    norms: FloatArray
    """‖g‖ in the order of its ids; NaN where there was no answer."""
    heard: bool = True
    """False: drawn, but no feedback came (yet)."""
    available: IntArray | None = None
    """Whom it was drawn among, ascending ids; None: everybody."""
    absent: IntArray | None = _NOBODY
    """Who of them could not be drawn: named absent, or waiting. None: nobody knows any more."""
    order: tuple[int, int] | None = None
    """Numbers of its draw and of its feedback in the order of all that happened; None: feedback
    came before the next draw."""

    def eligible(self, everybody: IntArray) -> IntArray | None:
        """Who could be drawn, ascending; None: nobody knows any more."""
        if self.absent is None:
            return None
        ids = everybody if self.available is None else self.available
        return np.setdiff1d(ids, self.absent, assume_unique=True) if len(self.absent) else ids

"""A round of the past, under which conditions it was drawn, and who had come or gone by then."""

import math
from typing import NamedTuple, Protocol

import numpy as np

from kvib.cohort import Cohort, FloatArray, IntArray

_NOBODY = np.empty(0, np.int64)


class Changing(Protocol):
    """A population that changes."""

    def join(self, ids: IntArray, weights: FloatArray, prices: FloatArray | None) -> None:
        """Clients come, or come back."""

    def leave(self, ids: IntArray) -> None:
        """Clients go."""

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Weights of clients change."""


class Joined(NamedTuple):
    """Clients came, or came back."""

    ids: IntArray
    """New clients have the next ids, in the order in which they came."""
    weights: FloatArray
    """One weight per client, in units of the total at the beginning."""
    prices: FloatArray | None = None
    """What drawing each client takes from the budget, where that counts more than clients."""
    number: float = math.inf
    """Its place in the order of all that happened; by default right before the draw."""

    def happen(self, to: Changing) -> None:
        """Let it happen once more."""
        to.join(self.ids, self.weights, self.prices)


class Left(NamedTuple):
    """Clients went, with their share of the objective."""

    ids: IntArray
    number: float = math.inf
    """As in `Joined`."""

    def happen(self, to: Changing) -> None:
        """Let it happen once more."""
        to.leave(self.ids)


class Reweighed(NamedTuple):
    """Weights of clients changed."""

    ids: IntArray
    weights: FloatArray
    """As in `Joined`."""
    number: float = math.inf
    """As in `Joined`."""

    def happen(self, to: Changing) -> None:
        """Let it happen once more."""
        to.reweigh(self.ids, self.weights)


Change = Joined | Left | Reweighed


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
    changes: tuple[Change, ...] = ()
    """What happened to the population since the draw of the round before, in order."""

    def eligible(self, everybody: IntArray) -> IntArray | None:
        """Who could be drawn, ascending; None: nobody knows any more."""
        if self.absent is None:
            return None
        ids = everybody if self.available is None else self.available
        return np.setdiff1d(ids, self.absent, assume_unique=True) if len(self.absent) else ids

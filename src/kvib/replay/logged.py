"""A round of the past, and the changes of the population before it."""

import math
from typing import NamedTuple, Protocol

import numpy as np

from kvib.checks import earlier_names
from kvib.cohort import Cohort
from kvib.types import FloatArray, IntArray

_NO_IDS = np.empty(0, np.int64)


class Changing(Protocol):
    """A population in which past changes can be repeated."""

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
    """Price of drawing each client, where the budget counts costs or answers."""
    number: float = math.inf
    """Place of the change in the order of all events; by default right before the draw."""

    def happen(self, to: Changing) -> None:
        """Repeat the change."""
        to.join(self.ids, self.weights, self.prices)


class Left(NamedTuple):
    """Clients left, with their share of the objective."""

    ids: IntArray
    number: float = math.inf
    """As in `Joined`."""

    def happen(self, to: Changing) -> None:
        """Repeat the change."""
        to.leave(self.ids)


class Reweighed(NamedTuple):
    """Weights of clients changed."""

    ids: IntArray
    weights: FloatArray
    """As in `Joined`."""
    number: float = math.inf
    """As in `Joined`."""

    def happen(self, to: Changing) -> None:
        """Repeat the change."""
        to.reweigh(self.ids, self.weights)


Change = Joined | Left | Reweighed


@earlier_names({"heard": "answered"})
class Logged(NamedTuple):
    """One past round."""

    cohort: Cohort
    """The cohort as drawn; from a journal with expected counts and rates to single precision."""
    norms: FloatArray
    """‖g‖ in the order of its ids; NaN where there was no answer."""
    answered: bool = True
    """Whether feedback has arrived; False for a round that was drawn and is still open."""
    available: IntArray | None = None
    """Clients that it was drawn among, ascending ids; None means all."""
    absent: IntArray | None = _NO_IDS
    """Clients among them that could not be drawn, since they were named absent or had to wait;
    None means that they are not known any more."""
    order: tuple[int, int] | None = None
    """Numbers of its draw and of its feedback in the order of all events; None means that the
    feedback came before the next draw."""
    changes: tuple[Change, ...] = ()
    """Changes of the population since the draw of the round before, in order."""

    def eligible(self, present: IntArray) -> IntArray | None:
        """Clients that could be drawn, ascending; None means that they are not known any more.

        Args:
            present: ids of all clients at the time, ascending.
        """
        if self.absent is None:
            return None
        ids = present if self.available is None else self.available
        return np.setdiff1d(ids, self.absent, assume_unique=True) if len(self.absent) else ids

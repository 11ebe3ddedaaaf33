"""A round of the past, and the changes of the population before it."""

import math
from typing import NamedTuple, Protocol

import numpy as np

from kvib.checks import earlier_names
from kvib.cohort import Cohort
from kvib.types import FloatArray, IntArray

_NO_IDS = np.empty(0, np.int64)


class Changing(Protocol):
    """A population in which past changes can be repeated or undone."""

    def join(self, ids: IntArray, weights: FloatArray, prices: FloatArray | None) -> None:
        """Take in that clients join, or return."""

    def leave(self, ids: IntArray) -> None:
        """Take in that clients leave."""

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Take in that weights of clients change."""


class Joined(NamedTuple):
    """A change of the population: clients joined, or returned with their history.

    Examples:
        >>> import numpy as np
        >>> from kvib.replay import Joined
        >>> change = Joined(ids=np.array([4, 5]), weights=np.array([0.1, 0.3]))
        >>> change.prices is None, change.number            # right before the draw
        (True, inf)
    """

    ids: IntArray
    """Ids of the clients. New clients have the next ids, in the order in which they joined."""
    weights: FloatArray
    """One weight per client, in units of the total at the beginning."""
    prices: FloatArray | None = None
    """Price of drawing each client, where the budget counts costs or answers."""
    number: float = math.inf
    """Place of the change in the order of all events; by default right before the draw."""

    def happen(self, to: Changing) -> None:
        """Repeat the change in a population.

        Args:
            to: The population.
        """
        to.join(self.ids, self.weights, self.prices)


class Left(NamedTuple):
    """A change of the population: clients left, with their share of the objective.

    Examples:
        >>> import numpy as np
        >>> from kvib.replay import Left
        >>> Left(ids=np.array([3]))
        Left(ids=array([3]), number=inf)
    """

    ids: IntArray
    """Ids of the clients."""
    number: float = math.inf
    """Place of the change in the order of all events; by default right before the draw."""

    def happen(self, to: Changing) -> None:
        """Repeat the change in a population.

        Args:
            to: The population.
        """
        to.leave(self.ids)


class Reweighed(NamedTuple):
    """A change of the population: clients were given other weights.

    Examples:
        >>> import numpy as np
        >>> from kvib.replay import Reweighed
        >>> Reweighed(ids=np.array([0]), weights=np.array([0.25]))
        Reweighed(ids=array([0]), weights=array([0.25]), number=inf)
    """

    ids: IntArray
    """Ids of the clients."""
    weights: FloatArray
    """The new weight of each client, in units of the total at the beginning."""
    number: float = math.inf
    """Place of the change in the order of all events; by default right before the draw."""

    def happen(self, to: Changing) -> None:
        """Repeat the change in a population.

        Args:
            to: The population.
        """
        to.reweigh(self.ids, self.weights)


Change = Joined | Left | Reweighed
"""A change of the population between two draws. `Logged.changes` lists them."""


@earlier_names({"heard": "answered"})
class Logged(NamedTuple):
    """A past round as it is given to `replay` and `plan`: its cohort and the norms of its clients.

    The other fields describe who could be drawn, and what happened since the round before. A
    journal fills in all of them (`History.rounds`).

    Examples:
        >>> import kvib
        >>> from kvib.replay import Logged
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1, 2, 3], budget=2)
        >>> cohort = sampler.draw()
        >>> logged = Logged(cohort, norms=[0.5] * len(cohort))
        >>> logged.answered, logged.available, logged.changes
        (True, None, ())
    """

    cohort: Cohort
    """The cohort as drawn; from a journal with expected counts and rates to single precision."""
    norms: FloatArray
    """‖g‖ in the order of its ids; NaN where there was no answer."""
    answered: bool = True
    """Whether feedback has arrived; False for a round that is still open or was given up."""
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
        """List the clients that could be drawn, ascending; None means that they are not known.

        Args:
            present: Ids of all clients at the time, ascending.
        """
        if self.absent is None:
            return None
        ids = present if self.available is None else self.available
        return np.setdiff1d(ids, self.absent, assume_unique=True) if len(self.absent) else ids

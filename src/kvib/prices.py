"""What drawing a client takes from the budget."""

import math
from collections.abc import Callable

import numpy as np

from kvib import rates, room
from kvib.checks import checked_budget
from kvib.cohort import FloatArray, IntArray
from kvib.reach import Reach

Scores = Callable[[IntArray], FloatArray]


class Prices:
    """One per client; or costs; or the chance of an answer, where the budget counts answers.

    Args:
        cost: of each client.
        over_select: whether the budget counts answers.
        reach: how likely they are.
    """

    def __init__(self, cost: FloatArray | None, over_select: bool, reach: Reach) -> None:
        self.cost, self.over_select = cost, over_select
        self._reach = reach

    @property
    def _for_answers(self) -> bool:
        """Over-selection with known rates: who answers seldom costs little."""
        return self.over_select and rates.is_known(self._reach.response)

    @property
    def differ(self) -> bool:
        """Whether it is more than a count of clients."""
        return self.cost is not None or self._for_answers

    def of(self, ids: IntArray) -> FloatArray:
        """Of these clients, [m]."""
        price = np.ones(len(ids)) if self.cost is None else self.cost[ids]
        return price * self._reach.answering(ids) if self._for_answers else price

    def preferring(self, scores: Scores) -> Scores:
        """score/√price: whom to prefer when the budget is spent on prices."""
        if not self.differ:
            return scores
        return lambda ids: scores(ids) / np.sqrt(self.of(ids))

    def widen(self, entries: int) -> None:
        """Room for more clients."""
        if self.cost is not None:
            self.cost = room.widened(self.cost, entries)

    def requested(self, budget: float, clients: float) -> float:
        """A budget, raised where it counts answers whose rate is being learned."""
        most = math.inf if self.cost is not None else clients  # costs are clipped, not summed up
        given = checked_budget(budget, most)
        if self.over_select and not rates.is_known(self._reach.response):
            return given / rates.common(self._reach.response)
        return given

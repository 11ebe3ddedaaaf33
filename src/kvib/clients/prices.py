"""The budget of a round, and what drawing a client takes from it."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib import growing
from kvib.checks import checked_budget, checked_cost
from kvib.clients.rates import Rates, common
from kvib.files import intact
from kvib.files.part import Part, Saved
from kvib.types import Arrays, FloatArray, IntArray, Scores


class Prices(Part):
    """A price of 1 for each client; or its cost; or, where the budget counts answers, the
    probability of an answer.

    Args:
        budget: what a round may spend.
        cost: what drawing each client costs, [N]; None means 1.
        over_select: whether the budget counts answers.
        reach: how likely they are.
        clients: how many there are.
    """

    HEADER = ("budget", "over-select", "usual")
    ARRAYS = ("cost",)

    def __init__(
        self, budget: float, cost: ArrayLike | None, over_select: bool, rates: Rates, clients: int
    ) -> None:
        self.cost: FloatArray | None = checked_cost(cost, clients)
        self.over_select = over_select
        self._rates = rates
        self._settle()
        self.budget = checked_budget(budget, clients, self.cost)
        self.clients_per_round = self.budget
        """Clients that the budget pays for at the average price."""
        if self.differ:
            self.clients_per_round /= float(self.of(np.arange(clients)).mean())

    def _settle(self) -> None:
        """What follows from which rates are known."""
        # with known rates a client that answers seldom costs little
        self._by_answers = self.over_select and self._rates.answers_known
        self.differ = self.cost is not None or self._by_answers
        """Whether the budget is more than a count of clients."""

    def of(self, ids: IntArray) -> FloatArray:
        """Prices of these clients, [m]."""
        price = np.ones(len(ids)) if self.cost is None else self.cost[ids]
        return price * self._rates.answering(ids) if self._by_answers else price

    def preferring(self, scores: Scores) -> Scores:
        """score/√price: whom to prefer when the budget is spent on prices."""
        if not self.differ:
            return scores
        return lambda ids: scores(ids) / np.sqrt(self.of(ids))

    def requested(self, budget: float | None, clients: float) -> float:
        """The budget of a round, raised where it counts answers whose rate is being learned.

        Args:
            budget: for this round; None means the usual one.
            clients: how many there are.
        """
        most = math.inf if self.cost is not None else clients  # costs are clipped, not summed up
        given = self.budget if budget is None else checked_budget(budget, most)
        if self.over_select and not self._rates.answers_known:
            return given / common(self._rates.response)
        return given

    def widen(self, entries: int) -> None:
        """Room for more clients."""
        if self.cost is not None:
            self.cost = growing.widened(self.cost, entries)

    def about(self) -> dict[str, Any]:
        """Numbers for the header of a file."""
        return {
            "budget": self.budget,
            "over-select": self.over_select,
            "usual": self.clients_per_round,
        }

    def packed(self, clients: int) -> Arrays:
        """Costs, where there are any."""
        return {} if self.cost is None else {"cost.each": self.cost[:clients]}

    def restore(self, saved: Saved) -> None:
        """The budget as it was saved; costs were given at the start, as `saved_cost` found them.

        The rates must be restored before.
        """
        self._settle()
        self.budget = saved.about["budget"]
        self.clients_per_round = intact.number(saved.about, "usual")


def saved_cost(saved: Saved) -> FloatArray | None:
    """What drawing each client costs, if anything."""
    about, arrays = saved.about, saved.part("cost")
    intact.names("cost", arrays, (), ("each",))
    if about["version"] == 1 and not about["over-select"] and about["usual"] != about["budget"]:
        intact.names("cost", arrays, ("each",))  # the budget is in units of something
    return arrays.get("each")

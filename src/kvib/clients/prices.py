"""The budget of a round, and the prices of clients: what drawing a client takes from it."""

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
    """The budget of a round and the price of every client.

    The price is 1, or the cost of the client. Where the budget counts answers and the response is
    known, it is multiplied by the probability of an answer.

    Args:
        budget: What a round may spend.
        cost: The cost of drawing each client, [N]. None means 1.
        over_select: Whether the budget counts answers instead of drawn clients.
        rates: The probabilities that clients answer.
        clients: The number of clients.
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
        """Set what follows from which rates are known."""
        # With known rates a client that seldom answers has a low price.
        self._by_answers = self.over_select and self._rates.answers_known
        self.differ = self.cost is not None or self._by_answers
        """Whether the budget is more than a count of clients."""

    def of(self, ids: IntArray) -> FloatArray:
        """The prices of these clients, [m]."""
        price = np.ones(len(ids)) if self.cost is None else self.cost[ids]
        return price * self._rates.answering(ids) if self._by_answers else price

    def preferring(self, scores: Scores) -> Scores:
        """Scores divided by √price: p ∝ π/√price makes Σπ²/p least for a given Σ price·p."""
        if not self.differ:
            return scores
        return lambda ids: scores(ids) / np.sqrt(self.of(ids))

    def requested(self, budget: float | None, clients: float) -> float:
        """The budget of a round, raised where it counts answers whose rate is being learned.

        Args:
            budget: The budget for this round only. None means the default one.
            clients: The number of clients.
        """
        most = math.inf if self.cost is not None else clients  # costs are clipped, not summed up
        spent = self.budget if budget is None else checked_budget(budget, most)
        if self.over_select and not self._rates.answers_known:
            return spent / common(self._rates.response)
        return spent

    def widen(self, entries: int) -> None:
        """Make room for more clients."""
        if self.cost is not None:
            self.cost = growing.widened(self.cost, entries)

    def about(self) -> dict[str, Any]:
        """The budget and how it is spent, for the header of a file."""
        return {
            "budget": self.budget,
            "over-select": self.over_select,
            "usual": self.clients_per_round,
        }

    def packed(self, clients: int) -> Arrays:
        """The costs as an array, where clients have costs."""
        return {} if self.cost is None else {"cost.each": self.cost[:clients]}

    def restore(self, saved: Saved) -> None:
        """Take over the saved budget. The rates must be restored before.

        The costs were given to the constructor, as `saved_cost` found them.
        """
        self._settle()
        self.budget = saved.about["budget"]
        self.clients_per_round = intact.number(saved.about, "usual")


def saved_cost(saved: Saved) -> FloatArray | None:
    """The cost of drawing each client, [N], or None where the file holds no costs."""
    about, arrays = saved.about, saved.part("cost")
    intact.names("cost", arrays, (), ("each",))
    if about["version"] == 1 and not about["over-select"] and about["usual"] != about["budget"]:
        intact.names("cost", arrays, ("each",))  # only costs make the two differ
    return arrays.get("each")

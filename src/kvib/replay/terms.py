"""The conditions under which the rounds of a log were drawn, written down once."""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kvib.checks import checked_budget, checked_cost, checked_variables, positive_weights, short
from kvib.policies import Policy
from kvib.procedures import Procedure, independent
from kvib.replay.logged import Logged
from kvib.types import FloatArray


@dataclass(frozen=True, eq=False)
class Terms:
    """Clients, procedure and budget of a log, which `replay` and `plan` need to repeat its draws.

    A journal knows its own: `kvib.journal.read(path).terms()`. For a log from elsewhere they are
    what its sampler was given.

    Args:
        weights: λ of every client at the beginning, in any unit, [N].
        procedure: with which the rounds were drawn, and rivals would have drawn.
        policy: that drew the rounds. `plan` needs it, `replay` does not.
        budget: per round, which the sampler was made for, in units of the prices. NaN means that of
            the first round.
        variables: what is known of every client, [N, d]. None means nothing.
        prices: what drawing each client takes from the budget, [N], where that is in costs or in
            answers. None means 1.
        most: the largest budget that clients could ever spend. NaN means that the clients of the
            beginning decide.

    Examples:
        >>> import kvib
        >>> terms = Terms([30, 10, 20], procedure=kvib.pivotal, budget=2)
        >>> terms.most
        3.0
    """

    weights: FloatArray
    _: KW_ONLY
    procedure: Procedure = independent
    policy: Policy[Any] | None = None
    budget: float = math.nan
    variables: FloatArray | None = None
    prices: FloatArray | None = None
    most: float = math.nan

    def __post_init__(self) -> None:
        if not isinstance(self.procedure, Procedure):
            raise ValueError(
                f"procedure {short(self.procedure)} is not a procedure; write kvib.pivotal, say"
            )
        weights = positive_weights(self.weights)
        prices, known = checked_cost(self.prices, len(weights)), self.variables
        known = None if known is None else checked_variables(known, len(weights))
        for name, array in {"weights": weights, "prices": prices, "variables": known}.items():
            object.__setattr__(self, name, array)
        everything = float(len(weights) if prices is None else prices.sum())
        object.__setattr__(self, "most", _positive(self.most, everything))
        object.__setattr__(self, "budget", _positive(self.budget, math.nan))

    def checked(self, budget: float) -> float:
        """A budget that these clients can provide."""
        if self.prices is None:
            return checked_budget(budget, int(self.most))
        return checked_budget(budget, math.inf, np.array([self.most]))


@runtime_checkable
class Log(Protocol):
    """Past rounds that know their terms, such as `kvib.journal.read(path)`."""

    def terms(self) -> Terms:
        """The conditions under which the rounds were drawn."""

    def rounds(self) -> Iterator[Logged]:
        """All rounds, in the order of their draws."""


def _positive(budget: float, otherwise: float) -> float:
    """A budget, or the other value where it is not known."""
    unknown = isinstance(budget, float | np.floating) and math.isnan(budget)
    return otherwise if unknown else checked_budget(budget, math.inf)


def covers(procedure: Procedure) -> str:
    """Which part of the variance `estimators.variance.norm_part` is, in words."""
    if procedure.uncorrelated:
        return "all of the variance"
    if procedure.cap > 1:
        return "the variance but for a part that no policy changes (‖D‖²/K less)"
    return "the variance of independent draws with the same probabilities"

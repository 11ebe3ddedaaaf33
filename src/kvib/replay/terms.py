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

    A journal knows its own terms: `kvib.journal.read(path).terms()`. For a log from elsewhere they
    are the options that its sampler was given.

    Args:
        weights: The weight λ of every client at the beginning, in any unit, [N].
        procedure: The procedure that drew the rounds, and by which rivals would have drawn.
        policy: The policy that drew the rounds. `plan` needs it, `replay` does not.
        budget: The budget per round that the sampler was made for, in units of the prices. NaN
            means the budget of the first round.
        variables: Variables that are known of every client, [N, d]. None means no variables.
        prices: The price of every client, [N]: what drawing it takes from a budget in costs or in
            answers. None means 1 each.
        most: The largest budget that clients could ever spend. NaN means what drawing all clients
            of the beginning takes.

    Examples:
        >>> import kvib
        >>> from kvib.replay import Terms
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
        """Return a budget that these clients can spend, or raise ValueError.

        Args:
            budget: The budget, in units of the prices.
        """
        if self.prices is None:
            return checked_budget(budget, int(self.most))
        return checked_budget(budget, math.inf, np.array([self.most]))


@runtime_checkable
class Log(Protocol):
    """A log that knows its terms, so that `replay` and `plan` take it alone.

    `kvib.journal.read(path)` is one. Any object with these two methods is one too.

    Examples:
        >>> import os, tempfile, kvib
        >>> from kvib.replay import Log
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> kvib.journalled(path, kvib.Uniform(), [1, 2, 3], budget=1).close()
        >>> isinstance(kvib.journal.read(path), Log)
        True
    """

    def terms(self) -> Terms:
        """Return the terms under which the rounds were drawn."""

    def rounds(self) -> Iterator[Logged]:
        """Return all rounds, in the order of their draws."""


def _positive(budget: float, otherwise: float) -> float:
    """A checked budget, or `otherwise` where the budget is NaN."""
    unknown = isinstance(budget, float | np.floating) and math.isnan(budget)
    return otherwise if unknown else checked_budget(budget, math.inf)


def covers(procedure: Procedure) -> str:
    """The part of the variance that `estimators.variance.norm_part` gives, in words."""
    if procedure.uncorrelated:
        return "all of the variance"
    if procedure.cap > 1:
        return "the variance but for a part that no policy changes (‖D‖²/K less)"
    return "the variance of independent draws with the same probabilities"

"""The budget of a round, from a number, a text or a function."""

import math
from collections.abc import Callable

from kvib.checks import checked_budget

Budget = Callable[[float, int], float]
Budgets = float | str | Callable[[int], float] | None
"""The budget as users give it: a number of clients per round, a text such as "20" or "10%" (a share
of all clients), or a function of the round. None means the number that the framework would draw.
With costs the budget is in their units."""


def budget_of(given: Budgets, default: Callable[[float], float]) -> Budget:
    """Return the budget as a function of the largest possible budget and of the round.

    The largest possible budget is the one that draws all clients: their number, or the sum of
    their costs.

    Args:
        given: The budget as the user gives it, see `Budgets`.
        default: The budget where `given` is None, as a function of the largest possible budget.

    Examples:
        >>> from kvib.integrations.kit import budget_of
        >>> budget = budget_of("10%", default=lambda most: most)
        >>> budget(200.0, 0)
        20.0
        >>> budget_of(None, default=lambda most: most / 4)(200.0, 0)
        50.0
        >>> budget_of(lambda round: 5 + round, default=lambda most: most)(200.0, 3)
        8.0
    """
    if given is None:
        return lambda most, round: default(most)
    if callable(given):
        by_round = given
        return lambda most, round: checked_budget(by_round(round), math.inf)
    if isinstance(given, str):
        return _of_text(given)
    fixed = checked_budget(given, math.inf)
    return lambda most, round: fixed


def _of_text(text: str) -> Budget:
    """The budget that a text such as "20" or "10%" names."""
    words = text.strip()
    try:
        number = float(words.removesuffix("%"))
    except ValueError as error:
        raise ValueError(
            f'budget {text!r} is neither a number nor a share; write "20" or "10%"'
        ) from error
    if not words.endswith("%"):
        fixed = checked_budget(number, math.inf)
        return lambda most, round: fixed
    if not 0 < number <= 100:
        raise ValueError(f"budget {text!r} is not a share of all clients; write 1% to 100%")
    return lambda most, round: max(1.0, number / 100 * most)

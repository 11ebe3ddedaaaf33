"""The budget of a round, from a number, a text or a function."""

import math
from collections.abc import Callable

from kvib.checks import checked_budget

Budget = Callable[[float, int], float]
Budgets = float | str | Callable[[int], float] | None
"""Clients per round; a text that says so, "20" or "10%" of all clients; or a function that says it
for a round; None: what the framework would draw. With costs it is in their units."""


def budget_of(given: Budgets, default: Callable[[float], float]) -> Budget:
    """The budget as a function of the largest one, that of all clients, and of the round.

    Args:
        given: by the user.
        usual: what the framework would draw from this number of clients, where it is None.
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

"""Calls in the form of version 0.1, refused with the way to write them now."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from kvib.policies import Policy

P = ParamSpec("P")
R = TypeVar("R")

MOVED = {
    "weights": "weights",
    "logging": "policy",
    "procedure": "procedure",
    "variables": "variables",
    "prices": "prices",
    "usual": "budget",
    "most": "most",
}
"""Parameters that are fields of `Terms` now, and the names of those fields."""


def takes_terms(now: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that refuses weights and conditions given one by one, and names the new way.

    Args:
        now: The call in its present form, up to its terms.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """The function with the check in front."""

        @wraps(function)
        def checked(*given: P.args, **named: P.kwargs) -> R:
            moved = [name for name in MOVED if name in named]
            if moved or (len(given) > 2 and not isinstance(given[1], Mapping | Policy | None)):
                options = "".join(f", {MOVED[name]}=…" for name in moved if name != "weights")
                raise TypeError(
                    f"{', '.join(moved) or 'weights'}: since version 0.2 a part of the terms of a "
                    f"log; write {now}, kvib.replay.Terms(weights{options})), or give "
                    "kvib.journal.read(path) as the log, which knows its terms"
                )
            return function(*given, **named)

        return checked

    return decorate

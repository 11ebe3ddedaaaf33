"""How often clients are there and answer, as an experiment file says it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

import kvib
from kvib.clients.rates import SMALLEST_RATE
from kvib.lab.configuration import one_of
from kvib.randomness import generator
from kvib.types import FloatArray, IntArray

ORDERS: dict[str, Callable[[IntArray], IntArray]] = {
    "size": lambda sizes: np.argsort(sizes, kind="stable"),
    "random": lambda sizes: generator(0, 0, "fleet").permutation(len(sizes)),
}
"""From numbers of samples to clients in order; the same in all runs of an experiment."""
KNOWLEDGE: dict[str, Callable[[ArrayLike], ArrayLike | kvib.EstimatedRate]] = {
    "known": lambda truth: truth,
    "estimated": lambda _: kvib.EstimatedRate(),
    "ignored": lambda _: 1.0,
}
"""What a sampler divides by, given the truth."""


@dataclass(frozen=True)
class Profile:
    """A rate for every client, in equal steps along the clients in some order.

    Args:
        first: the rate of the first client.
        last: the rate of the last one.
        by: `size`, from the fewest samples to the most; or `random`.
    """

    first: float
    last: float
    by: str


Rate = float | Profile


def rates(given: Rate, sizes: IntArray) -> ArrayLike:
    """One for all clients, or one each, [N]."""
    if not isinstance(given, Profile):
        return given
    each: FloatArray = np.empty(len(sizes))
    each[ORDERS[given.by](sizes)] = np.linspace(given.first, given.last, len(sizes))
    return each


def check(given: Rate, key: str) -> None:
    """That these are probabilities, in an order that there is."""
    if isinstance(given, Profile):
        one_of(ORDERS, given.by, f"{key}.by")
        numbers = {f"{key}.first": given.first, f"{key}.last": given.last}
    else:
        numbers = {key: given}
    for name, value in numbers.items():
        if not SMALLEST_RATE <= value <= 1:  # NaN fails too
            raise ValueError(f"{name} = {value} is not a probability above 0 and at most 1")

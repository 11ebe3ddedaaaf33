"""Rates of an experiment file: how often clients are available and answer."""

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
"""Functions from numbers of samples to clients in order, the same in all runs of an experiment."""
KNOWLEDGE: dict[str, Callable[[ArrayLike], ArrayLike | kvib.EstimatedRate]] = {
    "known": lambda truth: truth,
    "estimated": lambda _: kvib.EstimatedRate(),
    "ignored": lambda _: 1.0,
}
"""Functions from the true rates to those that a sampler is given."""


@dataclass(frozen=True)
class Profile:
    """Rates that change in equal steps from the first client of an order to the last.

    Args:
        first: The rate of the first client.
        last: The rate of the last client.
        by: The order: `size`, from the fewest samples to the most, or `random`.
    """

    first: float
    last: float
    by: str


Rate = float | Profile


def rates(rate: Rate, sizes: IntArray) -> ArrayLike:
    """One rate for all clients, or one for each, [N]."""
    if not isinstance(rate, Profile):
        return rate
    each: FloatArray = np.empty(len(sizes))
    each[ORDERS[rate.by](sizes)] = np.linspace(rate.first, rate.last, len(sizes))
    return each


def check(rate: Rate, key: str) -> None:
    """Raise ValueError unless the rates are probabilities above 0 and their order is known."""
    if isinstance(rate, Profile):
        one_of(ORDERS, rate.by, f"{key}.by")
        numbers = {f"{key}.first": rate.first, f"{key}.last": rate.last}
    else:
        numbers = {key: rate}
    for name, value in numbers.items():
        if not SMALLEST_RATE <= value <= 1:  # NaN fails too
            raise ValueError(f"{name} = {value} is not a probability above 0 and at most 1")

"""The clients that can be drawn now, those that cannot, and what their absence means."""

from typing import NamedTuple

import numpy as np

from kvib.integrations.kit.offline import SHORTEST, Missing, missing
from kvib.journal.sampler import AnySampler
from kvib.types import IntArray, Key


class News(NamedTuple):
    """Lists how the population changed since it was last asked for.

    Examples:
        >>> from kvib.integrations.kit import News
        >>> news = News(joined=["ann"], returned=[], left=["bob"], unnamed=[])
        >>> news.left
        ['bob']
    """

    joined: list[Key]
    """The clients that joined for the first time."""
    returned: list[Key]
    """The clients that had left and are back."""
    left: list[Key]
    """The clients that left."""
    unnamed: list[Key]
    """The joined clients that have no name of their own."""


class Standing(NamedTuple):
    """Describes which share of the objective could be drawn in the last round.

    Examples:
        >>> from kvib.integrations.kit import Standing
        >>> standing = Standing(clients=10, offline=0.3, lost=0.1, missed=["bob"])
        >>> standing.offline
        0.3
    """

    clients: int
    """The number of clients, including those offline."""
    offline: float
    """The share of λ that was offline."""
    lost: float
    """The share of λ of clients that have been offline for longer than chance explains."""
    missed: list[Key]
    """The clients that have been offline for longer than chance explains."""


def absent_from(
    sampler: AnySampler, available: IntArray, leave_after: int | None, unnamed: IntArray
) -> Missing:
    """The clients that are not available, sorted by what their absence means.

    Args:
        sampler: The sampler over all clients.
        available: The ids of the available clients, ascending. An empty list means an outage, from
            which no client counts as lost or leaves.
        leave_after: The number of rounds offline after which a client leaves. None means never.
        unnamed: The ids of clients without a name of their own, which leave soon.
    """
    offline = np.setdiff1d(sampler.state.population.here(), available)
    if not len(available):
        return Missing(offline, offline[:0], offline[:0])
    # The count of missed rounds is part of the journal, so a restart does not change it.
    missed = sampler.state.rates.missed(offline)
    rounds = np.ones(len(offline), np.int64) if missed is None else missed + 1
    limits = None
    if leave_after is not None:
        limits = np.where(np.isin(offline, unnamed), min(SHORTEST, leave_after), leave_after)
    return missing(offline, rounds, sampler.state.rates.before_absence(offline), limits)


def standing(sampler: AnySampler, absent: Missing) -> Standing:
    """The shares of λ that are offline, after the leaving clients have left."""
    population = sampler.state.population
    offline, lost = (ids[population.is_here(ids)] for ids in (absent.offline, absent.lost))
    return Standing(
        len(population),
        float(population.share(offline).sum()),
        float(population.share(lost).sum()),
        sampler.keys(lost),
    )

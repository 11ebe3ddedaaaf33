"""Who can be drawn now, who cannot, and what that means."""

from typing import NamedTuple

import numpy as np

from kvib.integrations.kit.offline import SHORTEST, Missing, missing
from kvib.journal.sampler import AnySampler
from kvib.types import IntArray, Key


class News(NamedTuple):
    """What happened to the population since the last round."""

    joined: list[Key]
    returned: list[Key]
    left: list[Key]
    unnamed: list[Key]
    """Those of the joined that have no name of their own."""


class Standing(NamedTuple):
    """Who could be drawn in the last round."""

    clients: int
    """The number of clients, those offline included."""
    offline: float
    """Share of λ that was offline."""
    lost: float
    """Share of λ of clients that are offline for longer than chance explains."""
    missed: list[Key]
    """Those clients."""


def absent_from(
    sampler: AnySampler, available: IntArray, leave_after: int | None, unnamed: IntArray
) -> Missing:
    """Clients that are not available, sorted by what that means. An empty list is an outage.

    Args:
        sampler: over all clients.
        available: ids, ascending.
        leave_after: rounds after which a client leaves; None: never.
        unnamed: ids of clients without a name of their own, which leave soon.
    """
    offline = np.setdiff1d(sampler.state.population.here(), available)
    if not len(available):
        return Missing(offline, offline[:0], offline[:0])
    missed = sampler.state.rates.missed(
        offline
    )  # it lives in the journal: a restart changes nothing
    rounds = np.ones(len(offline), np.int64) if missed is None else missed + 1
    limits = None
    if leave_after is not None:
        limits = np.where(np.isin(offline, unnamed), min(SHORTEST, leave_after), leave_after)
    return missing(offline, rounds, sampler.state.rates.before_absence(offline), limits)


def standing(sampler: AnySampler, absent: Missing) -> Standing:
    """The shares of those who are absent, once those who leave have left."""
    population = sampler.state.population
    offline, lost = (ids[population.is_here(ids)] for ids in (absent.offline, absent.lost))
    return Standing(
        len(population),
        float(population.share(offline).sum()),
        float(population.share(lost).sum()),
        sampler.keys(lost),
    )

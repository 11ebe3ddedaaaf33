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
    sampler: AnySampler, available: IntArray, gone_after: int | None, unnamed: IntArray
) -> Missing:
    """Clients that are not available, sorted by what that means. An empty list is an outage.

    Args:
        sampler: over all clients.
        available: ids, ascending.
        gone_after: rounds after which a client leaves; None: never.
        unnamed: ids of clients without a name of their own, which leave soon.
    """
    away = np.setdiff1d(sampler.state.population.here(), available)
    if not len(available):
        return Missing(away, away[:0], away[:0])
    missed = sampler.state.reach.missed(away)  # it lives in the journal: a restart changes nothing
    rounds = np.ones(len(away), np.int64) if missed is None else missed + 1
    limits = None
    if gone_after is not None:
        limits = np.where(np.isin(away, unnamed), min(SHORTEST, gone_after), gone_after)
    return missing(away, rounds, sampler.state.reach.before_absence(away), limits)


def standing(sampler: AnySampler, absent: Missing) -> Standing:
    """The shares of those who are absent, once those who leave have left."""
    population = sampler.state.population
    away, lost = (ids[population.is_here(ids)] for ids in (absent.away, absent.lost))
    return Standing(
        len(population),
        float(population.share(away).sum()),
        float(population.share(lost).sum()),
        sampler.keys(lost),
    )

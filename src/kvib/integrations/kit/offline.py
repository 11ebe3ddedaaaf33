"""Clients that are offline: what they mean for the objective, and when they count as lost."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.checks import earlier_names
from kvib.clients.rates import EstimatedRate
from kvib.types import FloatArray, IntArray

UNLIKELY = 0.01
"""An absence that is less likely than this, at the client's own rate, is no chance any more."""
SHORTEST = 3
"""Rounds in a row that a client must be offline before it can count as lost."""
LEAVE_AFTER = 50
"""Rounds offline in a row after which a client leaves, by default."""
RENAMED = {"gone_after": "leave_after", "everybody_is_listed": "lists_all"}
"""Names of version 0.1, and for each its name today."""


@earlier_names(RENAMED)
@dataclass(frozen=True)
class EstimateAvailability:
    """Keeps offline clients in the objective, where the clients online stand in for them.

    Coefficients are λ/(a·r·p). Here a is the rate at which a client was online so far, and r is the
    rate at which it answered. The step estimates that of the whole population, and it is consistent
    while a is learned. A round in which most of the fleet is offline at once teaches nothing
    about a.

    Args:
        strength: The weight of the common rate in the rate of one client, as in
            `kvib.EstimatedRate`.
        leave_after: The number of rounds offline in a row after which a client leaves, with its
            share of the objective. A client that is seldom online stays longer: until its absence
            has a probability below 1 % at its own rate. A client without a name of its own leaves
            after three rounds, since it would return under another name. None means that clients
            never leave. A client that returns keeps its history, and the absence after which it
            left does not count against it.
        lowest: The smallest a that is used, so that no client counts more than 1/lowest times.

    Examples:
        >>> from kvib.integrations.kit import EstimateAvailability
        >>> offline = EstimateAvailability(leave_after=20)
        >>> offline.rate
        EstimatedRate(strength=5.0, lowest=0.02)
    """

    strength: float = 5.0
    leave_after: int | None = LEAVE_AFTER
    lowest: float = EstimatedRate.lowest

    lists_all: ClassVar[bool] = True
    """Whether a draw lists the clients online also when all are online, to learn their rates."""

    def __post_init__(self) -> None:
        _check_leave_after(self.leave_after)

    @property
    def rate(self) -> EstimatedRate | float:
        """The availability that the sampler is given: a rate to estimate."""
        return EstimatedRate(self.strength, self.lowest)


@earlier_names(RENAMED)
@dataclass(frozen=True)
class Renormalise:
    """Makes the clients online the whole objective of a round: their λ are rescaled to sum to 1.

    FedAvg does this silently. It favours clients that are online often.

    Args:
        leave_after: The number of rounds offline after which a client leaves the objective. It must
            be 1: an offline client leaves at once.

    Examples:
        >>> from kvib.integrations.kit import Renormalise
        >>> Renormalise().rate
        1.0
    """

    leave_after: int | None = 1
    lists_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.leave_after != 1:
            raise ValueError(
                f"leave_after={self.leave_after} would leave clients that are offline in the "
                "objective of the others; use EstimateAvailability(leave_after=…) for that"
            )

    @property
    def rate(self) -> EstimatedRate | float:
        """The availability that the sampler is given: clients online are always available."""
        return 1.0


Offline = EstimateAvailability | Renormalise
"""The two meanings that offline clients can have for the objective."""


def _check_leave_after(rounds: int | None) -> None:
    """Refuse what is not a number of rounds or None."""
    if rounds is not None and (int(rounds) != rounds or rounds < 1):
        raise ValueError(f"leave_after={rounds} is not a number of rounds; give 1 or more, or None")


class Missing(NamedTuple):
    """The ids of clients that are not online."""

    offline: IntArray
    """All clients that are not online."""
    lost: IntArray
    """The clients that have been offline for longer than chance explains."""
    leaving: IntArray
    """The clients that leave now."""


def missing(
    offline: IntArray, rounds: IntArray, rate: FloatArray, leave_after: IntArray | None
) -> Missing:
    """Offline clients, sorted by what their absence means.

    An absence of n rounds has the probability (1 − rate)ⁿ.

    Args:
        offline: The ids of the offline clients.
        rounds: The number of rounds in a row for which each has been offline.
        rate: The rate at which each was online before.
        leave_after: The number of rounds after which each leaves. None means never.
    """
    by_chance = (1 - rate) ** rounds >= UNLIKELY
    leaving = np.zeros(len(offline), np.bool_)
    if leave_after is not None:
        leaving = ~by_chance & (rounds >= leave_after)
    return Missing(offline, offline[~by_chance & (rounds >= SHORTEST)], offline[leaving])


def shown(keys: Iterable[object], most: int = 3) -> str:
    """The first of these keys, as a part of a message."""
    listed = list(keys)
    return ", ".join(map(repr, listed[:most])) + (", …" if len(listed) > most else "")

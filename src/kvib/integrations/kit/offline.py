"""Clients that are offline: what they mean for the objective, and when they are out of reach."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.checks import earlier_names
from kvib.clients.rates import EstimatedRate
from kvib.types import FloatArray, IntArray

UNLIKELY = 0.01
"""An absence is no chance any more if the client's own rate makes it less likely than this."""
SHORTEST = 3
"""Rounds in a row that a client is missed before it counts as out of reach."""
LEAVE_AFTER = 50
"""Rounds in a row, by default, after which a client that is offline leaves."""


@earlier_names({"gone_after": "leave_after"})
@dataclass(frozen=True)
class EstimateAvailability:
    """Clients that are offline stay in the objective, and those online stand in for them.

    Coefficients are λ/(a·r·p). Here a is the rate at which a client was online so far, and r the
    rate at which it answered. The estimate is of the whole population, consistent while a is
    learned. A round in which most of the fleet is missing at once teaches nothing about a.

    Args:
        strength: as of `kvib.EstimatedRate`.
        leave_after: rounds offline in a row after which a client leaves, with its share of the
            objective. A client that is seldom online stays longer: until its absence has a
            probability below 1 % at its rate. A client without a name of its own leaves after three
            rounds, since it would return as another. None: clients never leave. A client that
            returns has its history, and the absence in which it left does not count against it.
        lowest: the smallest a that is used, so that no client counts more than 1/lowest times.
    """

    strength: float = 5.0
    leave_after: int | None = LEAVE_AFTER
    lowest: float = EstimatedRate.lowest

    everybody_is_listed: ClassVar[bool] = True
    """Whether draws list the clients online even if all are, so that rates are learned."""

    def __post_init__(self) -> None:
        _check_leave_after(self.leave_after)

    @property
    def rate(self) -> EstimatedRate | float:
        """The availability that the sampler is given."""
        return EstimatedRate(self.strength, self.lowest)


@earlier_names({"gone_after": "leave_after"})
@dataclass(frozen=True)
class Renormalise:
    """The objective of a round is that of the clients online in it: λ are rescaled to sum to 1.

    FedAvg does this without saying so. It favours clients that are online often.

    Args:
        leave_after: 1: a client that is offline leaves the objective at once.
    """

    leave_after: int | None = 1
    everybody_is_listed: ClassVar[bool] = False

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


def _check_leave_after(rounds: int | None) -> None:
    if rounds is not None and (int(rounds) != rounds or rounds < 1):
        raise ValueError(f"leave_after={rounds} is not a number of rounds; give 1 or more, or None")


class Missing(NamedTuple):
    """Clients that are not online."""

    offline: IntArray
    """All of them."""
    lost: IntArray
    """Those whose absence is too long for chance."""
    leaving: IntArray
    """Those of them that leave now."""


def missing(
    offline: IntArray, rounds: IntArray, rate: FloatArray, leave_after: IntArray | None
) -> Missing:
    """Clients that are offline, sorted by what that means.

    Args:
        away: their ids.
        rounds: how many in a row it is for each.
        rate: at which each was online before.
        leave_after: rounds after which each leaves; None: never.
    """
    by_chance = (1 - rate) ** rounds >= UNLIKELY
    leaving = np.zeros(len(offline), np.bool_)
    if leave_after is not None:
        leaving = ~by_chance & (rounds >= leave_after)
    return Missing(offline, offline[~by_chance & (rounds >= SHORTEST)], offline[leaving])


def shown(keys: Iterable[object], most: int = 3) -> str:
    """A few of these keys, as the end of a message."""
    listed = list(keys)
    return ", ".join(map(repr, listed[:most])) + (", …" if len(listed) > most else "")

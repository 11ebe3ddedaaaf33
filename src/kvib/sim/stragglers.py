"""Who is there and who answers: the coins of a simulation, and what they do to its estimates."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.clients import rates
from kvib.clients.rates import EstimatedRate, Rates, RateState
from kvib.randomness import generator
from kvib.types import BoolArray, FloatArray, IntArray

ROUNDING = 1e-12
"""Below it a share that differs from 1 is one."""


class Stakes(NamedTuple):
    """What the estimate of one round takes of every client, given what the sampler divides by.

    With the true rates A and R, and those that the sampler divides by, a and r. All arrays [N].
    """

    waits: BoolArray
    """Who rests after an earlier round."""
    drawable: BoolArray
    """Who is there and does not wait."""
    taken: FloatArray
    """R/(a·r): how much of λg an estimate holds on average, of a client that is there."""
    response: FloatArray
    """R."""
    presence: FloatArray
    """A where the estimate shall stand for those who are away too, since the sampler divides by a;
    else 1."""
    stands: FloatArray
    """How often the estimate stands for a client: 0 if it waits, A if it should have been there."""
    settled: bool
    """Whether a is known before the draw: one that is learned counts who is there first."""

    @property
    def off(self) -> FloatArray:
        """By how much too large the share of a client is, where the estimate stands for it."""
        off = self.stands * (self.taken * self.presence - 1)
        return np.where(np.abs(off) < ROUNDING, 0.0, off)

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the step of all clients."""
        return bool((self.stands == 1).all() and (self.off == 0).all())


class Stragglers:
    """Tosses the coins: who is there before the draw, and who of the drawn answers.

    The coins of a round are a function of (seed, round): all samplers meet the same ones, and a
    run that is continued meets those of a run that never stopped.

    Args:
        clients: how many there are.
        known: rates that are the truth where none is given; those that are learned are 1 then.
        response: the true probability R that a client which was drawn answers.
        availability: the true probability A that a client is there.
    """

    def __init__(
        self,
        clients: int,
        known: Rates,
        response: ArrayLike | None,
        availability: ArrayLike | None,
    ) -> None:
        self.response = _truth(response, known.response, clients, "response")
        self.availability = _truth(availability, known.availability, clients, "availability")

    def there(self, known: Rates, seed: int, round: int) -> BoolArray | None:
        """Who is, [N]; None where all are and a draw divides by no rate."""
        if known.always and (self.availability == 1).all():
            return None
        return _tossed(self.availability, seed, round, "there")

    def answering(self, ids: IntArray, seed: int, round: int) -> BoolArray:
        """Who of the drawn is, [m]."""
        return _tossed(self.response, seed, round, "heard")[ids]

    def stakes(self, known: Rates, waiting: IntArray, there: BoolArray | None) -> Stakes:
        """Of the coming round, given the rates that its estimate is divided by and who waits."""
        ids = np.arange(len(self.response))
        waits = np.zeros(len(ids), dtype=np.bool_)
        waits[waiting] = True
        presence = np.ones(len(ids)) if known.always else self.availability
        return Stakes(
            waits=waits,
            drawable=~waits if there is None else ~waits & there,
            taken=self.response / known.at(ids),
            response=self.response,
            presence=presence,
            stands=np.where(waits, 0.0, self.availability / presence),
            settled=rates.is_known(known.availability) or bool((self.availability == 1).all()),
        )

    def about(self) -> dict[str, list[float]]:
        """What makes a run another one; nothing where there are no stragglers."""
        truth = {"true response": self.response, "true availability": self.availability}
        return {name: rate.tolist() for name, rate in truth.items() if (rate < 1).any()}


def _truth(given: ArrayLike | None, known: RateState, clients: int, name: str) -> FloatArray:
    """The rate of every client, [N]."""
    ids = np.arange(clients)
    if given is None:
        return rates.at(known, ids) if rates.is_known(known) else np.ones(clients)
    if isinstance(given, EstimatedRate):
        raise ValueError(
            f"{name} of a simulation is the truth, which is not learned: give a number, or one per "
            f"client, and Sampler({name}=kvib.EstimatedRate()) to let the sampler learn it"
        )
    return rates.at(rates.start(given, clients, name), ids)


def _tossed(rate: FloatArray, seed: int, round: int, purpose: str) -> BoolArray:
    """One coin per client, whoever is drawn, [N]."""
    if (rate == 1).all():
        return np.ones(len(rate), dtype=np.bool_)
    heads: BoolArray = generator(seed, round, purpose).random(len(rate)) < rate
    return heads

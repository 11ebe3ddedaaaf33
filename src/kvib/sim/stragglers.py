"""Which clients are available and which answer, and what both do to a simulation's estimates."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib.clients import rates
from kvib.clients.rates import EstimatedRate, Rates, RateState
from kvib.randomness import generator
from kvib.types import BoolArray, FloatArray, IntArray

ROUNDING = 1e-12
"""A share that differs from 1 by less than this differs by rounding errors only."""


class Stakes(NamedTuple):
    """The share of every client's update in the estimate of one round.

    A and R are the true rates, a and r those that the sampler divides by. All arrays are [N].
    """

    waits: BoolArray
    """Which clients wait after an earlier round."""
    drawable: BoolArray
    """Which clients are available and do not wait."""
    taken: FloatArray
    """R/(a·r): the share of λg that an estimate holds on average, for an available client."""
    response: FloatArray
    """R, the true probability that a drawn client answers."""
    presence: FloatArray
    """A where the estimate stands for unavailable clients too, since the sampler divides by a.
    Otherwise 1."""
    stands: FloatArray
    """How often the estimate stands for a client: 0 if it waits, A if the sampler divides by no
    availability, else 1."""
    settled: bool
    """Whether a is fixed before the draw. A learned a first counts the clients of this round."""

    @property
    def off(self) -> FloatArray:
        """The error of a client's mean share where the estimate stands for it: 0 if unbiased."""
        off = self.stands * (self.taken * self.presence - 1)
        return np.where(np.abs(off) < ROUNDING, 0.0, off)

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the step of all clients."""
        return bool((self.stands == 1).all() and (self.off == 0).all())


class Stragglers:
    """Random coins decide which clients are available and which drawn clients answer.

    The coins of a round are a function of (seed, round). All samplers therefore meet the same
    coins, and a continued run meets those of a run that never stopped.

    Args:
        clients: The number of clients.
        sampler_rates: The rates that the sampler divides by. They are the truth where none is
            given. Rates that the sampler learns are 1 then.
        response: The true probability R that a drawn client answers.
        availability: The true probability A that a client is available.
    """

    def __init__(
        self,
        clients: int,
        sampler_rates: Rates,
        response: ArrayLike | None,
        availability: ArrayLike | None,
    ) -> None:
        self.response = _truth(response, sampler_rates.response, clients, "response")
        self.availability = _truth(
            availability, sampler_rates.availability, clients, "availability"
        )

    def available(self, sampler_rates: Rates, seed: int, round: int) -> BoolArray | None:
        """Which clients are available, [N]. None if all are and no availability is divided by."""
        if sampler_rates.always and (self.availability == 1).all():
            return None
        return _tossed(self.availability, seed, round, "there")

    def answering(self, ids: IntArray, seed: int, round: int) -> BoolArray:
        """Which drawn clients answer, [m]."""
        return _tossed(self.response, seed, round, "heard")[ids]

    def stakes(
        self, sampler_rates: Rates, waiting: IntArray, available: BoolArray | None
    ) -> Stakes:
        """The stakes of the upcoming round.

        Args:
            sampler_rates: The rates that the sampler divides by.
            waiting: The clients that wait.
            available: Which clients are available, [N]. None means all.
        """
        ids = np.arange(len(self.response))
        waits = np.zeros(len(ids), dtype=np.bool_)
        waits[waiting] = True
        presence = np.ones(len(ids)) if sampler_rates.always else self.availability
        all_available = bool((self.availability == 1).all())
        settled = rates.is_known(sampler_rates.availability) or all_available
        return Stakes(
            waits=waits,
            drawable=~waits if available is None else ~waits & available,
            taken=self.response / sampler_rates.at(ids),
            response=self.response,
            presence=presence,
            stands=np.where(waits, 0.0, self.availability / presence),
            settled=settled,
        )

    def about(self) -> dict[str, list[float]]:
        """The true rates, by which a checkpoint is recognised. Rates of 1 are left out."""
        truth = {"true response": self.response, "true availability": self.availability}
        return {name: rate.tolist() for name, rate in truth.items() if (rate < 1).any()}


def _truth(truth: ArrayLike | None, sampler_rate: RateState, clients: int, name: str) -> FloatArray:
    """The true rate of every client, [N]."""
    ids = np.arange(clients)
    if truth is None:
        return rates.at(sampler_rate, ids) if rates.is_known(sampler_rate) else np.ones(clients)
    if isinstance(truth, EstimatedRate):
        raise ValueError(
            f"{name} of a simulation is the truth, which is not learned: give a number, or one per "
            f"client, and Sampler({name}=kvib.EstimatedRate()) to let the sampler learn it"
        )
    return rates.at(rates.start(truth, clients, name), ids)


def _tossed(rate: FloatArray, seed: int, round: int, purpose: str) -> BoolArray:
    """One coin per client, drawn or not, [N].

    The purpose names the random numbers: another name would give other coins.
    """
    if (rate == 1).all():
        return np.ones(len(rate), dtype=np.bool_)
    heads: BoolArray = generator(seed, round, purpose).random(len(rate)) < rate
    return heads

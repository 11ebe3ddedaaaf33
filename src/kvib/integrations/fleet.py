"""Clients that are met at run time, and the sampler over them. Knows no framework."""

import math
import os
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvib.cohort import BoolArray, Cohort, IntArray
from kvib.guard import Guard
from kvib.journal import Journalled, journalled
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.rates import EstimatedRate
from kvib.sampler import Sampler

Key = str | int
"""What a client is called for good: a string or an integer."""
Address = Hashable
"""Where it is reached now."""


class Introduction(NamedTuple):
    """What a client said of itself."""

    address: Address
    key: Key
    size: float | None = None
    """How much data it has; None: it did not say."""


@dataclass(frozen=True)
class EstimateAvailability:
    """Who is offline stays in the objective; those who are online stand in for it.

    Coefficients are λ/(a·r·p), with a the rate at which a client was online so far and r the rate
    at which it answered. The estimate is of the whole population, consistent while a is learned.

    Args:
        strength: as of `kvib.EstimatedRate`.
        gone_after: so many rounds offline in a row, and the client leaves, with its share of the
            objective; None: never. Whoever comes back has its history.
    """

    strength: float = 5.0
    gone_after: int | None = None

    @property
    def rate(self) -> EstimatedRate | float:
        """For the sampler."""
        return EstimatedRate(self.strength)


@dataclass(frozen=True)
class Renormalise:
    """The objective of a round is that of the clients online in it: λ are rescaled to sum to 1.

    What FedAvg does without saying so. It favours clients that are online often.
    """

    gone_after: int | None = 1

    @property
    def rate(self) -> EstimatedRate | float:
        """For the sampler: of those online everybody is available."""
        return 1.0


Offline = EstimateAvailability | Renormalise


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the sampler of a fleet is made once its clients are known.

    Args:
        policy: whom to prefer.
        budget: clients per round, given how many there are.
        procedure: how to draw; None: the policy's own.
        seed: decides every draw.
        journal: path of a file in which the sampler lives; None: in memory only.
        weights: λ by key, in any unit; clients that are not named take no part. None: what
            clients say they have, or all equal.
        offline: what offline clients mean.
        response: rate of answers, or `EstimatedRate()`, or one number by key.
        guard: bounds what one client can do in a round.
    """

    policy: Policy[Any]
    budget: Callable[[int], float]
    procedure: Procedure | None
    seed: int
    journal: str | os.PathLike[str] | None
    weights: Mapping[Key, float] | None
    offline: Offline
    response: float | EstimatedRate | Mapping[Key, float]
    guard: Guard | None

    def sampler(self, keys: list[Key], weights: list[float]) -> Sampler:
        """Begun with these clients, or continued from its file."""
        options: dict[str, Any] = {
            "procedure": self.procedure,
            "seed": self.seed,
            "availability": self.offline.rate,
            "guard": self.guard,
        }
        if not isinstance(self.response, Mapping):
            options["response"] = self.response
        if self.journal is not None and Path(self.journal).exists():
            return journalled(self.journal, self.policy, **options)
        if isinstance(self.response, Mapping):
            unknown = [key for key in keys if key not in self.response]
            if unknown:
                raise ValueError(f"response has no rate for client {unknown[0]!r}; give one")
            options["response"] = [self.response[key] for key in keys]
        options["keys"] = keys
        budget = min(self.budget(len(keys)), len(keys))
        if self.journal is not None:
            return journalled(self.journal, self.policy, weights, budget, **options)
        return Sampler(self.policy, weights, budget, **options)


class Fleet:
    """Who there is by stable key, where everybody is now, and the sampler, once somebody came."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sampler: Sampler | None = None
        """None until the first client was met."""
        self._keys: dict[Address, Key | None] = {}
        self._addresses: dict[Key, Address] = {}
        self._sizes: dict[Key, float] = {}
        self._weights: dict[Key, float] = {}
        self._absent: dict[Key, int] = {}
        self._left_over: list[Cohort] = []
        self._steady: tuple[set[Address], IntArray] | None = None
        """The nodes of a round in which everybody was there, and their ids."""

    def strangers(self, online: Iterable[Address]) -> list[Address]:
        """Those who have not introduced themselves."""
        return [address for address in online if address not in self._keys]

    def address(self, key: Key) -> Address | None:
        """Where a client was seen last; None if it was not seen since the start."""
        return self._addresses.get(key)

    def meet(self, introductions: Iterable[Introduction]) -> None:
        """Take in clients: new ones join, known ones are found at their new address."""
        arrived: dict[Key, float] = {}
        for address, key, size in sorted(introductions, key=lambda one: _order(one.key)):
            if key in arrived:
                told = f"two clients call themselves {key!r}; give each an id of its own"
                if self.sampler is None:
                    raise ValueError(told)
                warnings.warn(f"{told}: the second takes no part", stacklevel=3)
                self._keys[address] = None
                continue
            weight = self._weight(key, size)
            self._keys[address] = None if weight is None else key
            if weight is None:
                continue
            self._addresses[key] = address
            arrived[key] = weight
        if arrived:
            self._steady = None
            self._admit(arrived)

    def _weight(self, key: Key, size: float | None) -> float | None:
        if self.plan.weights is not None:
            if key in self.plan.weights:
                return float(self.plan.weights[key])
            warnings.warn(f"client {key!r} is not in weights=…: it takes no part", stacklevel=4)
            return None
        if size is None:
            return sum(self._sizes.values()) / len(self._sizes) if self._sizes else 1.0
        if not 0 < size < math.inf:
            warnings.warn(f"client {key!r} says it has {size} data: no part", stacklevel=4)
            return None
        self._sizes[key] = float(size)
        return float(size)

    def _admit(self, arrived: dict[Key, float]) -> None:
        if self.sampler is None:
            self.sampler = self.plan.sampler(list(arrived), list(arrived.values()))
            if isinstance(self.sampler, Journalled):
                self._left_over = self.sampler.outstanding()
        self._weights |= arrived
        population = self.sampler.population
        known = set(population.names or ())
        new = [key for key in arrived if key not in known]
        if new:
            self.sampler.join([arrived[key] for key in new], new)
        old = [key for key in arrived if key in known]
        ids = population.ids(old)
        now = population.in_units(np.array([arrived[key] for key in old]))
        same = np.isclose(population.raw[ids], now, rtol=1e-9, atol=0)
        changed = [key for key, is_same in zip(old, same, strict=True) if not is_same]
        if changed:
            self.sampler.reweigh(changed, [arrived[key] for key in changed])

    def draw(self, online: Collection[Address]) -> Cohort | None:
        """The cohort of the next round; None as long as nobody is known.

        A cohort that a process before us has drawn and not heard of comes first.
        """
        if self.sampler is None:
            return None
        if self._left_over:
            return self._left_over.pop(0)
        available = self._available(set(online))
        clients = len(self.sampler.population)
        budget = min(self.plan.budget(clients), clients)
        everybody = len(available) == clients and isinstance(self.plan.offline, Renormalise)
        return self.sampler.draw(None if everybody else available, budget)

    def _available(self, online: set[Address]) -> IntArray:
        """Ids of who is online, after those who have come or gone did so."""
        assert self.sampler is not None
        if self._steady is not None and self._steady[0] == online:
            return self._steady[1]
        here = [key for key, address in self._addresses.items() if address in online]
        self._come_and_go(here)
        available = np.sort(self.sampler.ids(here))
        self._steady = (online, available) if len(here) == len(self.sampler.population) else None
        return available

    def _come_and_go(self, here: list[Key]) -> None:
        assert self.sampler is not None
        population, present = self.sampler.population, set(here)
        for key in here:
            self._absent.pop(key, None)
        gone = set(population.keys(sorted(population.gone)))
        back = [key for key in here if key in gone]
        if back:
            self.sampler.join([self._weights[key] for key in back], back)
        if self.plan.offline.gone_after is None:
            return
        away = [key for key in population.keys(population.here()) if key not in present]
        for key in away:
            self._absent[key] = self._absent.get(key, 0) + 1
        leaving = [key for key in away if self._absent[key] >= self.plan.offline.gone_after]
        if leaving and len(leaving) < len(population):  # else nobody is there: wait
            self.sampler.leave(leaving)

    def leave(self, keys: Iterable[Key]) -> None:
        """Clients that will not come back go, with their share of the objective."""
        if self.sampler is None:
            raise ValueError("nobody has come yet, so nobody can leave")
        self._steady = None
        self.sampler.leave(list(keys))

    def names(self, cohort: Cohort) -> list[Key]:
        """What the clients of a cohort are called."""
        assert self.sampler is not None
        return self.sampler.keys(cohort.ids)


def _order(key: Key) -> tuple[bool, Any]:
    """Numbers by size, then names: the same order in every run."""
    return isinstance(key, str), key


def only(cohort: Cohort, position: int) -> BoolArray:
    """A mask of one client of a cohort, as `Estimation.add` takes it."""
    at = np.zeros(len(cohort), np.bool_)
    at[position] = True
    return at

"""Clients that are met at run time, and the sampler over them. Knows no framework."""

import math
import os
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvib.checks import checked_policy, checked_procedure, positive_weights
from kvib.cohort import Cohort, IntArray
from kvib.guard import Guard
from kvib.journal import journalled
from kvib.policies import Forecast, Policy
from kvib.population import Key
from kvib.procedures import Procedure
from kvib.rates import EstimatedRate
from kvib.sampler import Sampler

Address = Hashable
"""Where a client is reached now; what it is called for good is its key."""
LONGEST_WAIT = 64
"""Rounds, until a node that does not say who it is is asked again."""


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

    everybody_is_listed: ClassVar[bool] = True
    """Whether draws are told who is online even if all are: to learn the rates."""

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
    everybody_is_listed: ClassVar[bool] = False

    @property
    def rate(self) -> EstimatedRate | float:
        """For the sampler: of those online everybody is available."""
        return 1.0


Offline = EstimateAvailability | Renormalise


def usual_guard(policy: Policy[Any]) -> Guard | None:
    """The guard that goes with a policy: `kvib.Guard()` with Forecast, none with others.

    Forecast draws clients in proportion to their share of the step, so a share seldom exceeds two
    usual steps where norms are near their forecasts. Under other policies, uniform draws of clients
    of unequal size above all, that is an ordinary round, and a guard would make every estimate too
    small.
    """
    return Guard() if isinstance(policy, Forecast) else None


class Opened(NamedTuple):
    """A sampler at work."""

    sampler: Sampler
    left_over: list[Cohort]
    """Drawn by a process before us, and not heard of."""
    close: Callable[[], None]


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

    def __post_init__(self) -> None:
        checked_procedure(self.procedure or checked_policy(self.policy).procedure, self.policy)
        if self.weights is not None:
            if not isinstance(self.weights, Mapping) or not self.weights:
                raise ValueError(
                    f"weights={self.weights!r} is not a mapping from client key to weight; write "
                    "{key: size, …}, or leave it out"
                )
            positive_weights(list(self.weights.values()), list(self.weights))
        if not isinstance(self.offline, Offline):
            raise ValueError(
                f"offline={self.offline!r} is neither EstimateAvailability() nor Renormalise()"
            )
        if self.journal is not None and not Path(self.journal).absolute().parent.is_dir():
            raise ValueError(f"there is no folder for the journal {self.journal}; make it first")
        if self.policy.needs_norms:
            raise ValueError(
                f"{type(self.policy).__name__} must know every client's norm before it draws, "
                "which takes a full round; choose another policy"
            )
        if self.fixed and self.offline.gone_after is not None:
            raise ValueError(
                f"{self.offline} lets clients leave, and response={{…}} is for clients that stay; "
                "give one rate for all, kvib.EstimatedRate(), or EstimateAvailability()"
            )

    @property
    def fixed(self) -> bool:
        """Whether nobody can come, leave or change its weight: each has a known rate."""
        return isinstance(self.response, Mapping)

    def open(self, keys: list[Key], weights: list[float]) -> Opened:
        """The sampler begun with these clients, or continued from its file."""
        options: dict[str, Any] = {
            "procedure": self.procedure,
            "seed": self.seed,
            "availability": self.offline.rate,
            "guard": self.guard,
        }
        if self.journal is not None and Path(self.journal).exists():
            if self.fixed:
                with journalled(self.journal, self.policy, **options) as before:
                    keys = before.keys(range(len(before)))
            known = journalled(self.journal, self.policy, **options, response=self._rates(keys))
            return Opened(known, known.outstanding(), known.close)
        options |= {"keys": keys, "response": self._rates(keys)}
        budget = min(self.budget(len(keys)), len(keys))
        if self.journal is not None:
            new = journalled(self.journal, self.policy, weights, budget, **options)
            return Opened(new, [], new.close)
        return Opened(Sampler(self.policy, weights, budget, **options), [], lambda: None)

    def _rates(self, keys: list[Key]) -> Any:
        """As the sampler takes them."""
        if not isinstance(self.response, Mapping):
            return self.response
        unknown = [key for key in keys if key not in self.response]
        if unknown:
            raise ValueError(f"response has no rate for client {unknown[0]!r}; give one")
        return [self.response[key] for key in keys]


class Fleet:
    """Who there is by stable key, where everybody is now, and the sampler, once somebody came."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.refused: dict[Key, str] = {}
        """Why clients of the last round were not heard, by key."""
        self._opened: Opened | None = None
        self._online: set[Address] = set()
        self._keys: dict[Address, Key | None] = {}
        self._addresses: dict[Key, Address] = {}
        self._sizes: dict[Key, float] = {}
        self._weights: dict[Key, float] = {}
        self._absent: dict[Key, int] = {}
        self._left: set[Key] = set()
        """Who was told to leave, and is not to come back by being online."""
        self._asked = 0
        self._waits: dict[Address, tuple[int, int]] = {}
        """Of those who did not say who they are: for how long, and until when."""
        self._steady: tuple[set[Address], IntArray] | None = None
        """The nodes of a round in which everybody was there, and their ids."""

    @property
    def sampler(self) -> Sampler | None:
        """None until the first client was met."""
        return None if self._opened is None else self._opened.sampler

    def strangers(self, online: Iterable[Address]) -> list[Any]:
        """Those to be asked who they are, once a round; who does not say, less and less often."""
        self._asked += 1
        self._online = set(online)
        due = []
        for address in self._online - self._keys.keys():
            wait, until = self._waits.get(address, (0, 0))
            if until <= self._asked:
                wait = min(2 * wait, LONGEST_WAIT) or 1
                self._waits[address] = wait, self._asked + wait
                due.append(address)
        return sorted(due)

    def address(self, key: Key) -> Address | None:
        """Where a client was seen last; None if it was not seen since the start."""
        return self._addresses.get(key)

    def meet(self, introductions: Iterable[Introduction]) -> None:
        """Take in clients: new ones join, known ones are found at their new address."""
        heard = sorted(introductions, key=lambda one: _order(one.key))
        taken: dict[Key, Introduction] = {}
        for one in heard:
            self._waits.pop(one.address, None)
            self._keys[one.address] = None
            if one.key in taken:
                self._say_twice(one.key)
            elif self._takes_part(one):
                taken[one.key] = one
        if heard and not taken and self._opened is None:
            raise ValueError(self._nobody(heard))
        for key, one in taken.items():
            self._move(key, one.address)
        if taken:
            self._steady = None
            self._admit({key: self._weight(one) for key, one in taken.items()})

    def _say_twice(self, key: Key) -> None:
        told = f"two clients call themselves {key!r}; give each an id of its own"
        if self._opened is None:
            raise ValueError(told)
        warnings.warn(f"{told}: the second takes no part", stacklevel=4)

    def _takes_part(self, one: Introduction) -> bool:
        problem = None
        if self.plan.weights is not None:
            if one.key not in self.plan.weights:
                problem = "is not in weights=…: it takes no part"
        elif one.size is not None:
            if 0 < one.size < math.inf:
                self._sizes[one.key] = float(one.size)
            else:
                problem = f"says it has {one.size} data: no part"
        if self.plan.fixed and self.sampler is not None and one.key not in self._names():
            problem = "is new, and response={…} is for those there at the start: it takes no part"
        if problem is not None:
            warnings.warn(f"client {one.key!r} {problem}", stacklevel=4)
        return problem is None

    def _nobody(self, heard: list[Introduction]) -> str:
        names = [one.key for one in heard][:3]
        if self.plan.weights is None:
            return f"none of {len(heard)} clients takes part: they say they have no data; {names}"
        return (
            f"none of {len(heard)} clients takes part: they are called {names}, …, and weights= "
            f"names {list(self.plan.weights)[:3]}, …; 1 and '1' are two names"
        )

    def _move(self, key: Key, address: Address) -> None:
        before = self._addresses.get(key)
        if before in self._online and before != address:
            warnings.warn(
                f"client {key!r} is at {address!r} now, and {before!r} is still online: it was "
                "restarted, or somebody has taken its name; the new one takes its part",
                stacklevel=4,
            )
        self._keys[address], self._addresses[key] = key, address
        self._left.discard(key)

    def _weight(self, one: Introduction) -> float:
        """What was given, or said; for who said nothing the mean of all who did."""
        if self.plan.weights is not None:
            return float(self.plan.weights[one.key])
        if one.size is not None:
            return float(one.size)
        return sum(self._sizes.values()) / len(self._sizes) if self._sizes else 1.0

    def _admit(self, arrived: dict[Key, float]) -> None:
        if self._opened is None:
            self._opened = self.plan.open(list(arrived), list(arrived.values()))
        sampler = self._opened.sampler
        self._weights |= arrived
        known = self._names()
        new = [key for key in arrived if key not in known]
        if new:
            sampler.join([arrived[key] for key in new], new)
        old = [key for key in arrived if key in known]
        population = sampler.population
        ids = population.ids(old)
        now = population.in_units(np.array([arrived[key] for key in old]))
        same = np.isclose(population.raw[ids], now, rtol=1e-9, atol=0)
        changed = [key for key, is_same in zip(old, same, strict=True) if not is_same]
        if changed and self.plan.fixed:
            warnings.warn(
                f"client {changed[0]!r} has another weight now, and response={{…}} is for weights "
                "that stay: the old one counts",
                stacklevel=3,
            )
        elif changed:
            sampler.reweigh(changed, [arrived[key] for key in changed])

    def _names(self) -> set[Key]:
        """Everybody who was ever here."""
        assert self.sampler is not None
        return set(self.sampler.population.names or ())

    def draw(self, online: Collection[Address]) -> Cohort | None:
        """The cohort of the next round; None as long as nobody is known.

        A cohort that a process before us has drawn and not heard of comes first.
        """
        if self._opened is None:
            return None
        if self._opened.left_over:
            return self._opened.left_over.pop(0)
        sampler = self._opened.sampler
        available = self._available(set(online))
        clients = len(sampler.population)
        budget = min(self.plan.budget(clients), clients)
        all_here = len(available) == clients and not self.plan.offline.everybody_is_listed
        return sampler.draw(None if all_here else available, budget)

    def _available(self, online: set[Address]) -> IntArray:
        """Ids of who is online, after those who have come or gone did so."""
        assert self.sampler is not None
        if self._steady is not None and self._steady[0] == online:
            return self._steady[1]
        here = [
            key
            for key, address in self._addresses.items()
            if address in online and key not in self._left
        ]
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
        """Clients go, with their share of the objective, until they introduce themselves anew."""
        if self.sampler is None:
            raise ValueError("nobody has come yet, so nobody can leave")
        leaving = list(keys)
        self.sampler.leave(leaving)
        self._left.update(leaving)
        self._steady = None

    def names(self, cohort: Cohort) -> list[Key]:
        """What the clients of a cohort are called."""
        assert self.sampler is not None
        return self.sampler.keys(cohort.ids)

    def close(self) -> None:
        """Let go of the journal, for another process, or another fleet in this one."""
        if self._opened is not None:
            self._opened.close()


def _order(key: Key) -> tuple[bool, Any]:
    """Numbers by size, then names: the same order in every run."""
    return isinstance(key, str), key

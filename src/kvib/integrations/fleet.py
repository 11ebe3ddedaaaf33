"""Clients that are met at run time, and the sampler over them. Knows no framework."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvib.checks import positive_weights, warn
from kvib.cohort import Cohort, IntArray
from kvib.integrations.offline import (
    EstimateAvailability,
    Missing,
    Offline,
    Renormalise,
    shown,
)
from kvib.integrations.plan import Guards, Opened, Plan, usual_guard
from kvib.integrations.roster import Address, Introduction, Roster
from kvib.integrations.sizes import Sizes
from kvib.integrations.standing import News, Standing, absent_from, standing
from kvib.policies import Policy
from kvib.population import Key
from kvib.procedures import Procedure
from kvib.sampler import Sampler

__all__ = [
    "Address",
    "EstimateAvailability",
    "Fleet",
    "Guards",
    "Introduction",
    "News",
    "Offline",
    "Plan",
    "Renormalise",
    "Standing",
    "usual_guard",
]


class Fleet:
    """Who there is by stable key, where each client is now, and the sampler, once one has come."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.refused: dict[Key, str] = {}
        """Why clients of the last round were not heard, by key."""
        self.standing = Standing(0, 0.0, 0.0, [])
        self.sizes = Sizes(plan.max_weight)
        self._opened: Opened | None = None
        self._roster = Roster()
        self._weights: dict[Key, float] = {}
        """What each client counts as."""
        self._reweighed: dict[Key, float] = {}
        """Weights that `reweigh` was given; they count more than what clients report."""
        self._steady: tuple[set[Address], IntArray] | None = None
        """The nodes of a round in which all clients were there, and their ids."""
        self._unnamed: set[Key] = set()
        """Clients that have no name of their own."""
        self._news = News([], [], [], [])

    @property
    def sampler(self) -> Sampler | None:
        """None until the first client was met."""
        return None if self._opened is None else self._opened.sampler

    def strangers(self, online: Iterable[Address]) -> list[Any]:
        """Nodes to be asked who they are, once a round; see `Roster`."""
        return self._roster.strangers(online)

    def address(self, key: Key) -> Address | None:
        """Where a client was seen last; None if it was not seen since the start."""
        return self._roster.address(key)

    def clients(self, online: Collection[Address]) -> list[Key]:
        """Clients at these addresses that can be drawn."""
        return self._roster.clients(online)

    def meet(self, introductions: Iterable[Introduction]) -> None:
        """Take in clients: new ones join, known ones are found at their new address."""
        heard = sorted(introductions, key=lambda one: _order(one.key))
        taken: dict[Key, Introduction] = {}
        strange: dict[str, list[Key]] = {}
        for one in heard:
            self._roster.heard(one.address)
            if one.key in taken:
                self._say_twice(one.key)
                continue
            problem = self._problem(one)
            if problem is None:
                taken[one.key] = one
            else:
                strange.setdefault(problem, []).append(one.key)
        if heard and not taken and self._opened is None:
            raise ValueError(self._none_takes_part(heard))
        for problem, keys in strange.items():
            warn(f"client {shown(keys)} {problem}")
            self._let_go(keys)
        for key, one in taken.items():
            self._roster.found(one)
            if one.size is not None and self.plan.weights is None:
                self.sizes.report(key, float(one.size))
        if taken:
            self.sizes.suspect()
            self._steady = None
            self._admit({key: self._weight(key) for key in taken})
            self._level()
            unnamed = {key for key, one in taken.items() if not one.named}
            self._unnamed = (self._unnamed - taken.keys()) | unnamed
            self._news.unnamed.extend(key for key in self._news.joined if key in unnamed)

    def _level(self) -> None:
        """Clients that reported no size count as the mean of those that did, as of now."""
        if self.plan.weights is None and self.sizes and not self.plan.fixed:
            silent = [k for k in self._weights if k not in self.sizes and k not in self._reweighed]
            level = {key: self._weight(key) for key in silent}
            self._weights |= level
            self._change(level)

    def _let_go(self, keys: list[Key]) -> None:
        """Clients that were known and take no part any more leave."""
        if self.sampler is None or self.plan.fixed:
            return
        here = set(self.sampler.keys(self.sampler.population.here()))
        leaving = [key for key in keys if key in here]
        if leaving and len(leaving) < len(here):
            self.sampler.leave(leaving)
            self._news.left.extend(leaving)
            self._steady = None

    def _say_twice(self, key: Key) -> None:
        problem = f"two clients call themselves {key!r}; give each an id of its own"
        if self._opened is None:
            raise ValueError(problem)
        warn(f"{problem}: the second takes no part")

    def _problem(self, one: Introduction) -> str | None:
        """Why a client takes no part; None if it does."""
        lacking = self.plan.missing(one.key)
        if lacking is not None:
            return f"is not in {lacking}=…: it takes no part"
        if self.plan.weights is None and one.size is not None and not self.sizes.is_one(one.size):
            return f"says it has {one.size} data: no part"
        if self.plan.fixed and self.sampler is not None and one.key not in self._names():
            return f"is new, and {self.plan.fixed} is for those there at the start: no part"
        return None

    def _none_takes_part(self, heard: list[Introduction]) -> str:
        names = shown(one.key for one in heard)
        lacking = self.plan.missing(heard[0].key)
        if lacking is None:
            return (
                f"none of {len(heard)} clients takes part: they say they have no data; they are "
                f"called {names}"
            )
        return (
            f"none of {len(heard)} clients takes part: they are called {names}, and {lacking}= "
            f"names {shown(getattr(self.plan, lacking))}; 1 and '1' are two names"
        )

    def _weight(self, key: Key) -> float:
        """What a client counts as: what was given, or what it reported."""
        if key in self._reweighed:
            return self._reweighed[key]
        return self.sizes.of(key) if self.plan.weights is None else float(self.plan.weights[key])

    def _admit(self, arrived: dict[Key, float]) -> None:
        """Let clients join, or change the weight of those that are known."""
        if self._opened is None:
            self._opened = self.plan.open(list(arrived), list(arrived.values()))
            self._news.joined.extend(arrived if self._opened.sampler.round == 0 else [])
            self._take_weights()
        sampler = self._opened.sampler
        self._weights |= arrived
        known = self._names()
        new = [key for key in arrived if key not in known]
        if new:
            sampler.join([arrived[key] for key in new], new, self.plan.prices(new))
            self._news.joined.extend(new)
        self._change({key: arrived[key] for key in arrived if key in known})

    def _take_weights(self) -> None:
        """A journal that is continued takes the weights that are given now, for all its clients."""
        assert self.sampler is not None
        given, population = self.plan.weights, self.sampler.population
        if given is None or self.plan.fixed:
            return
        here = self.sampler.keys(population.here())
        self._change({key: float(given[key]) for key in here if key in given})
        others = [key for key in here if key not in given]
        if len(others) == len(here):
            raise ValueError(
                f"{self.plan.journal} has clients {shown(here)}, and weights= names "
                f"{shown(given)}; give the weights of its clients, or begin another file"
            )
        if others:
            self.sampler.leave(others)
            self._news.left.extend(others)

    def _change(self, weights: Mapping[Key, float]) -> None:
        """New weights of known clients, those that are the same left out."""
        assert self.sampler is not None
        population, keys = self.sampler.population, list(weights)
        now = population.in_units(np.array([weights[key] for key in keys], np.float64))
        same = np.isclose(population.raw[population.ids(keys)], now, rtol=1e-9, atol=0)
        changed = [key for key, is_same in zip(keys, same, strict=True) if not is_same]
        if changed and self.plan.fixed:
            warn(
                f"client {shown(changed)} has another weight now, and {self.plan.fixed} is for "
                "weights that stay: the old one counts"
            )
        elif changed:
            self.sampler.reweigh(changed, [weights[key] for key in changed])

    def reweigh(self, weights: Mapping[Key, float]) -> None:
        """Weights of clients change, in the units of the others; until the server restarts."""
        if self.sampler is None:
            raise ValueError("no client has come yet, so none has a weight; give weights={…}")
        positive_weights(list(weights.values()), list(weights))
        self.sampler.ids(list(weights))  # or refuse
        self._change(weights)
        self._reweighed |= weights
        self._weights |= weights

    def switch(self, policy: Policy[Any], procedure: Procedure | None = None) -> None:
        """Draw with another policy from now on, which learns from the rounds in the journal."""
        kept = procedure or self.plan.procedure
        plan = replace(self.plan, policy=policy, procedure=kept, switch=True)
        if self.sampler is not None:
            self.sampler.switch(policy, procedure, guard=plan.chosen_guard)
        self.plan = plan

    def _names(self) -> set[Key]:
        """All clients that were ever here."""
        assert self.sampler is not None
        return set(self.sampler.population.names or ())

    def draw(self, online: Collection[Address]) -> Cohort | None:
        """The cohort of the next round; None as long as no client is there.

        A cohort that an earlier process has drawn and got no feedback for comes first.
        """
        if self._opened is None:
            return None
        sampler = self._opened.sampler
        if self._opened.left_over:
            here = np.sort(sampler.ids(self.clients(online)))
            self.standing = standing(sampler, self._absent(here))
            return self._opened.left_over.pop(0)
        available = self._available(set(online))
        if not len(available):
            return None
        clients, most = len(sampler.population), self._most()
        budget = min(self.plan.budget(most, sampler.round), most)
        all_here = len(available) == clients and not self.plan.offline.everybody_is_listed
        return sampler.draw(None if all_here else available, budget)

    def _most(self) -> float:
        """The budget that would draw all clients."""
        assert self.sampler is not None
        if self.plan.cost is None:
            return float(len(self.sampler.population))
        return float(self.sampler.prices.of(self.sampler.population.here()).sum())

    def _available(self, online: set[Address]) -> IntArray:
        """Ids of the clients online, after those who have come or gone did so."""
        assert self.sampler is not None
        if self._steady is not None and self._steady[0] == online:
            return self._steady[1]
        here = self.clients(online)
        self._return(here)
        available = np.sort(self.sampler.ids(here))
        absent = self._absent(available)
        if len(absent.leaving):
            leaving = self.sampler.keys(absent.leaving)
            self.sampler.leave(leaving)
            self._news.left.extend(leaving)
        self.standing = standing(self.sampler, absent)
        self._steady = (online, available) if len(here) == len(self.sampler.population) else None
        return available

    def _absent(self, available: IntArray) -> Missing:
        """Clients that are not available."""
        assert self.sampler is not None
        unnamed = self.sampler.ids(list(self._unnamed & self._names()))
        return absent_from(self.sampler, available, self.plan.gone_after, unnamed)

    def _return(self, here: list[Key]) -> None:
        """Let those who left and are online join again."""
        assert self.sampler is not None
        population = self.sampler.population
        gone = set(population.keys(sorted(population.gone)))
        back = [key for key in here if key in gone]
        if back:
            weights = [self._weights[key] for key in back]
            self.sampler.join(weights, back, self.plan.prices(back))
            self._news.returned.extend(back)

    def compare(self, examples: Iterable[Any]) -> None:
        """Warn where clients that never introduced themselves train on different numbers."""
        if self.plan.weights is None and self._unnamed:
            numbers = (n for n in examples if isinstance(n, int | float) and math.isfinite(n))
            self.sizes.compare(numbers)

    def news(self) -> News:
        """What happened to the population since this was last asked."""
        news, self._news = self._news, News([], [], [], [])
        return news

    def leave(self, keys: Iterable[Key]) -> None:
        """Clients go, with their share of the objective, until they introduce themselves anew."""
        if self.sampler is None:
            raise ValueError("nobody has come yet, so nobody can leave")
        leaving = list(keys)
        self.sampler.leave(leaving)
        self._roster.dismiss(leaving)
        self._news.left.extend(leaving)
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

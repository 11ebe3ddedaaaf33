"""Clients that are met at run time, and the sampler over them. Knows no framework."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvib.checks import warn
from kvib.integrations.kit.offline import Missing, shown
from kvib.integrations.kit.options import FleetOptions, Opened
from kvib.integrations.kit.roster import Address, Introduction, Roster
from kvib.integrations.kit.round import Round
from kvib.integrations.kit.standing import News, Standing, absent_from, standing
from kvib.integrations.kit.weighing import Weighing
from kvib.journal.sampler import AnySampler
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.types import IntArray, Key


class Fleet:
    """Clients by stable key, where each is now, and the sampler, once a client has come.

    Args:
        options: how the sampler is made or continued.
    """

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.standing = Standing(0, 0.0, 0.0, [])
        self.round: Round | None = None
        """The last one that was drawn."""
        self._weighing = Weighing(options)
        self._opened: Opened | None = None
        self._roster = Roster()
        self._steady: tuple[set[Address], IntArray] | None = None
        """The nodes of a round in which all clients were there, and their ids."""
        self._unnamed: set[Key] = set()
        """Clients that have no name of their own."""
        self._news = News([], [], [], [])

    @property
    def sampler(self) -> AnySampler | None:
        """None until the first client was met."""
        return None if self._opened is None else self._opened.sampler

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients of the last round were not heard, by key."""
        return {} if self.round is None else self.round.refused

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
        ordered = sorted(introductions, key=lambda one: _order(one.key))
        taken, strange = self._sorted(ordered)
        if ordered and not taken and self._opened is None:
            raise ValueError(self._none_takes_part(ordered))
        for problem, keys in strange.items():
            warn(f"client {shown(keys)} {problem}")
            self._let_go(keys)
        for one in taken.values():
            self._roster.found(one)
        if taken:
            self._steady = None
            sizes = {key: one.size for key, one in taken.items()}
            self._weighing.level(self._admit(self._weighing.report(sizes)))
            unnamed = {key for key, one in taken.items() if not one.named}
            self._unnamed = (self._unnamed - taken.keys()) | unnamed
            self._news.unnamed.extend(key for key in self._news.joined if key in unnamed)

    def _sorted(
        self, introductions: list[Introduction]
    ) -> tuple[dict[Key, Introduction], dict[str, list[Key]]]:
        """Clients that take part, by key, and keys of those that do not, by the reason."""
        taken: dict[Key, Introduction] = {}
        strange: dict[str, list[Key]] = {}
        begun = self._opened is not None and bool(introductions)
        known = self._names() if begun and self.options.fixed else None
        for one in introductions:
            self._roster.answered(one.address)
            if one.key in taken:
                self._say_twice(one.key)
                continue
            problem = self._weighing.problem(one.key, one.size, known)
            if problem is None:
                taken[one.key] = one
            else:
                strange.setdefault(problem, []).append(one.key)
        return taken, strange

    def _let_go(self, keys: list[Key]) -> None:
        """Clients that were known and take no part any more leave."""
        if self.sampler is None or self.options.fixed:
            return
        here = set(self.sampler.keys(self.sampler.state.population.here()))
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

    def _none_takes_part(self, introductions: list[Introduction]) -> str:
        names = shown(one.key for one in introductions)
        lacking = self.options.missing(introductions[0].key)
        if lacking is None:
            return (
                f"none of {len(introductions)} clients takes part: they say they have no data; "
                f"they are called {names}"
            )
        return (
            f"none of {len(introductions)} clients takes part: they are called {names}, and "
            f"{lacking}= names {shown(getattr(self.options, lacking))}; 1 and '1' are two names"
        )

    def _admit(self, arrived: dict[Key, float]) -> AnySampler:
        """Let clients join, or change the weight of those that are known."""
        if self._opened is None:
            self._opened = self.options.open(list(arrived), list(arrived.values()))
            self._news.joined.extend(arrived if self._opened.sampler.round == 0 else [])
            others = self._weighing.continued(self._opened.sampler)
            if others:
                self._opened.sampler.leave(others)
                self._news.left.extend(others)
        sampler = self._opened.sampler
        self._weighing.admitted(arrived)
        known = self._names()
        new = [key for key in arrived if key not in known]
        if new:
            sampler.join([arrived[key] for key in new], new, self.options.prices(new))
            self._news.joined.extend(new)
        self._weighing.apply(sampler, {key: arrived[key] for key in arrived if key in known})
        return sampler

    def reweigh(self, weights: Mapping[Key, float]) -> None:
        """Weights of clients change, in the units of the others; until the server restarts."""
        if self.sampler is None:
            raise ValueError("no client has come yet, so none has a weight; give weights={…}")
        self._weighing.change(self.sampler, weights)

    def switch(self, policy: Policy[Any], procedure: Procedure | None = None) -> None:
        """Draw with another policy from now on, which learns from the rounds in the journal."""
        kept = procedure or self.options.procedure
        options = replace(self.options, policy=policy, procedure=kept, switch=True)
        if self.sampler is not None:
            self.sampler.switch(policy, procedure, guard=options.chosen_guard)
        self.options = self._weighing.options = options

    def _names(self) -> set[Key]:
        """All clients that were ever here."""
        assert self.sampler is not None
        return set(self.sampler.keys(range(len(self.sampler))))

    def draw(self, online: Collection[Address]) -> Round | None:
        """The next round; None as long as no client is there.

        A cohort that an earlier process has drawn and got no feedback for comes first.
        """
        if self._opened is None:
            return None
        sampler = self._opened.sampler
        if self._opened.left_over:
            here = np.sort(sampler.ids(self.clients(online)))
            self.standing = standing(sampler, self._absent(here))
            self.round = Round(sampler, self._opened.left_over.pop(0))
            return self.round
        available = self._available(set(online))
        if not len(available):
            return None
        clients, most = len(sampler.state.population), self._most()
        budget = min(self.options.budget(most, sampler.round), most)
        all_here = len(available) == clients and not self.options.offline.lists_all
        self.round = Round(sampler, sampler.draw(None if all_here else available, budget))
        return self.round

    def _most(self) -> float:
        """The budget that would draw all clients."""
        assert self.sampler is not None
        if self.options.cost is None:
            return float(len(self.sampler.state.population))
        return float(self.sampler.state.prices.of(self.sampler.state.population.here()).sum())

    def _available(self, online: set[Address]) -> IntArray:
        """Ids of the clients online, after those who have come or gone did so."""
        assert self.sampler is not None
        if self._steady is not None and self._steady[0] == online:
            return self._steady[1]
        here = self.clients(online)
        ids = self.sampler.ids(here)
        self._return(here, ids)
        available = np.sort(ids)
        absent = self._absent(available)
        if len(absent.leaving):
            leaving = self.sampler.keys(absent.leaving)
            self.sampler.leave(leaving)
            self._news.left.extend(leaving)
        self.standing = standing(self.sampler, absent)
        self._steady = (
            (online, available) if len(here) == len(self.sampler.state.population) else None
        )
        return available

    def _absent(self, available: IntArray) -> Missing:
        """Clients that are not available."""
        assert self.sampler is not None
        known = self._unnamed & self._names() if self._unnamed else ()
        unnamed = self.sampler.ids(list(known))
        return absent_from(self.sampler, available, self.options.leave_after, unnamed)

    def _return(self, here: list[Key], ids: IntArray) -> None:
        """Let those who left and are online join again; they keep their ids."""
        assert self.sampler is not None
        is_here = self.sampler.state.population.is_here(ids)
        back = [key for key, stayed in zip(here, is_here, strict=True) if not stayed]
        if back:
            self.sampler.join(self._weighing.of(back), back, self.options.prices(back))
            self._news.returned.extend(back)

    def compare(self, examples: Iterable[Any], way_out: str) -> None:
        """Warn where clients that never introduced themselves train on different numbers.

        Args:
            examples: what clients of the round trained on.
            way_out: how a client reports its size in this framework, for the warning.
        """
        if self.options.weights is None and self._unnamed:
            numbers = (n for n in examples if isinstance(n, int | float) and math.isfinite(n))
            self._weighing.sizes.compare(numbers, way_out)

    def news(self) -> News:
        """What happened to the population since this was last asked."""
        news, self._news = self._news, News([], [], [], [])
        return news

    def leave(self, keys: Iterable[Key]) -> None:
        """Clients go, with their share of the objective, until they introduce themselves anew."""
        if self.sampler is None:
            raise ValueError("no client has come yet, so none can leave")
        leaving = list(keys)
        self.sampler.leave(leaving)
        self._roster.dismiss(leaving)
        self._news.left.extend(leaving)
        self._steady = None

    def close(self) -> None:
        """Let go of the journal, for another process, or another fleet in this one."""
        if self._opened is not None:
            self._opened.close()


def _order(key: Key) -> tuple[bool, Any]:
    """Numbers by size, then names: the same order in every run."""
    return isinstance(key, str), key

"""Clients that are met at run time, and the sampler over them. It knows no framework."""

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
    """Keeps track of clients that come and go, and draws rounds from those online.

    A client has a key that stays and an address that may change. The first clients that are met
    begin the sampler, or continue the one in the journal.

    Args:
        options: The options with which the sampler is made or continued.

    Examples:
        >>> import kvib
        >>> from kvib.integrations.kit import Fleet, FleetOptions, Introduction
        >>> fleet = Fleet(FleetOptions(policy=kvib.Uniform(), budget=lambda most, round: 2.0))
        >>> online = {"node-a", "node-b"}
        >>> fleet.strangers(online)
        ['node-a', 'node-b']
        >>> fleet.meet([Introduction("node-a", "ann", 30.0), Introduction("node-b", "bob", 10.0)])
        >>> round = fleet.draw(online)
        >>> round.keys
        ['ann', 'bob']
        >>> round.cohort.weight
        array([0.75, 0.25])
        >>> fleet.news().joined
        ['ann', 'bob']
    """

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.standing = Standing(0, 0.0, 0.0, [])
        """The share of the objective that could be drawn in the last round."""
        self.round: Round | None = None
        """The round that was drawn last. None before the first."""
        self._weighing = Weighing(options)
        self._opened: Opened | None = None
        self._roster = Roster()
        self._steady: tuple[set[Address], IntArray] | None = None
        """The nodes of a round in which all clients were online, and the ids of the clients."""
        self._unnamed: set[Key] = set()
        """The clients that have no name of their own."""
        self._news = News([], [], [], [])

    @property
    def sampler(self) -> AnySampler | None:
        """The sampler over the clients. None until the first client was met."""
        return None if self._opened is None else self._opened.sampler

    @property
    def refused(self) -> dict[Key, str]:
        """The reasons why clients of the last round did not answer, by key."""
        return {} if self.round is None else self.round.refused

    def strangers(self, online: Iterable[Address]) -> list[Any]:
        """List the nodes that must be asked now which client they are. Call it once in a round.

        A node that does not answer is asked again after 1, 2, 4, … up to 64 rounds, and one that
        does after 100 rounds.

        Args:
            online: The addresses of all nodes that are online.
        """
        return self._roster.strangers(online)

    def address(self, key: Key) -> Address | None:
        """Return the last address of a client, or None if it was not met since the start.

        Args:
            key: The key of the client.
        """
        return self._roster.address(key)

    def clients(self, online: Collection[Address]) -> list[Key]:
        """List the clients at these addresses that can be drawn.

        Args:
            online: The addresses of all nodes that are online.
        """
        return self._roster.clients(online)

    def meet(self, introductions: Iterable[Introduction]) -> None:
        """Take in clients: new clients join, and known ones are found at their new address.

        Args:
            introductions: What clients report of themselves. Clients that cannot take part are left
                out with a warning.
        """
        ordered = sorted(introductions, key=lambda introduction: _order(introduction.key))
        taken, strange = self._sorted(ordered)
        if ordered and not taken and self._opened is None:
            raise ValueError(self._none_takes_part(ordered))
        for problem, keys in strange.items():
            warn(f"client {shown(keys)} {problem}")
            self._let_go(keys)
        for introduction in taken.values():
            self._roster.found(introduction)
        if taken:
            self._steady = None
            sizes = {key: introduction.size for key, introduction in taken.items()}
            self._weighing.level(self._admit(self._weighing.report(sizes)))
            unnamed = {key for key, introduction in taken.items() if not introduction.named}
            self._unnamed = (self._unnamed - taken.keys()) | unnamed
            self._news.unnamed.extend(key for key in self._news.joined if key in unnamed)

    def _sorted(
        self, introductions: list[Introduction]
    ) -> tuple[dict[Key, Introduction], dict[str, list[Key]]]:
        """The clients that take part, by key, and the keys of the others, by the reason."""
        taken: dict[Key, Introduction] = {}
        strange: dict[str, list[Key]] = {}
        begun = self._opened is not None and bool(introductions)
        known = self._names() if begun and self.options.fixed else None
        for introduction in introductions:
            key = introduction.key
            self._roster.answered(introduction.address)
            if key in taken:
                self._say_twice(key)
                continue
            problem = self._weighing.problem(key, introduction.size, known)
            if problem is None:
                taken[key] = introduction
            else:
                strange.setdefault(problem, []).append(key)
        return taken, strange

    def _let_go(self, keys: list[Key]) -> None:
        """Let known clients leave that can no longer take part."""
        if self.sampler is None or self.options.fixed:
            return
        here = set(self.sampler.keys(self.sampler.state.population.here()))
        leaving = [key for key in keys if key in here]
        if leaving and len(leaving) < len(here):
            self.sampler.leave(leaving)
            self._news.left.extend(leaving)
            self._steady = None

    def _say_twice(self, key: Key) -> None:
        """Refuse two clients of one name at the start, and warn of them later."""
        problem = f"two clients call themselves {key!r}; give each an id of its own"
        if self._opened is None:
            raise ValueError(problem)
        warn(f"{problem}: the second takes no part")

    def _none_takes_part(self, introductions: list[Introduction]) -> str:
        """The message for a start at which no client can take part."""
        names = shown(introduction.key for introduction in introductions)
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
        """Let new clients join, and change the weights of known ones."""
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
        """Change the weights of clients, until the server restarts.

        Args:
            weights: The new weights by key, in the units of the others.
        """
        if self.sampler is None:
            raise ValueError("no client has come yet, so none has a weight; give weights={…}")
        self._weighing.change(self.sampler, weights)

    def switch(self, policy: Policy[Any], procedure: Procedure | None = None) -> None:
        """Draw with another policy from now on, which learns from the rounds in the journal.

        Args:
            policy: The new policy.
            procedure: The new procedure. None means the new policy's own if the old policy's own
                was in use, and keeps the procedure if another was.
        """
        kept = procedure or self.options.procedure
        options = replace(self.options, policy=policy, procedure=kept, switch=True)
        if self.sampler is not None:
            self.sampler.switch(policy, procedure, guard=options.chosen_guard)
        self.options = self._weighing.options = options

    def _names(self) -> set[Key]:
        """All clients of the population, including those that left."""
        assert self.sampler is not None
        return set(self.sampler.keys(range(len(self.sampler))))

    def draw(self, online: Collection[Address]) -> Round | None:
        """Draw the next round, or return None if no client is online.

        A cohort that an earlier process has drawn, and got no feedback for, comes first.

        Args:
            online: The addresses of all nodes that are online.
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
        """The ids of the clients online, ascending, after clients have returned and left."""
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
        """The clients that are not available, sorted by what their absence means."""
        assert self.sampler is not None
        known = self._unnamed & self._names() if self._unnamed else ()
        unnamed = self.sampler.ids(list(known))
        return absent_from(self.sampler, available, self.options.leave_after, unnamed)

    def _return(self, here: list[Key], ids: IntArray) -> None:
        """Let clients that left and are online join again. They keep their ids."""
        assert self.sampler is not None
        is_here = self.sampler.state.population.is_here(ids)
        back = [key for key, stayed in zip(here, is_here, strict=True) if not stayed]
        if back:
            self.sampler.join(self._weighing.of(back), back, self.options.prices(back))
            self._news.returned.extend(back)

    def compare(self, examples: Iterable[Any], way_out: str) -> None:
        """Warn where clients that never introduced themselves train on different amounts of data.

        Args:
            examples: The numbers of examples that clients of the round trained on.
            way_out: The way in which a client reports its size in this framework, for the warning.
        """
        if self.options.weights is None and self._unnamed:
            numbers = (n for n in examples if isinstance(n, int | float) and math.isfinite(n))
            self._weighing.sizes.compare(numbers, way_out)

    def news(self) -> News:
        """Return the changes of the population since the last call."""
        news, self._news = self._news, News([], [], [], [])
        return news

    def leave(self, keys: Iterable[Key]) -> None:
        """Let clients leave, with their share of λ, until they introduce themselves anew.

        Args:
            keys: The keys of the clients.
        """
        if self.sampler is None:
            raise ValueError("no client has come yet, so none can leave")
        leaving = list(keys)
        self.sampler.leave(leaving)
        self._roster.dismiss(leaving)
        self._news.left.extend(leaving)
        self._steady = None

    def close(self) -> None:
        """Close the journal, so that another process or another fleet can open it."""
        if self._opened is not None:
            self._opened.close()


def _order(key: Key) -> tuple[bool, Any]:
    """A sort key: integers by size, then strings. The order is the same in every run."""
    return isinstance(key, str), key

"""Clients that join, leave, return and change their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib import growing
from kvib.checks import checked_cost, positive_weights
from kvib.clients.population import listed
from kvib.sampler.parts import Parts
from kvib.types import IntArray, Key


@dataclass(frozen=True, eq=False)
class Membership:
    """The part that passes each change to all parts with an entry per client, in the right order.

    Args:
        parts: The parts of the sampler.
    """

    parts: Parts

    def join(
        self, weights: ArrayLike, keys: Sequence[Key] | Key | None, cost: ArrayLike | None
    ) -> IntArray:
        """Let clients join or return, and return their ids. See `Sampler.join`."""
        population, prices = self.parts.population, self.parts.prices
        learner, names = self.parts.learner, None if keys is None else listed(keys)
        # Check all arguments before anything changes.
        first = population.count
        checked = positive_weights(
            np.atleast_1d(weights), names or range(first, first + np.size(weights))
        )
        price = None if cost is None else checked_cost(np.atleast_1d(cost), len(checked))
        learner.takes_changes()
        self._refuse_fixed()
        own = population.in_units(checked)
        ids, back = population.prepare(names, len(checked))
        if (price is None) != (prices.cost is None):
            raise ValueError("give newcomers a cost if, and only if, the others have one")
        # The policy comes first: it may still raise.
        fresh, returning = ids[~back], ids[back]
        self._make_room(population.count + len(fresh))
        learner.enter(fresh, own[~back])
        learner.reweigh(returning, own[back], own[back] / population.raw[returning])
        # Then the population, the costs and the eligible clients.
        new = None if names is None else [names[k] for k in np.flatnonzero(~back)]
        population.add(fresh, own[~back], new)
        if prices.cost is not None and price is not None:
            prices.cost[ids] = price
        population.come_back(returning)
        population.reweigh(returning, own[back])
        self.parts.resize(self.parts.learner, len(population))
        self.parts.eligible.insert(ids)
        return ids

    def leave(self, keys: Any) -> None:
        """Let clients leave. See `Sampler.leave`."""
        population = self.parts.population
        self._refuse_fixed()
        ids = np.unique(population.ids(keys))
        departed = ids[~population.is_here(ids)]
        if len(departed):
            raise ValueError(f"client {population.keys(departed)[0]!r} has left before")
        if len(ids) == len(population):
            raise ValueError("all clients would be gone; end the run instead")
        self.parts.eligible.remove(ids)
        population.leave(ids)
        self.parts.rates.forgive(ids)
        self.parts.resize(self.parts.learner, len(population))

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Change the weights of clients. See `Sampler.reweigh`."""
        population = self.parts.population
        checked = positive_weights(np.atleast_1d(weights), np.atleast_1d(keys).tolist())
        self.parts.learner.takes_changes()
        self._refuse_fixed()
        own = population.in_units(checked)
        ids = population.ids(keys)
        if len(ids) != len(checked):
            raise ValueError(f"{len(checked)} weights for {len(ids)} clients; give one each")
        if len(np.unique(ids)) != len(ids):
            raise ValueError("a client is listed twice; give each its one new weight")
        with self.parts.eligible.reweighing(ids):
            self.parts.learner.reweigh(ids, own, own / population.raw[ids])
            population.reweigh(ids, own)

    def _refuse_fixed(self) -> None:
        """Raise where a part has an entry per client that newcomers would lack."""
        fixed = {
            "an estimator that remembers updates": self.parts.memory is not None,
            "sketches": self.parts.sketches.size > 0,
            "variables": self.parts.eligible.variables.shape[1] > 0,
            "response or availability of each client": self.parts.rates.of_each,
        }
        for name, is_used in fixed.items():
            if is_used:
                raise ValueError(
                    f"a sampler with {name} has a fixed population (`kvib.recommended` keeps "
                    "sketches); start a new one, or let clients come and go with "
                    "kvib.Sampler(kvib.Forecast(), weights, budget)"
                )

    def _make_room(self, needed: int) -> None:
        """Make room for this many ids in every part that has an entry per client."""
        before = len(self.parts.population.raw)
        entries = growing.enough(needed, before)
        if entries > before:
            parts = self.parts
            others = (parts.learner, parts.prices, parts.rates, parts.sketches, parts.eligible)
            for part in (parts.population, *others):
                part.widen(entries)

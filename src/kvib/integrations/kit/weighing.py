"""What clients of a fleet count as: given, changed while it runs, or reported by themselves."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from kvib.checks import positive_weights, warn
from kvib.integrations.kit.offline import shown
from kvib.integrations.kit.options import FleetOptions
from kvib.integrations.kit.sizes import Sizes
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class Weighing:
    """The weight of each client, by key, and its way into the sampler.

    Args:
        options: of the fleet.
    """

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.sizes = Sizes(options.max_weight)
        self._weights: dict[Key, float] = {}
        """What each client counts as."""
        self._changed: dict[Key, float] = {}
        """Weights that `change` was given; they count more than what clients report."""

    def report(self, sizes: Mapping[Key, float | None]) -> dict[Key, float]:
        """What clients count as, given what they say of their data; None: nothing."""
        for key, size in sizes.items():
            if size is not None and self.options.weights is None:
                self.sizes.report(key, float(size))
        self.sizes.suspect()
        return {key: self._weight(key) for key in sizes}

    def _weight(self, key: Key) -> float:
        """What was given, or what the client reported."""
        given = self.options.weights
        if key in self._changed:
            return self._changed[key]
        return self.sizes.of(key) if given is None else float(given[key])

    def admitted(self, weights: Mapping[Key, float]) -> None:
        """Clients take part with these weights."""
        self._weights |= weights

    def of(self, keys: Iterable[Key]) -> list[float]:
        """What these clients count as."""
        return [self._weights[key] for key in keys]

    def level(self, sampler: AnySampler) -> None:
        """Clients that reported no size count as the mean of those that did, as of now."""
        if self.options.weights is None and self.sizes and not self.options.fixed:
            silent = (k for k in self._weights if k not in self.sizes and k not in self._changed)
            level = {key: self._weight(key) for key in silent}
            self._weights |= level
            self.tell(sampler, level)

    def continued(self, sampler: AnySampler) -> list[Key]:
        """A journal that is continued takes the weights that are given now, for all its clients.

        Returns those of its clients that are not named any more, which must leave.
        """
        given = self.options.weights
        if given is None or self.options.fixed:
            return []
        here = sampler.keys(sampler.state.population.here())
        self.tell(sampler, {key: float(given[key]) for key in here if key in given})
        others = [key for key in here if key not in given]
        if len(others) == len(here):
            raise ValueError(
                f"{self.options.journal} has clients {shown(here)}, and weights= names "
                f"{shown(given)}; give the weights of its clients, or begin another file"
            )
        return others

    def tell(self, sampler: AnySampler, weights: Mapping[Key, float]) -> None:
        """Weights of known clients go to the sampler, those that are the same left out."""
        population, keys = sampler.state.population, list(weights)
        now = population.in_units(np.array([weights[key] for key in keys], np.float64))
        same = np.isclose(population.raw[sampler.ids(keys)], now, rtol=1e-9, atol=0)
        changed = [key for key, is_same in zip(keys, same, strict=True) if not is_same]
        if changed and self.options.fixed:
            warn(
                f"client {shown(changed)} has another weight now, and {self.options.fixed} is for "
                "weights that stay: the old one counts"
            )
        elif changed:
            sampler.reweigh(changed, [weights[key] for key in changed])

    def change(self, sampler: AnySampler, weights: Mapping[Key, float]) -> None:
        """New weights from the user, in the units of the others."""
        positive_weights(list(weights.values()), list(weights))
        sampler.ids(list(weights))  # or refuse
        self.tell(sampler, weights)
        self._changed |= weights
        self._weights |= weights

    def problem(self, key: Key, size: float | None, known: Collection[Key] | None) -> str | None:
        """Why a client takes no part; None if it does.

        Args:
            key: what it is called.
            size: of its data, as it says.
            known: all clients that were ever here; None before the sampler is begun.
        """
        options = self.options
        lacking = options.missing(key)
        if lacking is not None:
            return f"is not in {lacking}=…: it takes no part"
        if options.weights is None and size is not None and not self.sizes.is_one(size):
            return f"says it has {size} data: no part"
        if options.fixed and known is not None and key not in known:
            return f"is new, and {options.fixed} is for those there at the start: no part"
        return None

"""The weights of the clients of a fleet: given, changed in the run, or reported by clients."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from kvib.checks import positive_weights, warn
from kvib.integrations.kit.offline import shown
from kvib.integrations.kit.options import FleetOptions
from kvib.integrations.kit.sizes import Sizes
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class Weighing:
    """Keeps the weight of each client by key, and passes changes on to the sampler.

    Args:
        options: The options of the fleet.
    """

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.sizes = Sizes(options.max_weight)
        self._weights: dict[Key, float] = {}
        """The weight of each client."""
        self._changed: dict[Key, float] = {}
        """The weights that `change` set. They override what clients report."""

    def report(self, sizes: Mapping[Key, float | None]) -> dict[Key, float]:
        """The weights of these clients after they reported sizes. None means no size."""
        for key, size in sizes.items():
            if size is not None and self.options.weights is None:
                self.sizes.report(key, float(size))
        self.sizes.suspect()
        return {key: self._weight(key) for key in sizes}

    def _weight(self, key: Key) -> float:
        """The weight that was changed or given, else the size that the client reported."""
        weights = self.options.weights
        if key in self._changed:
            return self._changed[key]
        return self.sizes.of(key) if weights is None else float(weights[key])

    def admitted(self, weights: Mapping[Key, float]) -> None:
        """Note the weights of clients that take part."""
        self._weights |= weights

    def of(self, keys: Iterable[Key]) -> list[float]:
        """The weights of these clients, in their order."""
        return [self._weights[key] for key in keys]

    def level(self, sampler: AnySampler) -> None:
        """Set the weight of clients without a size to the present mean of the reported sizes."""
        if self.options.weights is None and self.sizes and not self.options.fixed:
            silent = (k for k in self._weights if k not in self.sizes and k not in self._changed)
            level = {key: self._weight(key) for key in silent}
            self._weights |= level
            self.apply(sampler, level)

    def continued(self, sampler: AnySampler) -> list[Key]:
        """Apply the weights that are given now to all clients of a continued journal.

        Returns the clients of the journal that the weights no longer name. They must leave.
        """
        weights = self.options.weights
        if weights is None or self.options.fixed:
            return []
        here = sampler.keys(sampler.state.population.here())
        self.apply(sampler, {key: float(weights[key]) for key in here if key in weights})
        others = [key for key in here if key not in weights]
        if len(others) == len(here):
            raise ValueError(
                f"{self.options.journal} has clients {shown(here)}, and weights= names "
                f"{shown(weights)}; give the weights of its clients, or begin another file"
            )
        return others

    def apply(self, sampler: AnySampler, weights: Mapping[Key, float]) -> None:
        """Pass on to the sampler the weights of known clients that have changed."""
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
        """Take new weights from the user, in the units of the others."""
        positive_weights(list(weights.values()), list(weights))
        sampler.ids(list(weights))  # refuses unknown keys
        self.apply(sampler, weights)
        self._changed |= weights
        self._weights |= weights

    def problem(self, key: Key, size: float | None, known: Collection[Key] | None) -> str | None:
        """The reason why a client takes no part. None if it takes part.

        Args:
            key: The name of the client.
            size: The size of its data that the client reports.
            known: All clients of the population. None before the sampler is begun, and for
                populations that may change.
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

"""A sampler in the round loop."""

from typing import Any
from zlib import crc32

import numpy as np

from kvib.clients.rates import YOUNGER, EstimatedRate, Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.estimate import unbiased
from kvib.estimators.streaming import Coefficients, Estimation
from kvib.randomness import generator
from kvib.sampler.sampler import Sampler
from kvib.sim.chooser import Coming, Looked
from kvib.sim.exact import measures, needs_gram
from kvib.sim.full_round import FullRound, full_round
from kvib.sim.training import diverged
from kvib.types import Arrays, FloatArray, IntArray


class Sampled:
    """Draws with known probabilities: estimates are unbiased, and there are exact metrics."""

    coefficients: Coefficients = staticmethod(unbiased)

    def __init__(self, sampler: Sampler, begun_with: dict[str, Any] | None = None) -> None:
        self.sampler = sampler
        # before the first round, since rates are learned
        self._begun_with = _options(sampler) if begun_with is None else begun_with

    @property
    def weights(self) -> FloatArray:
        """λ of all clients, [N]."""
        return self.sampler.weights

    @property
    def guarantee(self) -> Guarantee:
        """Consistent, where rates of answers are learned."""
        return self.sampler.state.rates.guarantee

    @property
    def rates(self) -> Rates:
        """The sampler's own rates."""
        return self.sampler.state.rates

    @property
    def waiting(self) -> IntArray:
        """Clients in their cool-down."""
        return self.sampler.state.cool_down.ids

    @property
    def wants_updates(self) -> bool:
        """For a memory, a guard or sketches."""
        state, guard = self.sampler.state, self.sampler.guard
        return state.memory is not None or guard is not None or state.sketches.size > 0

    def look(self, coming: Coming) -> Looked:
        """Norms of all clients, if the policy draws by them; exact metrics, if they are due."""
        sampler, needs_norms = self.sampler, self.sampler.policy.needs_norms
        asked = {"asked": float(len(sampler) if needs_norms else 0)}
        if not coming.exact and not needs_norms:
            return Looked(None, asked)
        everybody = self._everybody(coming)
        norms = everybody.norms if needs_norms else None
        if norms is not None and not everybody.sound:
            raise diverged(int(np.flatnonzero(~np.isfinite(norms))[0]), coming.round)
        if not coming.exact or not everybody.sound:
            return Looked(norms, asked)
        p = sampler.probabilities(coming.there, norms=norms)
        rng = generator(coming.training.seed, coming.round, "exact variance")
        exact = measures(sampler, everybody, coming.stakes, p, coming.coefficients, rng)
        return Looked(norms, asked | exact)

    def _everybody(self, coming: Coming) -> FullRound:
        """The updates of all clients; their inner products where a variance needs them, and there
        is memory for them."""
        with_gram = coming.exact and needs_gram(self.sampler.procedure)
        with_gram = with_gram and len(self.sampler) * coming.model.nbytes <= coming.gram_bytes
        return full_round(
            coming.training,
            coming.model,
            coming.round,
            self.weights,
            coming.stakes,
            self.sampler.state.memory,
            with_gram,
        )

    def draw(self, coming: Coming, signals: FloatArray | None) -> Cohort:
        """A draw among those who are there."""
        return self.sampler.draw(coming.there, norms=signals)

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """The sampler's own."""
        return self.sampler.begin(cohort, coefficients)

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """The sampler's own."""
        self.sampler.update(cohort, norms)

    def about(self) -> dict[str, Any]:
        """What the sampler was given."""
        sampler = self.sampler
        return {
            "policy": repr(sampler.policy),
            "estimator": repr(sampler.estimator),
            "guard": repr(sampler.guard),
            "sketch": sampler.state.sketches.size,
            "procedure": repr(sampler.procedure),
            **self._begun_with,
        }

    def check_checkpoint(self) -> None:
        """A sampler in a journal has a file of its own."""
        if type(self.sampler) is not Sampler:
            raise ValueError(
                f"a {type(self.sampler).__name__} sampler keeps a file of its own, which a "
                "checkpoint cannot turn back; give a plain Sampler, or no folder"
            )

    def packed(self) -> Arrays:
        """The sampler as arrays."""
        return self.sampler.packed()

    def unpacked(self, arrays: Arrays) -> "Sampled":
        """The sampler that was packed."""
        policy, procedure = self.sampler.policy, self.sampler.procedure
        return Sampled(Sampler.unpacked(arrays, policy, procedure), self._begun_with)


def _options(sampler: Sampler) -> dict[str, Any]:
    """What else a sampler was given; long arrays by their checksums."""
    state = sampler.state
    prices, known = state.prices, state.rates.packed(len(sampler))
    rates: dict[str, list[int]] = {"response": [], "availability": []}
    for name in sorted(known):
        part, _, field = name.partition(".")
        if field not in YOUNGER:
            rates[part].append(_check(known[name]))
    lowest = {f"lowest {part}": float(known[f"{part}.lowest"]) for part in rates}
    return {
        "cool_down": state.cool_down.rounds,
        "over_select": prices.over_select,
        "variables": [_check(state.eligible.variables)],
        "cost": [] if prices.cost is None else [_check(prices.cost[: len(sampler)])],
        **rates,
        **{
            name: bound
            for name, bound in lowest.items()
            if bound not in (0.0, EstimatedRate.lowest)
        },
    }


def _check(array: Any) -> int:
    return crc32(np.asarray(array).tobytes())

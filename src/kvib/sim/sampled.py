"""A sampler as the chooser of the round loop."""

from typing import Any
from zlib import crc32

import numpy as np

from kvib.clients.rates import YOUNGER, EstimatedRate, Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.estimate import unbiased
from kvib.estimators.streaming import Coefficients, Estimation
from kvib.randomness import generator
from kvib.sampler.sampler import Sampler
from kvib.sim.chooser import BeforeDraw, UpcomingRound
from kvib.sim.exact import measures, needs_gram
from kvib.sim.full_round import FullRound, full_round
from kvib.sim.training import diverged
from kvib.types import Arrays, FloatArray, IntArray


class Sampled:
    """A sampler draws with known probabilities, so that exact metrics exist.

    Args:
        sampler: The sampler.
        begun_with: The options that the sampler had before the first round. None means that it has
            not drawn yet.
    """

    coefficients: Coefficients = staticmethod(unbiased)

    def __init__(self, sampler: Sampler, begun_with: dict[str, Any] | None = None) -> None:
        self.sampler = sampler
        # The options are read before the first round, since learned rates change later.
        self._begun_with = _options(sampler) if begun_with is None else begun_with

    @property
    def weights(self) -> FloatArray:
        """λ of all clients, [N]."""
        return self.sampler.weights

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the sampler's estimates: consistent where rates are learned."""
        return self.sampler.state.rates.guarantee

    @property
    def rates(self) -> Rates:
        """The rates that the sampler divides by."""
        return self.sampler.state.rates

    @property
    def waiting(self) -> IntArray:
        """The clients that cannot be drawn because of the cool-down."""
        return self.sampler.state.cool_down.ids

    @property
    def wants_updates(self) -> bool:
        """Whether a memory, a guard or sketches need single updates."""
        state, guard = self.sampler.state, self.sampler.guard
        return state.memory is not None or guard is not None or state.sketches.size > 0

    def look(self, upcoming: UpcomingRound) -> BeforeDraw:
        """The norms of all clients if the policy draws by them, and exact metrics if due."""
        sampler, needs_norms = self.sampler, self.sampler.policy.needs_norms
        asked = {"asked": float(len(sampler) if needs_norms else 0)}
        if not upcoming.exact and not needs_norms:
            return BeforeDraw(None, asked)
        full = self._full_round(upcoming)
        norms = full.norms if needs_norms else None
        if norms is not None and not full.sound:
            raise diverged(int(np.flatnonzero(~np.isfinite(norms))[0]), upcoming.round)
        if not upcoming.exact or not full.sound:
            return BeforeDraw(norms, asked)
        p = sampler.probabilities(upcoming.available, norms=norms)
        rng = generator(upcoming.training.seed, upcoming.round, "exact variance")
        exact = measures(sampler, full, upcoming.stakes, p, upcoming.coefficients, rng)
        return BeforeDraw(norms, asked | exact)

    def _full_round(self, upcoming: UpcomingRound) -> FullRound:
        """The full round, with inner products where the variance needs them and they fit."""
        with_gram = upcoming.exact and needs_gram(self.sampler.procedure)
        with_gram = with_gram and len(self.sampler) * upcoming.model.nbytes <= upcoming.gram_bytes
        return full_round(
            upcoming.training,
            upcoming.model,
            upcoming.round,
            self.weights,
            upcoming.stakes,
            self.sampler.state.memory,
            with_gram,
        )

    def draw(self, upcoming: UpcomingRound, signals: FloatArray | None) -> Cohort:
        """A cohort of the clients that are available."""
        return self.sampler.draw(upcoming.available, norms=signals)

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """An estimate to which updates are added. The sampler learns from them."""
        return self.sampler.begin(cohort, coefficients)

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Let the sampler learn from norms alone."""
        self.sampler.update(cohort, norms)

    def about(self) -> dict[str, Any]:
        """The options of the sampler, by which a checkpoint is recognised."""
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
        """Refuse a journalled sampler, whose own file a checkpoint cannot turn back."""
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
    """The other options of a sampler, with checksums in place of arrays."""
    state = sampler.state
    prices, packed = state.prices, state.rates.packed(len(sampler))
    rates: dict[str, list[int]] = {"response": [], "availability": []}
    for name in sorted(packed):
        part, _, field = name.partition(".")
        if field not in YOUNGER:
            rates[part].append(_check(packed[name]))
    lowest = {f"lowest {part}": float(packed[f"{part}.lowest"]) for part in rates}
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
    """The checksum of an array."""
    return crc32(np.asarray(array).tobytes())

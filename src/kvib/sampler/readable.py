"""The properties and methods of a sampler that do not change it."""

from __future__ import annotations  # so that help() shows names, not what they stand for

import operator
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import warn
from kvib.cohort import Guarantee
from kvib.estimators.difference import Difference
from kvib.estimators.guard import Guard
from kvib.files import storage
from kvib.policies import Policy
from kvib.policies.policy import Forecasts
from kvib.procedures import Procedure
from kvib.sampler import saving
from kvib.sampler.drawing import Conditions
from kvib.sampler.state import State
from kvib.types import Arrays, FloatArray, IntArray, Key

MOVED = {
    "balanced_on": "eligible.balanced_on",
    "population": "population",
    "prices": "prices",
    "reach": "rates",
    "remembered": "memory",
    "resting": "cool_down",
    "sketches": "sketches",
    "usual_step": "step_length.value",
    "variables": "eligible.variables",
}
"""Attributes of a sampler in version 0.1, and where they are in its state."""


class ReadableSampler:
    """The properties and methods that `Sampler` and `Journalled` share, from one `State`.

    Args:
        state: The parts of the sampler.
    """

    def __init__(self, state: State) -> None:
        self.state: Final = state
        """The parts of the sampler: clients, what was learned, open rounds. Look at them, and let
        `draw`, `update` and the other methods change them."""

    @property
    def policy(self) -> Policy[Any]:
        """The policy that draws now."""
        return self.state.learner.policy

    @property
    def procedure(self) -> Procedure:
        """The procedure that draws now."""
        return self.state.eligible.procedure

    @property
    def budget(self) -> float:
        """The budget of a round: clients, or costs, or answers."""
        return self.state.prices.budget

    @property
    def seed(self) -> int:
        """The seed, which decides every draw together with the round number."""
        return self.state.drawing.seed

    @property
    def guard(self) -> Guard | None:
        """The bound on what one client can add to a step, if there is one."""
        return self.state.learning.guard

    @property
    def estimator(self) -> Difference | None:
        """The estimator that remembers updates, if there is one."""
        return self.state.estimator

    @property
    def round(self) -> int:
        """The number of rounds that were drawn."""
        return self.state.rounds.round

    @property
    def weights(self) -> FloatArray:
        """λ of every client, [N], with sum 1. It is 0 for clients that have left."""
        shares = self.state.population.shares()
        shares.flags.writeable = False
        return shares

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the last round's estimate, now that it is known who answered.

        It is that of the cohort, with three exceptions. It is "biased" where a client was silent
        whose answer was certain, where the guard cut something off, or where coefficients were not
        `unbiased`.
        """
        return self.state.learning.guarantee

    @property
    def cut(self) -> float:
        """What the guard cut off in the last round: a bound on its bias, 0 where it did nothing."""
        return self.state.learning.cut

    if not TYPE_CHECKING:  # names of version 0.1, which 0.3 removes

        def __getattr__(self, name: str) -> Any:
            place = MOVED.get(name)
            if place is None:
                raise AttributeError(
                    f"{type(self).__name__!r} has no attribute {name!r}", name=name
                )
            warn(f"sampler.{name} is now sampler.state.{place}", DeprecationWarning)
            return operator.attrgetter(place)(self.state)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in MOVED:
                raise AttributeError(f"sampler.{name} is now sampler.state.{MOVED[name]}")
            super().__setattr__(name, value)

    def __len__(self) -> int:
        """The number of clients, including those that have left. All ids are below it."""
        return self.state.population.count

    def __repr__(self) -> str:
        return (
            f"<Sampler of {len(self)} clients: {self.policy!r}, {self.procedure!r}, "
            f"budget {self.budget:g}, seed {self.seed}, round {self.round}>"
        )

    def ids(self, keys: Any) -> IntArray:
        """Look up the ids of clients by their keys.

        Args:
            keys: One key or a list of them.
        """
        return self.state.population.ids(keys)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """Look up the keys of clients by their ids.

        Args:
            ids: One id or a list of them.
        """
        return self.state.population.keys(ids)

    def probabilities(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> FloatArray:
        """Compute the expected counts of all clients for the coming round, [N].

        Args:
            available: The clients that can be drawn, as in `draw`.
            budget: The budget of the round, as in `draw`.
            norms: ‖g‖ of all clients, as in `draw`.
            absent: The clients that cannot be drawn, as in `draw`.
        """
        with self.state.lock:
            conditions = Conditions(available, budget, norms, absent)
            return self.state.drawing.probabilities(conditions)

    def forecast(self, level: float = 0.9) -> Forecasts:
        """Forecast ‖g‖ of every client in the coming round: medians and intervals.

        With an estimator that remembers it is ‖g − βh‖, which is what the policy learns from.

        Args:
            level: The probability of the intervals.
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not a probability between 0 and 1")
        state = self.state
        with state.lock:
            ids = np.arange(len(self))
            rates = (state.rates.at(ids), state.rates.available(ids))
            return state.learner.forecast(self.round, level, *rates)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save everything to one `.npz` file, atomically. Only its owner can read it.

        Args:
            path: The path of the file.
        """
        storage.write(path, self.packed())

    def packed(self) -> Arrays:
        """Pack everything into arrays, to be kept in a file of your own. See `Sampler.unpacked`."""
        with self.state.lock:
            return saving.packed(self.state)

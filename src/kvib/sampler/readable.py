"""What can be asked of a sampler without changing it."""

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
    """The questions that `Sampler` and `Journalled` answer alike, from one `State`.

    Args:
        state: the parts of the sampler.
    """

    def __init__(self, state: State) -> None:
        self.state: Final = state
        """The parts of the sampler: clients, what was learned, open rounds. They are to be looked
        at; `draw`, `update` and the other methods change them."""

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
        """Clients per round, or costs, or answers."""
        return self.state.prices.budget

    @property
    def seed(self) -> int:
        """The seed that decides every draw, with the number of its round."""
        return self.state.drawing.seed

    @property
    def guard(self) -> Guard | None:
        """The bound on what one client can do, if there is one."""
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
        """λ of every client, [N], with sum 1; 0 for those who left."""
        shares = self.state.population.shares()
        shares.flags.writeable = False
        return shares

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the last round's estimate, now that it is known who answered.

        It is that of the cohort, or "biased": where a client is missing whose answer was certain,
        where the guard cut something off, or where coefficients were not `unbiased`.
        """
        return self.state.learning.guarantee

    @property
    def cut(self) -> float:
        """What the guard cut off in the last round: a bound on its bias, 0 where it did nothing."""
        return self.state.learning.cut

    if not TYPE_CHECKING:  # names of version 0.1; gone in 0.3

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
        """The number of clients, those who left included: ids are below it."""
        return self.state.population.count

    def __repr__(self) -> str:
        return (
            f"<Sampler of {len(self)} clients: {self.policy!r}, {self.procedure!r}, "
            f"budget {self.budget:g}, seed {self.seed}, round {self.round}>"
        )

    def ids(self, keys: Any) -> IntArray:
        """Ids of clients by their keys."""
        return self.state.population.ids(keys)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """Keys of clients by their ids."""
        return self.state.population.keys(ids)

    def probabilities(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> FloatArray:
        """Expected counts of all clients for the coming round, [N]; same arguments as `draw`."""
        with self.state.lock:
            given = Conditions(available, budget, norms, absent)
            return self.state.drawing.probabilities(given)

    def forecast(self, level: float = 0.9) -> Forecasts:
        """‖g‖ of every client in the coming round: medians, and intervals of this probability.

        With an estimator that remembers it is ‖g − βh‖, which is what the policy learns from.
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not a probability between 0 and 1")
        state = self.state
        with state.lock:
            ids = np.arange(len(self))
            rates = (state.rates.at(ids), state.rates.available(ids))
            return state.learner.forecast(self.round, level, *rates)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one `.npz` file, atomically, that only its owner can read."""
        storage.write(path, self.packed())

    def packed(self) -> Arrays:
        """Everything as arrays, to be kept in a file of your own; see `Sampler.unpacked`."""
        with self.state.lock:
            return saving.packed(self.state)

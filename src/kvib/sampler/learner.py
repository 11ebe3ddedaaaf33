"""A policy with what it has learned."""

from copy import copy
from typing import Any, Self

import numpy as np

from kvib import growing
from kvib.checks import SMALLEST_FEEDBACK
from kvib.cohort import Cohort
from kvib.files import storage
from kvib.files.intact import demand
from kvib.files.part import Part, Saved
from kvib.policies import Forecasts, Policy, Setting
from kvib.types import Arrays, FloatArray, IntArray


class Learner(Part):
    """A policy and what it has learned. Weights are in units that do not move with their total.

    Args:
        policy: The policy.
        setting: What the policy may know before the first round.
    """

    def __init__(self, policy: Policy[Any], setting: Setting) -> None:
        self.policy, self.cap = policy, setting.cap
        self.state = policy.start(setting)
        if not hasattr(self.state, "_fields"):
            raise ValueError(
                f"{type(policy).__name__}.start returned {self.state!r}; return a NamedTuple of "
                "arrays and numbers, which fits into a state file"
            )

    def scores(self, ids: IntArray) -> FloatArray:
        """The scores of these clients, [m], checked to be positive as `Policy.lasting` demands."""
        scores = self.policy.checked_scores(self.state, ids)
        if len(ids) and scores.min() == 0:
            raise ValueError(
                f"{type(self.policy).__name__} gives client {ids[scores.argmin()]} the score 0; a "
                "policy with `lasting` scores must give every client a positive one, or set "
                "lasting = False"
            )
        return scores

    def expected(
        self,
        ids: IntArray,
        round: int,
        budget: float,
        weights: FloatArray,
        cost: FloatArray | None = None,
    ) -> FloatArray:
        """Expected counts for a draw among these clients, [m]. See `Policy.expected`."""
        return self.policy.expected(
            self.state, ids, round, budget, self.cap, weights=weights, cost=cost
        )

    def learn(self, answers: Cohort, pi: FloatArray) -> None:
        """Learn from λ‖g‖ of the clients of a cohort that answered."""
        feedback = _feedback(pi, answers.answer_probability, answers.availability)
        self.state = self.policy.learned(self.state, answers, feedback)

    def take_over(self, other: "Learner") -> None:
        """Become another learner: its policy, and what it has learned."""
        self.policy, self.cap, self.state = other.policy, other.cap, other.state

    def informed(
        self, pi: FloatArray, answer_probability: FloatArray, availability: FloatArray
    ) -> Self:
        """A learner for one draw that knows λ‖g‖ of all clients."""
        other = copy(self)
        other.state = self.policy.inform(
            self.state, _feedback(pi, answer_probability, availability)
        )
        return other

    def forecast(
        self, round: int, level: float, answer_probability: FloatArray, availability: FloatArray
    ) -> Forecasts:
        """Forecasts of ‖g‖ of every client in the coming round. The policy learned ‖g‖/√(q·a)."""
        learned = self.policy.forecast(self.state, round, level)
        factor = np.sqrt(answer_probability * availability)
        return Forecasts(*(factor * part[: len(factor)] for part in learned))

    def takes_changes(self) -> None:
        """Raise where the policy refuses newcomers or new weights, before anything changes."""
        no_clients, no_weights = np.empty(0, np.int64), np.empty(0)
        self.enter(no_clients, no_weights)
        self.reweigh(no_clients, no_weights, no_weights)

    def enter(self, ids: IntArray, weights: FloatArray) -> None:
        """Take in newcomers."""
        self.state = self.policy.enter(self.state, ids, weights)

    def reweigh(self, ids: IntArray, weights: FloatArray, ratio: FloatArray) -> None:
        """Take in new weights, and the ratio of new to old weights."""
        self.state = self.policy.reweigh(self.state, ids, weights, ratio)

    def resized(self, clients: int, budget: float) -> None:
        """Take in the number of clients, and the budget for them."""
        self.state = self.policy.resized(self.state, clients, budget)

    def widen(self, entries: int) -> None:
        """Make room for more clients."""
        arrays = {name: getattr(self.state, name) for name in self.policy.per_client}
        wider = {name: growing.widened(array, entries) for name, array in arrays.items()}
        self.state = self.state._replace(**wider)

    ARRAYS = ("state",)

    def packed(self, clients: int) -> Arrays:
        """What the policy has learned, as arrays."""
        fields = {
            name: value[..., :clients] if name in self.policy.per_client else value
            for name, value in self.state._asdict().items()
        }
        return storage.pack("state", type(self.state)(**fields))

    def restore(self, saved: Saved) -> None:
        """Take over what was saved, under the names that the policy has today."""
        fields, clients = type(self.state)._fields, saved.clients
        earlier = self.policy.earlier_fields
        arrays = {earlier.get(name, name): array for name, array in saved.part("state").items()}
        if set(arrays) != set(fields):
            raise storage.OtherFileError(
                f"the file has state fields {sorted(arrays)}, {type(self.policy).__name__} needs "
                f"{sorted(fields)}; load it with the policy that was saved"
            )
        named = {f"state.{name}": array for name, array in arrays.items()}
        self.state = storage.unpack("state", self.state, named, clients)
        for name in self.policy.per_client:
            each = getattr(self.state, name)
            demand(each.shape[-1] == clients, f"state.{name} is of shape {each.shape}")
        self.policy.check(self.state, clients, saved.round)


def _feedback(
    pi: FloatArray, answer_probability: FloatArray, availability: FloatArray
) -> FloatArray:
    """The feedback that policies learn from, so that they minimise the variance with silence.

    Silence after the draw leaves Σπ²/(r·p) to be minimised, as if the feedback were π/√r. The
    estimate takes π/a of clients that are available with probability a. Both together make
    π/(a·√r), and with q = a·r that is π/√(a·q).
    """
    feedback = pi / np.sqrt(answer_probability * availability)
    return np.where(feedback < SMALLEST_FEEDBACK, 0.0, feedback)

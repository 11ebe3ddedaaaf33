"""A policy: from what was observed to scores and expected counts."""

from __future__ import annotations  # so that help() shows names, not what they stand for

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

import numpy as np

from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import NOT_NEGATIVE, Range
from kvib.procedures import Procedure
from kvib.types import FloatArray, IntArray
from kvib.waterfill import waterfill

PolicyState = TypeVar("PolicyState", bound=tuple[Any, ...])

# A score of 0 would mean probability 0. This far below the largest it changes no other client.
_SMALLEST_SCORE = 2.0**-200

_TOGETHER = 1 << 16
"""Clients whose scores are looked at together when all are."""


_SPLIT = 2.0**12 + 1
"""Veltkamp's factor, which leaves 41 of 53 binary digits."""


class Setting(NamedTuple):
    """What a policy may know before the first round."""

    weights: FloatArray
    """λ, [N], Σλ = 1."""
    budget: float
    cap: float
    """Largest expected count of a client under the procedure: 1, or inf with replacement."""
    variables: FloatArray = np.empty((0, 0))
    """What else the server knows of every client, [N, d]."""


class Forecasts(NamedTuple):
    """‖g‖ of every client in the coming round, [N] each."""

    median: FloatArray
    low: FloatArray
    high: FloatArray


class Exploration(NamedTuple):
    """How far probabilities stay from 0, in units of the uniform probability K/N."""

    mix: float = 0.0
    """θ: p̃ = (1−θ)·p + θ·K/N."""
    floor: float = 0.0
    """p ≥ floor·K/N."""
    by_weight: bool = False
    """Mix with p ∝ λ (water-filled) instead of uniform: then λ/p ≤ max(λ, 1/K)/θ, without costs."""


class Policy(Generic[PolicyState]):
    """Frozen configuration; all that changes is in a state, which the sampler owns.

    A policy needs `procedure`, `start` and `scores`; one that learns also `observe`. Every other
    member has a default that suits most policies. What is marked `final` is called by the sampler
    and not to be overridden. Subclasses are frozen dataclasses whose fields are numbers, and their
    state is a NamedTuple of arrays and numbers, so that both fit into a state file.
    """

    procedure: ClassVar[Procedure]
    """The procedure it was published with, used unless the sampler is told otherwise."""
    needs_norms: ClassVar[bool] = False
    """Whether every draw must be told all norms (`draw(norms=…)`)."""
    equal: ClassVar[bool] = False
    """Whether all clients always have the same score, as `without_replacement` needs it."""
    lasting: ClassVar[bool] = False
    """True if a round changes only the scores of those it observed, until the `epoch` changes.

    Procedures with `by_index` then draw from an index, in time that does not grow with N. Every
    client must always have a positive score, also one that answered with a norm of 0, and
    `exploration` must be a `mix`, not a `floor`. Both are tried on two clients when a sampler is
    made, and scores are checked again whenever they change.
    """
    per_client: ClassVar[tuple[str, ...]] = ()
    """Arrays of the state with one entry per client along the last axis."""
    earlier_fields: ClassVar[Mapping[str, str]] = {}
    """Fields of the state that had other names in earlier files, and their names today."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """What the fields of the state can be, by name: a file that says otherwise is refused."""

    def start(self, setting: Setting) -> PolicyState:
        """The state before the first round."""
        raise NotImplementedError

    def scores(self, state: PolicyState, ids: IntArray) -> FloatArray:
        """How much each of these clients matters, up to a common factor, [m]."""
        raise NotImplementedError

    def epoch(self, state: PolicyState) -> int:
        """Changes when the scores of all clients have, for policies with `lasting` scores."""
        return 0

    def exploration(self, state: PolicyState, round: int) -> Exploration:
        """How far probabilities stay from 0 in this round (counted from 0)."""
        return Exploration()

    def observe(self, state: PolicyState, cohort: Cohort, feedback: FloatArray) -> PolicyState:
        """Learn from those of a cohort who answered; may change arrays of the state in place.

        Args:
            state: what is known so far.
            cohort: who answered, never empty. Importance weights are 1/`expected_answers`.
            feedback: λ‖g‖ of each, [m].
        """
        return state

    def forecast(self, state: PolicyState, round: int, level: float) -> Forecasts:
        """What the coming round will show, for policies that know."""
        raise ValueError(f"{type(self).__name__} does not forecast norms; kvib.Forecast() does")

    def inform(self, state: PolicyState, feedback: FloatArray) -> PolicyState:
        """The state for one draw, given the feedback of all N clients in advance."""
        raise ValueError(
            f"{type(self).__name__} does not use norms at draw; call draw() without norms"
        )

    def enter(self, state: PolicyState, ids: IntArray, weights: FloatArray) -> PolicyState:
        """Clients join: their entries in the arrays of the state become what is known of newcomers.

        Args:
            state: whose `per_client` arrays have room for them.
            ids: of the new ones; nobody: to see whether anybody could.
            weights: λ of each, in the units of the first `Setting`.
        """
        raise ValueError(
            f"{type(self).__name__} does not take clients that join later; start a new sampler, or "
            "use a policy that has `enter`, such as kvib.Forecast()"
        )

    def reweigh(
        self, state: PolicyState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> PolicyState:
        """Weights of clients changed: what was learned of λ‖g‖ is scaled by new λ / old λ."""
        raise ValueError(
            f"{type(self).__name__} does not take weights that change; start a new sampler, or use "
            "a policy that has `reweigh`, such as kvib.Forecast()"
        )

    def resized(self, state: PolicyState, clients: int, budget: float) -> PolicyState:
        """The number of clients or the budget has changed to this."""
        return state

    @final
    def checked_scores(self, state: PolicyState, ids: IntArray) -> FloatArray:
        """The `scores` of these clients, or an error where no draw can be made of them."""
        scores = np.asarray(self.scores(state, ids), dtype=np.float64)
        if scores.shape != ids.shape:
            raise ValueError(
                f"{type(self).__name__}.scores gave an array of shape {scores.shape} for "
                f"{len(ids)} clients; return one number for each of `ids`, in their order"
            )
        if len(ids) == 0 or (scores.min() >= 0 and scores.max() < np.inf):  # NaN fails too
            return scores
        bad = np.flatnonzero(~((scores >= 0) & (scores < np.inf)))[0]
        raise ValueError(
            f"{type(self).__name__}.scores gave client {ids[bad]} the score {scores[bad]}; "
            "a score is a finite number ≥ 0"
        )

    def check(self, state: PolicyState, clients: int, round: int) -> None:
        """Refuse a state that was read and that no run can have led to.

        Every field must be in its range, and a draw be possible.

        Args:
            state: what a file says.
            clients: how many it is of.
            round: the next one.
        """
        for name, allowed in self.ranges.items():
            intact.within(f"state.{name}", getattr(state, name), allowed)
        for low in range(0, 0 if self.needs_norms else clients, _TOGETHER):
            self.checked_scores(state, np.arange(low, min(low + _TOGETHER, clients)))
        mix, floor, _ = self.exploration(state, round)
        intact.within("the mixture that the state says", mix, Range("0 to 1", 0.0, 1.0))
        intact.within("the floor that the state says", floor, NOT_NEGATIVE)

    @final
    def learned(self, state: PolicyState, cohort: Cohort, feedback: FloatArray) -> PolicyState:
        """The state after `observe`, or an error where that returned no state."""
        after = self.observe(state, cohort, feedback)
        if type(after) is type(state):
            return after
        raise ValueError(
            f"{type(self).__name__}.observe returned {after!r}, not a {type(state).__name__}; "
            "return the state, also where its arrays were changed in place"
        )

    def solve(
        self, scores: FloatArray, budget: float, floor: float, cap: float, cost: FloatArray | None
    ) -> FloatArray:
        """Turn scores into expected counts with sum `budget`, or Σ cost·expected = budget, [m]."""
        return waterfill(scores, budget, floor, cap, cost)

    @final
    def expected(
        self,
        state: PolicyState,
        ids: IntArray,
        round: int,
        budget: float,
        cap: float,
        *,
        weights: FloatArray | None = None,
        cost: FloatArray | None = None,
    ) -> FloatArray:
        """Expected counts for a draw among these clients, positive, with sum `budget`, [m].

        Args:
            state: what is known so far.
            ids: who can be drawn.
            round: counted from 0.
            budget: Σ expected, or Σ cost·expected.
            cap: largest expected count.
            weights: λ of these clients, for a mixture `by_weight`.
            cost: of one draw of each.
        """
        scores = self.checked_scores(state, ids)
        largest = scores.max()
        mix, floor, by_weight = self.exploration(state, round)
        if scores.min() == 0 < largest and mix == floor == 0 and not self.needs_norms:
            raise ValueError(
                f"{type(self).__name__} gives client {ids[scores.argmin()]} the score 0: it would "
                "never be drawn, and the estimate be biased; give it a positive score, or "
                "everybody a share by `exploration`"
            )
        scores = np.maximum(scores, largest * _SMALLEST_SCORE) if largest > 0 else scores + 1.0
        uniform = budget / (len(ids) if cost is None else float(cost.sum()))
        p = self.solve(scores, budget, min(floor, 1.0) * uniform, cap, cost)
        if mix == 0:
            return p
        explored: float | FloatArray = min(uniform, cap)
        if by_weight:
            if weights is None:
                raise ValueError("a mixture by weight must know the weights")
            explored = waterfill(weights, budget, 0.0, cap, cost)
        return (1 - mix) * p + mix * explored


def rounded(scores: FloatArray) -> FloatArray:
    """Scores to 41 of their 53 binary digits, by Veltkamp's split; below 4e304, lest it overflow.

    The last digits of exponentials, logarithms and matrix products differ between libraries and
    CPUs. An index sorts scores by their exponent, and where weights are 1, 2, 4, … many scores are
    powers of two: on the border between two buckets, where the last digit would choose.
    """
    far = scores * _SPLIT
    far += scores - far
    return np.asarray(far)

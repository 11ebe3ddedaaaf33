"""The base class of policies, which turn what was observed into scores and expected counts."""

from __future__ import annotations  # so that help() shows the names of types, not their contents

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

_SMALLEST_SCORE = 2.0**-200
"""The least score in units of the largest. A score of 0 would mean the probability 0. A score this
small changes the probability of no other client."""

_TOGETHER = 1 << 16
"""Clients whose scores are checked at once where all are checked."""


class Setting(NamedTuple):
    """A setting is what a policy knows before the first round.

    A sampler passes it to `Policy.start`. It holds λ and K, the limit of the procedure, and what
    else the server knows. N is the length of `weights`.

    Examples:
        >>> import numpy as np
        >>> from kvib.policies import Setting, Uniform
        >>> Uniform().start(Setting(weights=np.array([0.5, 0.5]), budget=1.0, cap=1.0))
        UniformState()
    """

    weights: FloatArray
    """λ of every client, [N], in units of the total weight at the beginning of the run.

    Σλ = 1 for a new sampler. A policy that takes over later (`Sampler.switch`) can start after
    clients joined, left or changed their weights. Then Σλ can differ from 1, and departed clients
    are included.
    """
    budget: float
    """The expected number of clients per round, K."""
    cap: float
    """The largest expected count of a client under the procedure: 1, or inf with replacement."""
    variables: FloatArray = np.empty((0, 0))
    """What else the server knows about every client, [N, d]."""


class Forecasts(NamedTuple):
    """Forecasts give ‖g‖ of every client in the coming round, with intervals.

    `Sampler.forecast(level)` returns them. The true norm lies between `low` and `high` with the
    probability `level`, if the model of the policy is right. Before the first update every entry
    is NaN.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.Forecast(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> cohort = sampler.draw()
        >>> sampler.update(cohort, norms=[2.0, 2.0])
        >>> sampler.forecast().median.round(3)
        array([2., 2., 2., 2.])
    """

    median: FloatArray
    """The median of ‖g‖, [N]."""
    low: FloatArray
    """The lower end of the interval, [N]."""
    high: FloatArray
    """The upper end of the interval, [N]."""


class Exploration(NamedTuple):
    """An exploration keeps probabilities away from 0, in units of the uniform probability K/N.

    A client with the probability 0 would never be drawn, and the estimate would be biased. A policy
    whose scores can be 0, or close to 0, mixes its probabilities with a share of exploration, or
    raises them to a floor:

    p̃ = (1−θ)·p + θ·K/N, or p ≥ floor·K/N.

    Examples:
        >>> from kvib.policies import Exploration
        >>> Exploration(mix=0.1)
        Exploration(mix=0.1, floor=0.0, by_weight=False)
    """

    mix: float = 0.0
    """The share θ of the budget that is spent on exploration: p̃ = (1−θ)·p + θ·K/N."""
    floor: float = 0.0
    """The smallest probability: p ≥ floor·K/N."""
    by_weight: bool = False
    """Whether to mix with p ∝ λ (water-filled) instead of the uniform probability. Then
    λ/p ≤ max(λ, 1/K)/θ, if clients have no costs."""


class Policy(Generic[PolicyState]):
    """A policy gives every client a score, and learns scores from the updates of drawn clients.

    It is a frozen configuration. Everything that changes is in its state, which the sampler owns
    and saves. Clients are drawn in proportion to their scores, as far as the cap and the
    exploration allow: p = clip(c·score, floor, cap).

    A policy needs `procedure`, `start` and `scores`. A policy that learns also needs `observe`.
    Every other member has a default that suits most policies. Members marked `final` are called by
    the sampler and must not be overridden. A subclass is a frozen dataclass whose fields are
    numbers, and its state is a NamedTuple of arrays and numbers, so that both fit into a state
    file.

    Examples:
        >>> from dataclasses import dataclass
        >>> from typing import NamedTuple
        >>> import kvib
        >>> class NoState(NamedTuple):
        ...     pass
        >>> @dataclass(frozen=True)
        ... class PreferOdd(kvib.Policy[NoState]):
        ...     procedure = kvib.pivotal
        ...     def start(self, setting):
        ...         return NoState()
        ...     def scores(self, state, ids):
        ...         return 1.0 + 2.0 * (ids % 2)
        >>> kvib.Sampler(PreferOdd(), weights=[1, 1, 1, 1], budget=2).probabilities()
        array([0.25, 0.75, 0.25, 0.75])
    """

    procedure: ClassVar[Procedure]
    """The default procedure: the one that the policy was published with."""
    needs_norms: ClassVar[bool] = False
    """Whether every draw needs the norms of all clients (`draw(norms=…)`)."""
    equal: ClassVar[bool] = False
    """Whether all clients always have the same score. `without_replacement` needs that."""
    lasting: ClassVar[bool] = False
    """Whether a round changes only the scores of observed clients, until the `epoch` changes.

    If so, procedures with `by_index` draw from an index, in time that does not grow with N. Every
    client must always have a positive score, also after it answered with a norm of 0, and
    `exploration` must be a `mix`, not a `floor`. A new sampler checks both on two clients. Scores
    are checked again whenever they change.
    """
    per_client: ClassVar[tuple[str, ...]] = ()
    """The names of the state's arrays that have one entry per client along the last axis."""
    earlier_fields: ClassVar[Mapping[str, str]] = {}
    """The fields of the state that had other names in earlier files, with their names today."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """The ranges of the fields of the state, by name. A file with other values is refused."""

    def start(self, setting: Setting) -> PolicyState:
        """Return the state before the first round.

        Args:
            setting: The weights, the budget, the cap and the variables of the sampler.
        """
        raise NotImplementedError

    def scores(self, state: PolicyState, ids: IntArray) -> FloatArray:
        """Return the scores of these clients, [m], each ≥ 0. Only their ratios matter.

        Args:
            state: The state of the policy.
            ids: The ids of the clients, [m].
        """
        raise NotImplementedError

    def epoch(self, state: PolicyState) -> int:
        """Return a number that changes whenever the scores of all clients have changed.

        Only policies with `lasting` scores need it.

        Args:
            state: The state of the policy.
        """
        return 0

    def exploration(self, state: PolicyState, round: int) -> Exploration:
        """Return how far probabilities stay from 0 in a round.

        Args:
            state: The state of the policy.
            round: The number of the round, counted from 0.
        """
        return Exploration()

    def observe(self, state: PolicyState, cohort: Cohort, feedback: FloatArray) -> PolicyState:
        """Learn from a round, and return the new state.

        Arrays of the old state may be changed in place.

        Args:
            state: The state before the round.
            cohort: The clients that answered, never none. Importance weights are
                1/`expected_answers`.
            feedback: The feedback π = λ‖g‖ of each of them, [m]. Where answers can be missing it is
                divided by √(q·a).
        """
        return state

    def forecast(self, state: PolicyState, round: int, level: float) -> Forecasts:
        """Return forecasts of all norms, for policies that forecast.

        Args:
            state: The state of the policy.
            round: The number of the round that is forecast.
            level: The probability that an interval contains the norm.
        """
        raise ValueError(f"{type(self).__name__} does not forecast norms; kvib.Forecast() does")

    def inform(self, state: PolicyState, feedback: FloatArray) -> PolicyState:
        """Return the state for one draw for which the feedback of all clients is known.

        Args:
            state: The state of the policy.
            feedback: The feedback π = λ‖g‖ of all clients, [N]. Where answers can be missing it is
                divided by √(q·a).
        """
        raise ValueError(
            f"{type(self).__name__} does not use norms at draw; call draw() without norms"
        )

    def enter(self, state: PolicyState, ids: IntArray, weights: FloatArray) -> PolicyState:
        """Write what is known about new clients into the state, and return it.

        Args:
            state: The state, whose `per_client` arrays already have entries for them.
            ids: The ids of the new clients. An empty array asks whether clients may join at all.
            weights: λ of each, in the units of `Setting.weights`.
        """
        raise ValueError(
            f"{type(self).__name__} does not take clients that join later; start a new sampler, or "
            "use a policy that has `enter`, such as kvib.Forecast()"
        )

    def reweigh(
        self, state: PolicyState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> PolicyState:
        """Change the state for new weights: what was learned about λ‖g‖ is scaled by their ratio.

        Args:
            state: The state of the policy.
            ids: The ids of the clients whose weights changed.
            weights: The new λ of each, in the units of `Setting.weights`.
            ratio: The new λ divided by the old λ of each.
        """
        raise ValueError(
            f"{type(self).__name__} does not take weights that change; start a new sampler, or use "
            "a policy that has `reweigh`, such as kvib.Forecast()"
        )

    def resized(self, state: PolicyState, clients: int, budget: float) -> PolicyState:
        """Change the state for another number of clients or another budget.

        Args:
            state: The state of the policy.
            clients: The new number of clients N.
            budget: The new budget K.
        """
        return state

    @final
    def checked_scores(self, state: PolicyState, ids: IntArray) -> FloatArray:
        """Return the `scores` of these clients, or raise an error where no draw can use them.

        Args:
            state: The state of the policy.
            ids: The ids of the clients, [m].
        """
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
        """Refuse a state from a file that no run can have written.

        Every field must be in its range, and a draw must be possible.

        Args:
            state: The state that was read.
            clients: The number of clients N.
            round: The number of the next round.
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
        """Return the state after `observe`, or raise an error where it returned no state.

        Args:
            state: The state before the round.
            cohort: The clients that answered.
            feedback: The feedback π = λ‖g‖ of each of them, [m].
        """
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
        """Turn scores into expected counts with the sum `budget`, [m].

        Args:
            scores: The scores of the clients that can be drawn, [m].
            budget: The value of Σ expected, or of Σ cost·expected.
            floor: The smallest expected count.
            cap: The largest expected count.
            cost: The price of drawing each client, [m]. None means a price of 1 for every client.
        """
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
        """Return expected counts for a draw among these clients: positive, with the sum `budget`.

        Args:
            state: The state of the policy.
            ids: The ids of the clients that can be drawn, [m].
            round: The number of the round, counted from 0.
            budget: The value of Σ expected, or of Σ cost·expected.
            cap: The largest expected count.
            weights: λ of these clients, [m], for a mixture `by_weight`.
            cost: The price of drawing each client, [m]. None means a price of 1 for every client.
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

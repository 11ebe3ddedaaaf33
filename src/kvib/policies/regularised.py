"""The base of K-Vib and Vrb: follow the regularised leader on Σπ²/p, from partial feedback."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort
from kvib.files.intact import NOT_NEGATIVE, POSITIVE, demand, or_unknown
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.policies.rules import check_gain, check_rounds, horizon
from kvib.types import FloatArray, IntArray


class RegularisedState(NamedTuple):
    """The cumulative feedback of every client."""

    omega: FloatArray
    """ω of every client, [N]."""
    gamma: float
    """γ; NaN before the first feedback. It then stays as it is: a change would reshape all
    scores."""
    ratio: float
    """The number of clients per draw: N/K for K-Vib, N for Vrb."""


@dataclass(frozen=True)
class Regularised(Policy[RegularisedState]):
    """p ∝ √(ω + γ), mixed with uniform probabilities. ω estimates Σ_t π² of each client."""

    rounds: int | None = None
    gain: float | None = None
    mix: float | None = None
    gamma: float | None = None
    by_weight: bool = False

    lasting: ClassVar = True
    per_client: ClassVar = ("omega",)
    earlier_fields: ClassVar = {"cost": "omega"}
    ranges: ClassVar = {"omega": NOT_NEGATIVE, "gamma": or_unknown(POSITIVE), "ratio": POSITIVE}

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if self.mix is not None and not 0 <= self.mix <= 1:
            raise ValueError(f"mix={self.mix} is not between 0 and 1")
        check_gain(self.gain)
        check_gain(self.gamma, "gamma")
        if self.mix == 0 and self.gamma is None:
            raise ValueError("mix=0 leaves γ = G²N/(Kθ) undefined; give gamma too")

    def _ratio(self, clients: int, budget: float) -> float:
        """The number of clients per draw."""
        raise NotImplementedError

    def _default_mix(self, ratio: float, T: int) -> float:
        """θ by the published rule."""
        raise NotImplementedError

    def _squared(self, cohort: Cohort, feedback: FloatArray) -> FloatArray:
        """An estimate of π², [m]. Its mean is π² for K-Vib, and K·π² for Vrb."""
        return cohort.count * feedback**2 / cohort.expected_answers

    def start(self, setting: Setting) -> RegularisedState:
        """Start with ω = 0."""
        N = len(setting.weights)
        ratio, omega = self._ratio(N, setting.budget), np.zeros(N)
        return RegularisedState(omega, self._gamma(ratio, self.gain, round=0), ratio)

    def _gamma(self, ratio: float, gain: float | None, round: int) -> float:
        """γ as given, or G²·ratio/θ; NaN if G is not known."""
        if self.gamma is not None:
            return self.gamma
        return float("nan") if gain is None else gain**2 * ratio / self._mix(ratio, round)

    def _mix(self, ratio: float, round: int) -> float:
        """θ as given, or by the rule, at most 1."""
        if self.mix is not None:
            return self.mix
        return min(1.0, self._default_mix(ratio, horizon(self.rounds, round)))

    def exploration(self, state: RegularisedState, round: int) -> Exploration:
        """Return the mixture θ: p̃ = (1−θ)p + θK/N, or with p ∝ λ in place of K/N."""
        return Exploration(mix=self._mix(state.ratio, round), by_weight=self.by_weight)

    def scores(self, state: RegularisedState, ids: IntArray) -> FloatArray:
        """Return s = √(ω + γ) in units of √γ, which is 1 for clients that were never seen."""
        if np.isnan(state.gamma):
            return np.ones(len(ids))
        return np.sqrt(1 + state.omega[ids] / state.gamma)

    def check(self, state: RegularisedState, clients: int, round: int) -> None:
        """Refuse a state with feedback in ω and without γ, which the first feedback determines."""
        super().check(state, clients, round)
        has_gamma = not np.isnan(state.gamma)
        demand(has_gamma or not state.omega.any(), "state.gamma is not known, and state.omega is")

    def observe(
        self, state: RegularisedState, cohort: Cohort, feedback: FloatArray
    ) -> RegularisedState:
        """Learn by ω += π²/p̃ for the clients that answered."""
        gamma, gain = state.gamma, float(feedback.mean())
        if np.isnan(gamma) and gain > 0:
            gamma = self._gamma(state.ratio, gain, cohort.round)
        state.omega[cohort.ids] += self._squared(cohort, feedback)
        return state._replace(gamma=gamma)

    def enter(
        self, state: RegularisedState, ids: IntArray, weights: FloatArray
    ) -> RegularisedState:
        """Let clients join with ω = 0."""
        state.omega[ids] = 0.0
        return state

    def reweigh(
        self, state: RegularisedState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> RegularisedState:
        """Take new weights: ω is a sum of (λ‖g‖)², and is scaled by the square of their ratio."""
        state.omega[ids] *= ratio**2
        return state

    def resized(self, state: RegularisedState, clients: int, budget: float) -> RegularisedState:
        """Compute the number of clients per draw anew."""
        return state._replace(ratio=self._ratio(clients, budget))

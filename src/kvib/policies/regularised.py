"""What K-Vib and Vrb share: follow the regularised leader on Σπ²/p, from partial feedback."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort
from kvib.files.intact import NOT_NEGATIVE, POSITIVE, demand, or_unknown
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.policies.rules import check_gain, check_rounds, horizon
from kvib.types import FloatArray, IntArray


class RegularisedState(NamedTuple):
    """Cumulative feedback of every client."""

    omega: FloatArray
    """ω, [N]."""
    gamma: float
    """γ; NaN until the first feedback. Frozen then: it must not reshape the scores later."""
    ratio: float
    """N/K for K-Vib, N for Vrb: what one draw has to cover."""


@dataclass(frozen=True)
class Regularised(Policy[RegularisedState]):
    """p ∝ √(ω + γ), mixed with uniform; ω estimates each client's Σ_t π² without bias."""

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
        raise NotImplementedError

    def _default_mix(self, ratio: float, T: int) -> float:
        raise NotImplementedError

    def _squared(self, cohort: Cohort, feedback: FloatArray) -> FloatArray:
        """An estimate of π² whose mean is right (K-Vib) or K times right (Vrb), [m]."""
        return cohort.count * feedback**2 / cohort.expected_answers

    def start(self, setting: Setting) -> RegularisedState:
        """ω = 0."""
        N = len(setting.weights)
        ratio, omega = self._ratio(N, setting.budget), np.zeros(N)
        return RegularisedState(omega, self._gamma(ratio, self.gain, round=0), ratio)

    def _gamma(self, ratio: float, gain: float | None, round: int) -> float:
        """γ = G²·ratio/θ."""
        if self.gamma is not None:
            return self.gamma
        return float("nan") if gain is None else gain**2 * ratio / self._mix(ratio, round)

    def _mix(self, ratio: float, round: int) -> float:
        if self.mix is not None:
            return self.mix
        return min(1.0, self._default_mix(ratio, horizon(self.rounds, round)))

    def exploration(self, state: RegularisedState, round: int) -> Exploration:
        """p̃ = (1−θ)p + θK/N, or θ of what weights deserve."""
        return Exploration(mix=self._mix(state.ratio, round), by_weight=self.by_weight)

    def scores(self, state: RegularisedState, ids: IntArray) -> FloatArray:
        """s = √(ω + γ), in units of √γ: 1 for clients that were never seen."""
        if np.isnan(state.gamma):
            return np.ones(len(ids))
        return np.sqrt(1 + state.omega[ids] / state.gamma)

    def check(self, state: RegularisedState, clients: int, round: int) -> None:
        """Who was seen to be large tells γ."""
        super().check(state, clients, round)
        known = not np.isnan(state.gamma)
        demand(known or not state.omega.any(), "state.gamma is not known, and state.omega is")

    def observe(
        self, state: RegularisedState, cohort: Cohort, feedback: FloatArray
    ) -> RegularisedState:
        """ω += π²/p̃ for those who were drawn."""
        gamma, gain = state.gamma, float(feedback.mean())
        if np.isnan(gamma) and gain > 0:
            gamma = self._gamma(state.ratio, gain, cohort.round)
        state.omega[cohort.ids] += self._squared(cohort, feedback)
        return state._replace(gamma=gamma)

    def enter(
        self, state: RegularisedState, ids: IntArray, weights: FloatArray
    ) -> RegularisedState:
        """ω = 0."""
        state.omega[ids] = 0.0
        return state

    def reweigh(
        self, state: RegularisedState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> RegularisedState:
        """ω is a sum of (λ‖g‖)²."""
        state.omega[ids] *= ratio**2
        return state

    def resized(self, state: RegularisedState, clients: int, budget: float) -> RegularisedState:
        """What one draw has to cover."""
        return state._replace(ratio=self._ratio(clients, budget))

"""Variance reducer bandit."""

from dataclasses import dataclass
from typing import ClassVar

from kvib.cohort import Cohort
from kvib.policies.regularised import Regularised
from kvib.procedures import with_replacement
from kvib.types import FloatArray


@dataclass(frozen=True)
class Vrb(Regularised):
    """K-Vib's ancestor for one draw at a time: u ∝ √(ω + γ), mixed with uniform.

    ũ = (1−θ)u + θ/N; each of the K draws adds π²/ũ to ω; θ = (N/T)^⅓, or 0.3 if N > T;
    γ = G²N/θ. With T unknown θ never rises above 0.3 again.

    Args:
        rounds: T, the planned number of rounds; unknown: doubled as rounds go by.
        gain: G, the size of a feedback λ‖g‖; unknown: the mean of the first round that has any.
        mix: θ, instead of the rule.
        gamma: γ, instead of the rule.
        by_weight: mix with u ∝ λ instead of uniform; every coefficient ≤ max(λ, 1/K)/θ then.

    Borsos, Krause and Levy, "Online variance reduction for stochastic optimization", 2018.
    """

    procedure: ClassVar = with_replacement

    def _ratio(self, clients: int, budget: float) -> float:
        return float(clients)

    def _default_mix(self, ratio: float, T: int) -> float:
        if ratio > T:
            return 0.3
        by_rule = float((ratio / T) ** (1 / 3))
        # Made for a T that is known: at T = N it jumps to 1, which doubling must not follow.
        return by_rule if self.rounds is not None else min(0.3, by_rule)

    def _squared(self, cohort: Cohort, feedback: FloatArray) -> FloatArray:
        return cohort.budget * super()._squared(cohort, feedback)  # ũ = expected/K, per draw

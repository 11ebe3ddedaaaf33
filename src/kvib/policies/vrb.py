"""The variance reducer bandit."""

from dataclasses import dataclass
from typing import ClassVar

from kvib.cohort import Cohort
from kvib.policies.regularised import Regularised
from kvib.procedures import with_replacement
from kvib.types import FloatArray

MIX_OF_SHORT_RUNS = 0.3
"""The published θ for fewer rounds than clients, where (N/T)^⅓ would exceed 1."""


@dataclass(frozen=True)
class Vrb(Regularised):
    """Draw clients more often whose past updates were large, one draw at a time.

    Vrb is the ancestor of K-Vib. It learns the probability u of a single draw, and a round is K
    draws with replacement.

    ũ = (1−θ)u + θ/N with u ∝ √(ω + γ), and each of the K draws adds π²/ũ to ω. θ = (N/T)^⅓, or 0.3
    if N > T, and γ = G²N/θ. If T is unknown, θ never rises above 0.3.

    Args:
        rounds: The planned number of rounds T. None means unknown: T then doubles as rounds go by.
        gain: The size G of a feedback λ‖g‖. None means the mean of the first round that has any.
        mix: The mixture θ. None means the rule above.
        gamma: The regulariser γ. None means the rule above.
        by_weight: Whether to mix with u ∝ λ instead of uniform probabilities. Every coefficient is
            then at most max(λ, 1/K)/θ.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> policy = kvib.Vrb(rounds=100)
        >>> sampler = kvib.Sampler(policy, weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(2)            # expected counts K·ũ
        array([0.27, 0.36, 0.54, 0.83])

    References:
        Borsos, Krause and Levy, "Online variance reduction for stochastic optimization", 2018.
    """

    procedure: ClassVar = with_replacement

    def _ratio(self, clients: int, budget: float) -> float:
        """N, since one draw has to cover all clients."""
        return float(clients)

    def _default_mix(self, ratio: float, T: int) -> float:
        """θ by the published rule."""
        if ratio > T:
            return MIX_OF_SHORT_RUNS
        by_rule = float((ratio / T) ** (1 / 3))
        # The rule is made for a known T. At T = N it jumps from 0.3 to 1: a T that doubles as
        # rounds go by must not follow that jump.
        return by_rule if self.rounds is not None else min(MIX_OF_SHORT_RUNS, by_rule)

    def _squared(self, cohort: Cohort, feedback: FloatArray) -> FloatArray:
        """count·π²/ũ with ũ = expected/K, the probability of one draw, [m]."""
        return cohort.budget * super()._squared(cohort, feedback)

"""The policy of the K-Vib paper."""

from dataclasses import dataclass
from typing import ClassVar

from kvib.policies.regularised import Regularised
from kvib.procedures import independent


@dataclass(frozen=True)
class KVib(Regularised):
    """Draw clients more often whose past updates were large.

    ω estimates the sum of a client's squared feedback without bias, from the rounds in which it was
    drawn. The probabilities minimise Σ(ω+γ)/p with a regulariser γ, and are mixed with uniform
    ones.

    p̃ = (1−θ)·clip(c·√(ω+γ), 0, 1) + θK/N, and after a round ω_i += π_i²/p̃_i for the drawn clients,
    with θ = min(1, (N/(TK))^⅓) and γ = G²N/(Kθ).

    Args:
        rounds: The planned number of rounds T. None means unknown: T then doubles as rounds go by.
        gain: The size G of a feedback λ‖g‖. None means the mean of the first round that has any.
        mix: The mixture θ. None means the rule above.
        gamma: The regulariser γ. None means the rule above.
        by_weight: Whether to mix with p ∝ λ instead of uniform probabilities. Every coefficient is
            then at most max(λ, 1/K)/θ.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> policy = kvib.KVib(rounds=100)
        >>> sampler = kvib.Sampler(policy, weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(2)            # the optimum is 1/7, 2/7, 4/7, 1
        array([0.27, 0.35, 0.53, 0.86])

    References:
        Zeng et al., "Enhanced Federated Optimization", Alg. 2 and Theorem 5.2. θ is clipped at 1,
        which the paper forgets, and the solver takes the square root that its scripts leave out.
    """

    procedure: ClassVar = independent

    def _ratio(self, clients: int, budget: float) -> float:
        """N/K."""
        return clients / budget

    def _default_mix(self, ratio: float, T: int) -> float:
        """θ = (N/(TK))^⅓."""
        return float((ratio / T) ** (1 / 3))

"""The paper's sampler."""

from dataclasses import dataclass
from typing import ClassVar

from kvib.policies.regularised import Regularised
from kvib.procedures import independent


@dataclass(frozen=True)
class KVib(Regularised):
    """Clients whose past updates were large are drawn more often: p ∝ √(ω + γ), mixed with uniform.

    Alg. 2: p̃ = (1−θ)·clip(c√(ω+γ), 0, 1) + θK/N, then ω_i += π_i²/p̃_i for the drawn clients,
    with θ = min(1, (N/(TK))^⅓) and γ = G²N/(Kθ).

    Args:
        rounds: T, the planned number of rounds; unknown: doubled as rounds go by.
        gain: G, the size of a feedback λ‖g‖; unknown: the mean of the first round that has any.
        mix: θ, instead of the rule.
        gamma: γ, instead of the rule.
        by_weight: mix with p ∝ λ instead of uniform; every coefficient ≤ max(λ, 1/K)/θ then.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.KVib(rounds=500), weights=[30, 10, 60], budget=2, seed=1)
        >>> cohort = sampler.draw()
        >>> sampler.update(cohort, norms=[0.5] * len(cohort))

    Zeng et al., "Enhanced Federated Optimization", Alg. 2 and Theorem 5.2. θ is clipped at 1,
    which the paper forgets, and the solver takes the square root that its scripts leave out.
    """

    procedure: ClassVar = independent

    def _ratio(self, clients: int, budget: float) -> float:
        return clients / budget

    def _default_mix(self, ratio: float, T: int) -> float:
        return float((ratio / T) ** (1 / 3))

"""The policy that draws every client equally often."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.policies.policy import Policy, Setting
from kvib.procedures import without_replacement
from kvib.types import FloatArray, IntArray


class UniformState(NamedTuple):
    """An empty state, since the policy learns nothing."""


@dataclass(frozen=True)
class Uniform(Policy[UniformState]):
    """Draw every client with the same probability.

    The policy learns nothing, and the weights do not matter for the draw. Use it as the baseline.

    p = K/N.

    Three samplers go by this name and must not be confused: without replacement (the default
    procedure), independent coins (`procedure=kvib.independent`), and FedAvg's mean over the drawn
    clients. The last is any of these with `kvib.self_normalised`, and it is biased.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.Uniform(), weights=[10, 20, 30, 40], budget=2, seed=0)
        >>> sampler.probabilities()
        array([0.5, 0.5, 0.5, 0.5])

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized
        data", 2017 (FedAvg), for the draw.
    """

    procedure: ClassVar = without_replacement
    lasting: ClassVar = True
    equal: ClassVar = True

    def start(self, setting: Setting) -> UniformState:
        """Start with an empty state."""
        return UniformState()

    def scores(self, state: UniformState, ids: IntArray) -> FloatArray:
        """Return s = 1 for every client."""
        return np.ones(len(ids))

    def enter(self, state: UniformState, ids: IntArray, weights: FloatArray) -> UniformState:
        """Let clients join, which have the same score as all others."""
        return state

    def reweigh(
        self, state: UniformState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> UniformState:
        """Take new weights, which do not matter."""
        return state

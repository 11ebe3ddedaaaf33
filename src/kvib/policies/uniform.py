"""Everybody alike."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.policies.policy import Policy, Setting
from kvib.procedures import without_replacement
from kvib.types import FloatArray, IntArray


class UniformState(NamedTuple):
    """Nothing to remember."""


@dataclass(frozen=True)
class Uniform(Policy[UniformState]):
    """The same probability for every client: p = K/N.

    Three samplers go by this name and must not be confused: without replacement (the default
    procedure), independent coins (`procedure=kvib.independent`), and FedAvg's mean over the drawn
    clients, which is any of these with `kvib.self_normalised` and is biased.
    """

    procedure: ClassVar = without_replacement
    lasting: ClassVar = True
    equal: ClassVar = True

    def start(self, setting: Setting) -> UniformState:
        """Nothing to prepare."""
        return UniformState()

    def scores(self, state: UniformState, ids: IntArray) -> FloatArray:
        """s = 1."""
        return np.ones(len(ids))

    def enter(self, state: UniformState, ids: IntArray, weights: FloatArray) -> UniformState:
        """Like everybody."""
        return state

    def reweigh(
        self, state: UniformState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> UniformState:
        """Weights do not matter."""
        return state

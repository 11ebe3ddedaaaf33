"""In proportion to the weights."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kvib.files.intact import POSITIVE
from kvib.policies.policy import Policy, Setting
from kvib.procedures import with_replacement
from kvib.types import FloatArray, IntArray


class BySizeState(NamedTuple):
    """What by-size sampling knows."""

    weight: FloatArray


@dataclass(frozen=True)
class BySize(Policy[BySizeState]):
    """Larger clients more often: p ∝ λ.

    Optimal where all updates have the same norm, and the best guess before any was seen. With
    replacement, as published, every draw counts 1/K whoever it is (Li et al. 2020, scheme I).
    """

    procedure: ClassVar = with_replacement
    lasting: ClassVar = True
    per_client: ClassVar = ("weight",)
    ranges: ClassVar = {"weight": POSITIVE}

    def start(self, setting: Setting) -> BySizeState:
        """Remember the weights."""
        return BySizeState(setting.weights.copy())

    def scores(self, state: BySizeState, ids: IntArray) -> FloatArray:
        """s = λ."""
        return state.weight[ids]

    def enter(self, state: BySizeState, ids: IntArray, weights: FloatArray) -> BySizeState:
        """Remember the weights."""
        state.weight[ids] = weights
        return state

    def reweigh(
        self, state: BySizeState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> BySizeState:
        """Remember the new weights."""
        return self.enter(state, ids, weights)

"""The policy that draws in proportion to the weights."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kvib.files.intact import POSITIVE
from kvib.policies.policy import Policy, Setting
from kvib.procedures import with_replacement
from kvib.types import FloatArray, IntArray


class BySizeState(NamedTuple):
    """The weights, which are all that the policy knows."""

    weight: FloatArray
    """λ of every client, [N]."""


@dataclass(frozen=True)
class BySize(Policy[BySizeState]):
    """Draw each client in proportion to its weight.

    This is optimal where all updates have the same norm, and it is the best guess before any norm
    is known. It learns nothing.

    p ∝ λ.

    With replacement, as published, every draw has the coefficient 1/K, whichever client it is.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.BySize(), weights=[30, 10, 60], budget=2, seed=0)
        >>> sampler.probabilities()                     # expected counts of two draws
        array([0.6, 0.2, 1.2])

    References:
        Li et al. 2020, scheme I.
    """

    procedure: ClassVar = with_replacement
    lasting: ClassVar = True
    per_client: ClassVar = ("weight",)
    ranges: ClassVar = {"weight": POSITIVE}

    def start(self, setting: Setting) -> BySizeState:
        """Start with a copy of the weights."""
        return BySizeState(setting.weights.copy())

    def scores(self, state: BySizeState, ids: IntArray) -> FloatArray:
        """Return s = λ."""
        return state.weight[ids]

    def enter(self, state: BySizeState, ids: IntArray, weights: FloatArray) -> BySizeState:
        """Store the weights of new clients."""
        state.weight[ids] = weights
        return state

    def reweigh(
        self, state: BySizeState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> BySizeState:
        """Store new weights."""
        return self.enter(state, ids, weights)

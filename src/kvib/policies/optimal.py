"""The oracle that every other policy is measured against."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.files.intact import NOT_NEGATIVE
from kvib.policies.policy import Policy, Setting
from kvib.procedures import independent
from kvib.types import FloatArray, IntArray


class OptimalState(NamedTuple):
    """The feedback of all clients in the coming round."""

    feedback: FloatArray
    """π = λ‖g‖ of every client, [N]; 0 before it is known."""


@dataclass(frozen=True)
class Optimal(Policy[OptimalState]):
    """Draw each client by the norm of the update that it will send.

    The oracle knows all norms before the draw, and reaches the least variance that independent
    draws without memory can have. It is for experiments: all clients must train first, and every
    draw needs `draw(norms=all_norms)`.

    p = clip(c·λ‖g‖, 0, 1).

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.Optimal(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> sampler.probabilities(norms=[1, 2, 4, 8])
        array([0.14285714, 0.28571429, 0.57142857, 1.        ])

    References:
        Chen, Horváth and Richtárik, "Optimal client sampling for federated learning", 2020. Zeng
        et al., "Enhanced Federated Optimization", Lemma 2.2.
    """

    procedure: ClassVar = independent
    needs_norms: ClassVar = True
    ranges: ClassVar = {"feedback": NOT_NEGATIVE}

    def start(self, setting: Setting) -> OptimalState:
        """Start without feedback, which comes with the draw."""
        return OptimalState(np.zeros(len(setting.weights)))

    def inform(self, state: OptimalState, feedback: FloatArray) -> OptimalState:
        """Return the state for one draw with this feedback."""
        return OptimalState(feedback)

    def scores(self, state: OptimalState, ids: IntArray) -> FloatArray:
        """Return s = π."""
        return state.feedback[ids]

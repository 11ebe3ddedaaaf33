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


@dataclass(frozen=True)
class Optimal(Policy[OptimalState]):
    """Knows every client's norm before it draws: p = clip(c·λ‖g‖, 0, 1) (Lemma 2.2).

    The least variance that independent draws without memory can have. For experiments: all
    clients must train first, `draw(norms=all_norms)`.

    Chen, Horváth and Richtárik, "Optimal client sampling for federated learning", 2020.
    """

    procedure: ClassVar = independent
    needs_norms: ClassVar = True
    ranges: ClassVar = {"feedback": NOT_NEGATIVE}

    def start(self, setting: Setting) -> OptimalState:
        """Nothing is known until the draw."""
        return OptimalState(np.zeros(len(setting.weights)))

    def inform(self, state: OptimalState, feedback: FloatArray) -> OptimalState:
        """Take the feedback of all clients."""
        return OptimalState(feedback)

    def scores(self, state: OptimalState, ids: IntArray) -> FloatArray:
        """s = π."""
        return state.feedback[ids]

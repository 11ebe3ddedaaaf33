"""Adaptive variance reduction from the last norms that were seen."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort
from kvib.files.intact import NOT_NEGATIVE, or_unknown
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.procedures import with_replacement
from kvib.types import FloatArray, IntArray


class AvareState(NamedTuple):
    """The last feedback of every client."""

    last: FloatArray
    """h of every client, [N]; NaN if it was never seen."""
    largest: float
    """The largest feedback so far, which clients that were never seen are assumed to have. It is
    NaN before the first feedback."""


@dataclass(frozen=True)
class Avare(Policy[AvareState]):
    """Draw each client in proportion to its last feedback, above a floor that falls.

    Clients that were never seen are assumed to have the largest feedback so far. The floor makes
    the first round uniform, and falls from round to round.

    u = clip(c·h, ε_t, ·) with ε_t = p_min + 1/(C + δ(t−1)), p_min = 1/(5N) and
    C = 1/(1/N − p_min).

    ε_t is uniform at t = 1 and falls to p_min. No public code exists. This schedule is a
    reconstruction, the one consistent with the published constants, and therefore a parameter.

    Args:
        least: The smallest floor p_min in units of 1/N.
        decay: The speed δ at which the floor falls.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> sampler = kvib.Sampler(kvib.Avare(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(2)            # expected counts K·u: 2/15 of the norms
        array([0.13, 0.27, 0.53, 1.07])

    References:
        El Hanchi and Stephens, "Adaptive importance sampling for finite-sum optimization", 2020.
    """

    least: float = 0.2
    decay: float = 1.0

    procedure: ClassVar = with_replacement
    ranges: ClassVar = {"last": or_unknown(NOT_NEGATIVE), "largest": or_unknown(NOT_NEGATIVE)}

    def __post_init__(self) -> None:
        if not 0 < self.least < 1:
            raise ValueError(f"least={self.least} is not between 0 and 1")
        if not 0 <= self.decay < np.inf:
            raise ValueError(f"decay={self.decay} is not a number ≥ 0")

    def start(self, setting: Setting) -> AvareState:
        """Start without feedback."""
        return AvareState(np.full(len(setting.weights), np.nan), float("nan"))

    def exploration(self, state: AvareState, round: int) -> Exploration:
        """Return the floor N·ε_t with t = round + 1."""
        N = len(state.last)
        C = N / (1 - self.least)
        return Exploration(floor=self.least + N / (C + self.decay * round))

    def scores(self, state: AvareState, ids: IntArray) -> FloatArray:
        """Return s = h."""
        if np.isnan(state.largest):
            return np.ones(len(ids))
        last = state.last[ids]
        return np.where(np.isnan(last), state.largest, last)

    def observe(self, state: AvareState, cohort: Cohort, feedback: FloatArray) -> AvareState:
        """Learn h_i = π_i of the clients that answered."""
        state.last[cohort.ids] = feedback
        return state._replace(largest=float(np.fmax(state.largest, feedback.max())))

"""Adaptive variance reduction from the last norms seen."""

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
    """h, [N]; NaN: never seen."""
    largest: float
    """The largest feedback ever seen, assumed of those not seen; NaN before the first."""


@dataclass(frozen=True)
class Avare(Policy[AvareState]):
    """In proportion to each client's last feedback, above a falling floor: u = clip(c·h, ε_t, ·).

    ε_t = p_min + 1/(C + δ(t−1)) with p_min = 1/(5N) and C = 1/(1/N − p_min): uniform at t = 1,
    falling to p_min. No public code exists; this schedule is a reconstruction, the one consistent
    with the published constants, and therefore a parameter.

    Args:
        least: p_min in units of 1/N.
        decay: δ, the speed at which the floor falls.

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
        """Nobody seen."""
        return AvareState(np.full(len(setting.weights), np.nan), float("nan"))

    def exploration(self, state: AvareState, round: int) -> Exploration:
        """N·ε_t, t = round + 1."""
        N = len(state.last)
        C = N / (1 - self.least)
        return Exploration(floor=self.least + N / (C + self.decay * round))

    def scores(self, state: AvareState, ids: IntArray) -> FloatArray:
        """s = h."""
        if np.isnan(state.largest):
            return np.ones(len(ids))
        last = state.last[ids]
        return np.where(np.isnan(last), state.largest, last)

    def observe(self, state: AvareState, cohort: Cohort, feedback: FloatArray) -> AvareState:
        """h_i = π_i."""
        state.last[cohort.ids] = feedback
        return state._replace(largest=float(np.fmax(state.largest, feedback.max())))

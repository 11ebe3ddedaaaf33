"""Multi-armed bandit sampling."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort
from kvib.files.intact import FINITE, POSITIVE, demand, or_unknown
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.policies.rules import check_gain, check_rounds, horizon
from kvib.procedures import with_replacement
from kvib.types import FloatArray, IntArray

LARGEST_STEP = float(np.finfo(np.float64).max) / 4
"""The only bound of a step: floats end there. Where `mix` is at least 1e-12 no feedback that a
sampler takes in comes near it."""


class MabsState(NamedTuple):
    """Exponential weights, as logarithms."""

    log_weight: FloatArray
    peak: float
    """The largest log weight: weights only grow, so it is known without a search. Where it leaves
    the finite numbers all are lowered, since only their differences matter."""
    largest_loss: float
    """L = G²; NaN until the first feedback."""


@dataclass(frozen=True)
class Mabs(Policy[MabsState]):
    """Exponential weights: u = (1−η)·softmax(log w) + η/N, log w_i += δ·count·π²/u_i³.

    δ = η²√(ln N/(T N⁵))/L with L = G².

    Args:
        rounds: T, the planned number of rounds; unknown: doubled as rounds go by.
        gain: G, the size of a feedback λ‖g‖; unknown: the mean of the first round that has any.
        mix: η.

    Salehi, Celis and Thiran, "Stochastic optimization with bandit sampling", 2017.
    """

    rounds: int | None = None
    gain: float | None = None
    mix: float = 0.4

    procedure: ClassVar = with_replacement
    ranges: ClassVar = {
        "log_weight": FINITE,
        "peak": FINITE,
        "largest_loss": or_unknown(POSITIVE),
    }

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if not 0 < self.mix <= 1:
            raise ValueError(f"mix={self.mix} is not in (0, 1]")
        check_gain(self.gain)

    def start(self, setting: Setting) -> MabsState:
        """w = 1."""
        loss = float("nan") if self.gain is None else self.gain**2
        return MabsState(np.zeros(len(setting.weights)), 0.0, loss)

    def exploration(self, state: MabsState, round: int) -> Exploration:
        """ũ = (1−η)u + η/N."""
        return Exploration(mix=self.mix)

    def scores(self, state: MabsState, ids: IntArray) -> FloatArray:
        """s = w, relative to the largest of these clients."""
        logs = state.log_weight[ids]
        return np.asarray(np.exp(logs - logs.max()))

    def check(self, state: MabsState, clients: int, round: int) -> None:
        """No log weight can be above the largest."""
        super().check(state, clients, round)
        demand(state.log_weight.max() <= state.peak, "state.log_weight exceeds state.peak")

    def observe(self, state: MabsState, cohort: Cohort, feedback: FloatArray) -> MabsState:
        """log w += δ·count·π²/u³."""
        L, mean = state.largest_loss, float(feedback.mean())
        if math.isnan(L):
            if mean == 0:
                return state
            L = mean**2
        log_weight, ids = state.log_weight, cohort.ids
        N, T = len(log_weight), horizon(self.rounds, cohort.round)
        rate = math.sqrt(math.log(N) / (T * float(N) ** 5))
        u, answered = cohort.expected / cohort.budget, cohort.expected_answers / cohort.budget
        with np.errstate(over="ignore"):
            gain = self.mix * feedback / (math.sqrt(L) * u)  # one more u is P(observed)
            log_weight[ids] += np.minimum(rate * cohort.count * gain**2 / answered, LARGEST_STEP)
        peak = max(state.peak, float(log_weight[ids].max()))
        if peak > LARGEST_STEP:
            np.maximum(log_weight - peak, -LARGEST_STEP, out=log_weight)
            peak = 0.0
        return state._replace(peak=peak, largest_loss=L)

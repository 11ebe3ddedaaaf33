"""Multi-armed bandit sampling: exponential weights."""

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
"""The only bound on a step: it keeps floats finite. If `mix` is at least 1e-12, no feedback that a
sampler accepts comes near it."""


class MabsState(NamedTuple):
    """The exponential weights, as logarithms."""

    log_weight: FloatArray
    """log w of every client, [N]."""
    peak: float
    """The largest log weight. Weights only grow, so that it is known without a search. Before it
    overflows all log weights are lowered, since only their differences matter."""
    largest_loss: float
    """L = G²; NaN before the first feedback."""


@dataclass(frozen=True)
class Mabs(Policy[MabsState]):
    """Draw clients by exponential weights, which grow with the updates that they send.

    Each client is the arm of a bandit, and a large update is a large reward. A mixture with
    uniform probabilities keeps every probability positive.

    u = (1−η)·softmax(log w) + η/N, and after a round log w_i += δ·count·π²/u_i³ with
    δ = η²√(ln N/(T N⁵))/L and L = G².

    Args:
        rounds: The planned number of rounds T. None means unknown: T then doubles as rounds go by.
        gain: The size G of a feedback λ‖g‖. None means the mean of the first round that has any.
        mix: The mixture η with uniform probabilities.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> policy = kvib.Mabs(rounds=100)
        >>> sampler = kvib.Sampler(policy, weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(2)            # expected counts K·u
        array([0.22, 0.25, 0.54, 0.99])

    References:
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
        """Start with w = 1 for every client."""
        loss = float("nan") if self.gain is None else self.gain**2
        return MabsState(np.zeros(len(setting.weights)), 0.0, loss)

    def exploration(self, state: MabsState, round: int) -> Exploration:
        """Return the mixture η: ũ = (1−η)u + η/N."""
        return Exploration(mix=self.mix)

    def scores(self, state: MabsState, ids: IntArray) -> FloatArray:
        """Return s = w, relative to the largest w among these clients."""
        logs = state.log_weight[ids]
        return np.asarray(np.exp(logs - logs.max()))

    def check(self, state: MabsState, clients: int, round: int) -> None:
        """Refuse a state with a log weight above the largest."""
        super().check(state, clients, round)
        demand(state.log_weight.max() <= state.peak, "state.log_weight exceeds state.peak")

    def observe(self, state: MabsState, cohort: Cohort, feedback: FloatArray) -> MabsState:
        """Learn by log w += δ·count·π²/u³."""
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
            # δ·π²/u³ = rate·(η·π/(√L·u))²/u. The last u is the probability of an answer per draw.
            gain = self.mix * feedback / (math.sqrt(L) * u)
            log_weight[ids] += np.minimum(rate * cohort.count * gain**2 / answered, LARGEST_STEP)
        peak = max(state.peak, float(log_weight[ids].max()))
        if peak > LARGEST_STEP:  # lower all log weights, so that the next step stays finite
            np.maximum(log_weight - peak, -LARGEST_STEP, out=log_weight)
            peak = 0.0
        return state._replace(peak=peak, largest_loss=L)

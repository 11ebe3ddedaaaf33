"""The policy that forecasts every client's norm for the coming round."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import CLOSE, COUNT, FINITE, NOT_NEGATIVE, ORDINARY, POSITIVE, Range, demand
from kvib.policies import log_norms
from kvib.policies.log_norms import ForecastState
from kvib.policies.policy import Exploration, Forecasts, Policy, Setting
from kvib.procedures import pivotal
from kvib.types import FloatArray, IntArray

SMALLEST_LOG, LARGEST_LOG = -700.0, 700.0
"""Logarithms are cut off here: exp of both is a positive and finite number."""
_SPLIT = 2.0**12 + 1
"""Veltkamp's factor, which leaves 41 of 53 binary digits."""


@dataclass(frozen=True)
class Forecast(Policy[ForecastState]):
    """Draw each client by the norm that its next update is forecast to have.

    The model of a norm has three parts, which are learned from the updates that arrive: a trend,
    what the server knows about the client, and the client's own offset. There is no horizon and no
    scale to tune, since the variances are learned too.

    p ∝ λ·√E‖g‖² with log‖g_i‖ = β·x_i + offset_i + noise.

    x_i is 1, log λ_i, and the `variables` of the sampler. β holds a trend and slopes, which move
    with training. The offset of a client is shrunk to 0, learned when the client is seen, and grows
    uncertain while it is not seen. That raises its score λ·exp(mean + variance). Any p that depends
    on the past alone keeps the estimate unbiased.

    The scores of clients that are not drawn change by a common factor only, except at a refit of
    the regression. Refits are in rounds that are farther and farther apart: O(K) work per round,
    O(N log T) over T rounds. Where norms move so fast that scores are stale earlier, a refit comes
    earlier. It then scores a few clients per client drawn.

    Args:
        floor: The share of the budget that is spent in proportion to λ, whatever the forecast is.
            If clients have no costs it bounds every coefficient: λ/p ≤ max(λ, 1/K)/floor. For
            clients with λ > 1/K, which would always be drawn by size, the bound is λ/floor.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> sampler = kvib.Sampler(kvib.Forecast(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(3)            # the optimum is 1/7, 2/7, 4/7, 1
        array([0.161, 0.296, 0.568, 0.975])

    References:
        None: the policy is kvib's own. docs/beyond.md compares it with published policies.
    """

    floor: float = 0.05

    procedure: ClassVar = pivotal
    lasting: ClassVar = True
    per_client: ClassVar = (
        "log_score",
        "log_weight",
        "features",
        "offset",
        "precision",
        "seen",
    )

    ranges: ClassVar = {
        **dict.fromkeys(("log_score", "level"), FINITE),
        **dict.fromkeys(("log_weight", "features", "offset", "slope"), ORDINARY),
        **dict.fromkeys(("slope_covariance", "returns", "middle"), ORDINARY),
        **dict.fromkeys(("precision", "seen", "drift", "narrow"), NOT_NEGATIVE),
        **dict.fromkeys(("step", "noise", "spread"), POSITIVE),
        "fitted": COUNT,
        "round": Range("whole and at least −1", low=-1.0, whole=True),
    }

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor={self.floor} is not in (0, 1]; without one p may vanish")

    def start(self, setting: Setting) -> ForecastState:
        """Start with equal norms: p ∝ λ is the best guess before any norm is known."""
        N, log_weight = len(setting.weights), np.log(setting.weights)
        variables = [log_norms.standardised(x) for x in (setting.weights, *setting.variables.T)]
        features = np.array([np.ones(N), *variables])
        slope_variances = log_norms.prior_variances(len(variables))
        return ForecastState(
            log_score=log_weight.copy(),
            log_weight=log_weight,
            features=features,
            offset=np.zeros(N),
            precision=np.zeros(N),
            seen=np.zeros(N),
            slope=np.zeros(len(features)),
            slope_covariance=np.diag([log_norms.ANY_SCALE, *slope_variances]),
            step=log_norms.STEP,
            noise=log_norms.NOISE,
            spread=log_norms.SPREAD,
            drift=log_norms.DRIFT,
            returns=np.zeros(5),
            middle=float(log_weight.mean()),
            narrow=log_norms.inverse_deviation(log_weight),
            level=float(log_weight.max()),
            fitted=0,
            round=-1,
        )

    def exploration(self, state: ForecastState, round: int) -> Exploration:
        """Return the share of the budget by weight: the best guess where only λ is known."""
        return Exploration(mix=self.floor, by_weight=True)

    def epoch(self, state: ForecastState) -> int:
        """Return the round of the last refit, since a refit changes all scores."""
        return state.fitted

    def scores(self, state: ForecastState, ids: IntArray) -> FloatArray:
        """Return s = λ·√E‖g‖², up to a common factor."""
        logs = state.log_score[ids] - state.level
        return _rounded(np.exp(np.clip(logs, SMALLEST_LOG, LARGEST_LOG)))

    def check(self, state: ForecastState, clients: int, round: int) -> None:
        """Refuse a state of a later round, and covariances with a negative variance."""
        super().check(state, clients, round)
        features, last = len(state.features), max(state.round, 0)
        demand(state.round < round, f"state.round is {state.round}, and the next round {round}")
        demand(state.fitted <= last, "state.fitted is of a later round")
        demand(state.seen.max() <= last, "state.seen is of a later round")
        shapes = {"slope": (features,), "slope_covariance": (features, features), "returns": (5,)}
        for name, shape in shapes.items():
            intact.shaped(f"state.{name}", getattr(state, name), shape)
        demand((state.features[0] == 1).all(), "state.features does not begin with 1")
        covariance, (n, gap, gap2, *_) = state.slope_covariance, state.returns
        least, *_, most = np.linalg.eigvalsh(covariance)
        demand(least > -CLOSE * most, "state.slope_covariance has a negative variance")
        demand(n * gap2 >= gap**2 * (1 - CLOSE), "state.returns has a negative variance")

    def observe(self, state: ForecastState, cohort: Cohort, feedback: FloatArray) -> ForecastState:
        """Learn by one step of a Kalman filter, for the trend and for every observed client."""
        keep = feedback > 0  # an update of 0 has no logarithm, and says nothing about the next one
        ids, t = cohort.ids[keep], max(cohort.round, state.round)
        if len(ids) == 0:
            return state
        y, x = np.log(feedback[keep]) - state.log_weight[ids], state.features[:, ids]
        # The trend and the slopes, from log‖g‖ without the offsets.
        own = log_norms.offset_variance(state, ids, t)
        mean, variance = log_norms.shrunk_offset(state, ids, own)
        state = log_norms.followed(state, x, y - mean, variance + state.noise, t)
        # The offsets, from log‖g‖ without trend and slopes. Outliers are cut off.
        slope_variance = np.einsum("di,de,ei->i", x, state.slope_covariance, x)
        limit = log_norms.OUTLIER * np.sqrt(variance + state.noise + slope_variance)
        observed = mean + np.clip(y - state.slope @ x - mean, -limit, limit)
        log_norms.count_returns(state, ids, observed, t)
        precision = 1 / own + 1 / state.noise
        state.offset[ids] = (state.offset[ids] / own + observed / state.noise) / precision
        state.precision[ids], state.seen[ids] = precision, t
        log_norms.rescore(state, ids, t)
        due = log_norms.is_refit_due(state, len(ids), t)
        return log_norms.refitted(state, t) if due else state

    def enter(self, state: ForecastState, ids: IntArray, weights: FloatArray) -> ForecastState:
        """Let clients join. They were never seen, and their weights say what to expect."""
        state.offset[ids] = state.precision[ids] = state.seen[ids] = 0.0
        state.features[0, ids] = 1.0
        return self._weighed(state, ids, weights)

    def reweigh(
        self, state: ForecastState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> ForecastState:
        """Take new weights. What was learned about ‖g‖ does not depend on them."""
        return self._weighed(state, ids, weights)

    def _weighed(self, state: ForecastState, ids: IntArray, weights: FloatArray) -> ForecastState:
        """The state with these weights, and the scores that follow from them."""
        state.log_weight[ids] = np.log(weights)
        state.features[1, ids] = (state.log_weight[ids] - state.middle) * state.narrow
        log_norms.rescore(state, ids, max(state.round, 0))
        return state

    def forecast(self, state: ForecastState, round: int, level: float = 0.9) -> Forecasts:
        """Forecast ‖g‖ of every client: medians, and the ends of intervals, [N] each."""
        ids, x = np.arange(len(state.offset)), state.features
        if state.round < 0:
            unknown = np.full(len(ids), math.nan)
            return Forecasts(unknown, unknown, unknown)
        own = log_norms.offset_variance(state, ids, round)
        mean, variance = log_norms.shrunk_offset(state, ids, own)
        ahead = state.slope_covariance + log_norms.slope_steps(state, round)
        slope_variance = np.einsum("di,de,ei->i", x, ahead, x)
        deviation = np.sqrt(variance + state.noise + slope_variance)
        width = NormalDist().inv_cdf((1 + level) / 2) * deviation
        middle = state.slope @ x + mean
        logs = np.clip((middle - width, middle, middle + width), SMALLEST_LOG, LARGEST_LOG)
        low, middle, high = np.exp(logs)
        return Forecasts(middle, low, high)


def _rounded(scores: FloatArray) -> FloatArray:
    """Scores rounded to 41 of their 53 binary digits, by Veltkamp's split, [m].

    The last digits of exponentials, logarithms and matrix products differ between libraries and
    CPUs. An index sorts scores by their exponent. Where weights are 1, 2, 4, … many scores are
    powers of two, which lie on the border between two buckets: there the last digit would choose
    the bucket. Scores above 4e304 would overflow, and LARGEST_LOG keeps them below.
    """
    high = scores * _SPLIT
    high += scores - high
    return np.asarray(high)

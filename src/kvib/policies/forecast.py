"""Predict every client's norm for the coming round, and draw accordingly."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.procedures import pivotal

OUTLIER = 4.0
"""Surprises beyond so many standard deviations are pulled in: one explosion is not a trend."""
MEMORY = 0.99
"""Per round, of what variances are learned from: training changes them."""
NOISE, SPREAD, DRIFT = 0.1, 0.25, 0.01
"""Variances before anything is known, worth PRIOR observations."""
PRIOR = 10.0
LARGEST_VARIANCE = 2.0
"""Of an offset in a score, exp(mean + variance): beyond it the tail of a normal law is fiction."""


class ForecastState(NamedTuple):
    """What is known of log‖g‖ = trend + β·f + offset + noise."""

    log_score: FloatArray
    """[N]; changed for drawn clients only, except at refits."""
    log_weight: FloatArray
    feature: FloatArray
    """f = log λ, centred and scaled, [N]."""
    level: FloatArray
    """What a client's own updates say of β·f + offset, [N]."""
    precision: FloatArray
    """How surely, when it was last seen; 0 if never."""
    seen: FloatArray
    """Round of the last answer, [N]."""
    slope: float
    """β."""
    trend: float
    trend_variance: float
    trend_step: float
    """Variance of its change in a round."""
    noise: float
    """σ², of one observation."""
    spread: float
    """τ², of the offsets around the regression."""
    drift: float
    """Variance that an offset gains in a round."""
    returns: FloatArray
    """Moments of (gap, squared change) of clients seen again: n, Σg, Σg², Σc, Σgc, [5]."""
    fitted: int
    """Round of the last refit."""
    round: int
    """Of the last feedback; −1 before."""


class Forecasts(NamedTuple):
    """‖g‖ of every client in the coming round, [N] each."""

    median: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Forecast(Policy[ForecastState]):
    """Draw by the norm that each client is about to have: p ∝ λ·√E‖g‖².

    log‖g_i‖ = trend + β·log λ_i + offset_i + noise. The trend moves with training and is common to
    all. Offsets are shrunk to 0, learned when a client is seen, and grow uncertain while it is not,
    which raises the score λ·exp(mean + variance). The variances are learned too: no horizon, no
    scale, nothing to tune. Any p that depends on the past alone keeps the estimate unbiased.

    Scores of clients that are not drawn move by a common factor, except when the regression is
    fitted anew, in rounds ever farther apart: O(K) work per round, O(N log T) over T rounds.

    Args:
        floor: least probability in units of the uniform one; it bounds every coefficient λ/p by
            λN/(floor·K).

    >>> import kvib
    >>> sampler = kvib.Sampler(kvib.Forecast(), weights=[30, 10, 60], budget=2, seed=1)
    >>> cohort = sampler.draw()
    >>> sampler.update(cohort, norms=[0.5] * len(cohort))
    """

    floor: float = 0.1

    procedure: ClassVar = pivotal

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor={self.floor} is not in (0, 1]; without one p may vanish")

    def start(self, setting: Setting) -> ForecastState:
        """All norms alike: p ∝ λ, the best guess before any was seen."""
        N, log_weight = len(setting.weights), np.log(setting.weights)
        scale = log_weight.std()
        flat = scale < 1e-9
        return ForecastState(
            log_score=log_weight.copy(),
            log_weight=log_weight,
            feature=np.zeros(N) if flat else (log_weight - log_weight.mean()) / scale,
            level=np.zeros(N),
            precision=np.zeros(N),
            seen=np.zeros(N),
            slope=0.0,
            trend=math.nan,
            trend_variance=0.0,
            trend_step=0.01,
            noise=NOISE,
            spread=SPREAD,
            drift=DRIFT,
            returns=np.zeros(5),
            fitted=0,
            round=-1,
        )

    def exploration(self, state: ForecastState, round: int) -> Exploration:
        """p ≥ floor·K/N."""
        return Exploration(floor=self.floor)

    def scores(self, state: ForecastState, ids: IntArray) -> FloatArray:
        """λ·√E‖g‖², up to a common factor."""
        logs = state.log_score[ids]
        return np.asarray(np.exp(logs - logs.max()))

    def observe(self, state: ForecastState, cohort: Cohort, feedback: FloatArray) -> ForecastState:
        """A step of a Kalman filter, for the trend and for every client seen."""
        keep = feedback > 0  # a zero update has no logarithm, and says nothing of the next
        ids, t = cohort.ids[keep], max(cohort.round, state.round)
        if len(ids) == 0:
            return state
        y = np.log(feedback[keep]) - state.log_weight[ids]
        age = _age(state, ids, t)
        mean, variance = _offset(state, ids, age)
        state = _follow_trend(state, y - mean, variance + state.noise, t)
        limit = OUTLIER * np.sqrt(variance + state.noise + state.trend_variance)
        surprise = np.clip(y - mean - state.trend, -limit, limit)
        observed = mean + surprise
        _count_returns(state, ids, observed, t)
        precision = 1 / age + 1 / state.noise
        state.level[ids] = (state.level[ids] / age + observed / state.noise) / precision
        state.precision[ids], state.seen[ids] = precision, t
        _score(state, ids, t)
        due = t - state.fitted >= max(1, state.fitted // 4)
        return _refitted(state, t) if due else state

    def forecast(self, state: ForecastState, round: int, level: float = 0.9) -> Forecasts:
        """Medians of ‖g‖ and intervals that hold it with this probability, [N]."""
        ids = np.arange(len(state.level))
        if math.isnan(state.trend):
            nothing = np.full(len(ids), math.nan)
            return Forecasts(nothing, nothing, nothing)
        mean, variance = _offset(state, ids, _age(state, ids, round))
        ahead = state.trend_variance + state.trend_step * max(1, round - state.round)
        width = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(variance + state.noise + ahead)
        middle = state.trend + mean
        return Forecasts(np.exp(middle), np.exp(middle - width), np.exp(middle + width))


def _age(state: ForecastState, ids: IntArray, t: int) -> FloatArray:
    """Variance of `level` by round t; infinite for clients never seen."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / state.precision[ids] + state.drift * (t - state.seen[ids]))


def _offset(state: ForecastState, ids: IntArray, age: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of β·f + offset: the client's own level, shrunk to the regression."""
    variance = 1 / (1 / age + 1 / state.spread)
    mean = variance * (state.level[ids] / age + state.slope * state.feature[ids] / state.spread)
    return mean, variance


def _score(state: ForecastState, ids: IntArray, t: int) -> None:
    """log λ·√E‖g‖² as of the last refit: until the next one all uncertainties grow alike."""
    mean, variance = _offset(state, ids, _age(state, ids, t))
    grown = state.drift * (t - state.fitted)
    state.log_score[ids] = (
        state.log_weight[ids] + mean + np.minimum(variance, LARGEST_VARIANCE) - grown
    )


def _follow_trend(
    state: ForecastState, off: FloatArray, variance: FloatArray, t: int
) -> ForecastState:
    """A random walk, seen through the weighted mean of the drawn."""
    weight = 1 / variance
    seen, error = float(weight @ off / weight.sum()), float(1 / weight.sum())
    if math.isnan(state.trend):
        return state._replace(trend=seen, trend_variance=error, round=t)
    ahead = state.trend_variance + state.trend_step * max(1, t - state.round)
    surprise, gain = seen - state.trend, ahead / (ahead + error)
    step = 0.9 * state.trend_step + 0.1 * max(0.0, surprise**2 - error - state.trend_variance)
    return state._replace(
        trend=state.trend + gain * surprise,
        trend_variance=(1 - gain) * ahead,
        trend_step=max(step, 1e-6),
        round=t,
    )


def _count_returns(state: ForecastState, ids: IntArray, observed: FloatArray, t: int) -> None:
    """A client seen again after g rounds has changed by σ² + drift·g, its own error apart."""
    again = state.precision[ids] > 0
    ids = ids[again]
    gap = t - state.seen[ids]
    change = (observed[again] - state.level[ids]) ** 2 - 1 / state.precision[ids]
    state.returns[:] *= MEMORY
    state.returns[:] += np.array([len(gap), gap.sum(), gap @ gap, change.sum(), change @ gap])


def _refitted(state: ForecastState, t: int) -> ForecastState:
    """Variances by moments, β by least squares over the clients seen, then all scores."""
    noise, drift = _noise_and_drift(state.returns)
    state = state._replace(noise=noise, drift=drift, fitted=t)
    ids = np.flatnonzero(state.precision > 0)
    f, level, age = state.feature[ids], state.level[ids], _age(state, ids, t)
    weight = 1 / (state.spread + age)
    f_mean, level_mean = weight @ f / weight.sum(), weight @ level / weight.sum()
    moved = weight * (f - f_mean)
    slope = float(moved @ (level - level_mean) / (moved @ (f - f_mean) + 1))
    shift = float(level_mean - slope * f_mean)  # the constant belongs to the trend
    state.level[ids] -= shift
    excess = (state.level[ids] - slope * f) ** 2 - age
    spread = float((PRIOR * SPREAD + excess.sum()) / (PRIOR + len(ids)))
    state = state._replace(slope=slope, trend=state.trend + shift, spread=max(spread, 0.1 * noise))
    _score(state, np.arange(len(state.level)), t)
    return state


def _noise_and_drift(returns: FloatArray) -> tuple[float, float]:
    """The line through squared changes against gaps; PRIOR gaps of one round and of two."""
    prior = np.array([2, 3, 5, 2 * NOISE + 3 * DRIFT, 3 * NOISE + 5 * DRIFT])
    n, gap, gap2, change, both = returns + PRIOR / 2 * prior
    gap, change = gap / n, change / n
    drift = max(0.0, (both / n - change * gap) / (gap2 / n - gap**2))
    return float(max(change - drift * gap, 0.1 * abs(change), 1e-4)), float(drift)

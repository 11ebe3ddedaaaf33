"""Predict every client's norm for the coming round, and draw accordingly."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np

from kvib import growing
from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import CLOSE, COUNT, FINITE, NOT_NEGATIVE, ORDINARY, POSITIVE, Range, demand
from kvib.policies.policy import Exploration, Forecasts, Policy, Setting, rounded
from kvib.procedures import pivotal
from kvib.types import FloatArray, IntArray

OUTLIER = 4.0
"""Surprises beyond this many standard deviations are pulled in: one explosion is not a trend."""
MEMORY = 0.99
"""Per round, of what variances are learned from: training changes them."""
NOISE, SPREAD, DRIFT, STEP = 0.03, 0.5, 0.01, 0.01
"""Variances before anything is known, worth PRIOR observations."""
PRIOR = 3.0
ANY_SCALE = 1e6
"""Variance of the trend before the first round: wide enough that the first norms alone decide."""
OLD, NEW = 0.9, 0.1
"""Weights of the past and of the new round in the variance of the trend's step: about ten rounds
count, since training changes it."""
SMALLEST_STEP, SMALLEST_SPREAD, SMALLEST_NOISE = 1e-6, 1e-3, 1e-4
"""Lower bounds of variances of logarithms, for deviations of 0.1 %, 3 % and 1 %. What has no
variance is taken for certain, and nothing more is learned of it."""
LEAST_SHARE = 0.1
"""A spread is at least this part of the noise, and a noise this part of the mean squared change:
differences of moments estimate both, and may be negative by chance."""
SLOWER = 0.1
"""Variance of a slope's step, in units of the trend's."""
LARGEST_VARIANCE = 2.0
"""Of an offset in a score, exp(mean + variance): beyond it the tail of a normal law is fiction."""
STALE = 1.0
"""Variance that offsets have gained since the last refit when scores are worth a new one."""
SCORED = 16
"""Clients that such a refit may score for every one that was drawn since the last."""
ALIKE = 1e-9
"""Logarithms whose deviation is smaller are equal but for rounding."""
SMALLEST_LOG, LARGEST_LOG = -700.0, 700.0
"""exp of them is still a positive number, and a finite one."""
BLOCK = 1 << 16
"""Clients scored at once at a refit, so that what is computed on the way stays in the cache."""


class ForecastState(NamedTuple):
    """What is known of log‖g‖ = β·x + offset + noise."""

    log_score: FloatArray
    """[N]; changed for drawn clients only, except at refits."""
    log_weight: FloatArray
    features: FloatArray
    """x, [d + 1, N]: 1, log λ, and what else is known, standardised, logarithms of what is
    positive."""
    offset: FloatArray
    """What a client's own updates say of its offset, [N]."""
    precision: FloatArray
    """How surely, when it was last seen; 0 if never."""
    seen: FloatArray
    """Round of the last answer, [N]."""
    slope: FloatArray
    """β, [d + 1], of the trend and of every feature; moves with training."""
    slope_covariance: FloatArray
    """[d + 1, d + 1]."""
    step: float
    """Variance of the trend's change in a round."""
    noise: float
    """σ², of one observation."""
    spread: float
    """τ², of the offsets."""
    drift: float
    """Variance that an offset gains in a round."""
    returns: FloatArray
    """Moments of (gap, squared change) of clients seen again: n, Σg, Σg², Σc, Σgc, [5]."""
    middle: float
    """Mean of log λ at the beginning, and 1 / its deviation: the units of its feature."""
    narrow: float
    level: float
    """The largest log score at the last refit: the unit of scores."""
    fitted: int
    """Round of the last refit."""
    round: int
    """Of the last feedback; −1 before."""


@dataclass(frozen=True)
class Forecast(Policy[ForecastState]):
    """Draw by the norm that each client is about to have: p ∝ λ·√E‖g‖².

    log‖g_i‖ = β·x_i + offset_i + noise, where x_i is 1, log λ_i, and what else the sampler was told
    (`variables`): a trend and slopes that move with training. Offsets are shrunk to 0, learned when
    a client is seen, and grow uncertain while it is not, which raises the score
    λ·exp(mean + variance). The variances are learned too: no horizon, no scale, nothing to tune.
    Any p that depends on the past alone keeps the estimate unbiased.

    Scores of clients that are not drawn move by a common factor, except when the regression is
    fitted anew, in rounds ever farther apart: O(K) work per round, O(N log T) over T rounds. Where
    norms move so fast that scores are stale sooner, so are refits, at a few clients per one drawn.

    Args:
        floor: share of the budget that is spent in proportion to λ, whatever is forecast. Where
            drawing has no costs it bounds every coefficient λ/p by max(λ, 1/K)/floor: of clients
            with λ > 1/K, who would always be drawn by size, by λ/floor.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.Forecast(), weights=[30, 10, 60], budget=2, seed=1)
        >>> cohort = sampler.draw()
        >>> sampler.update(cohort, norms=[0.5] * len(cohort))
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
        """All norms alike: p ∝ λ, the best guess before any was seen."""
        N, log_weight = len(setting.weights), np.log(setting.weights)
        known = [_standard(x) for x in (setting.weights, *setting.variables.T)]
        features = np.array([np.ones(N), *known])
        return ForecastState(
            log_score=log_weight.copy(),
            log_weight=log_weight,
            features=features,
            offset=np.zeros(N),
            precision=np.zeros(N),
            seen=np.zeros(N),
            slope=np.zeros(len(features)),
            slope_covariance=np.diag([ANY_SCALE, *_shares(len(known))]),
            step=STEP,
            noise=NOISE,
            spread=SPREAD,
            drift=DRIFT,
            returns=np.zeros(5),
            middle=float(log_weight.mean()),
            narrow=_narrow(log_weight),
            level=float(log_weight.max()),
            fitted=0,
            round=-1,
        )

    def exploration(self, state: ForecastState, round: int) -> Exploration:
        """Part of the budget by weight: where λ is all that is known that is the best guess."""
        return Exploration(mix=self.floor, by_weight=True)

    def epoch(self, state: ForecastState) -> int:
        """Refits change all scores."""
        return state.fitted

    def scores(self, state: ForecastState, ids: IntArray) -> FloatArray:
        """λ·√E‖g‖², up to a common factor."""
        logs = state.log_score[ids] - state.level
        return rounded(np.exp(np.clip(logs, SMALLEST_LOG, LARGEST_LOG)))

    def check(self, state: ForecastState, clients: int, round: int) -> None:
        """Nothing can be of a later round, and covariances must be some."""
        super().check(state, clients, round)
        known, last = len(state.features), max(state.round, 0)
        demand(state.round < round, f"state.round is {state.round}, and the next round {round}")
        demand(state.fitted <= last, "state.fitted is of a later round")
        demand(state.seen.max() <= last, "state.seen is of a later round")
        shapes = {"slope": (known,), "slope_covariance": (known, known), "returns": (5,)}
        for name, shape in shapes.items():
            intact.shaped(f"state.{name}", getattr(state, name), shape)
        demand((state.features[0] == 1).all(), "state.features does not begin with 1")
        covariance, (n, gap, gap2, *_) = state.slope_covariance, state.returns
        least, *_, most = np.linalg.eigvalsh(covariance)
        demand(least > -CLOSE * most, "state.slope_covariance has a negative variance")
        demand(n * gap2 >= gap**2 * (1 - CLOSE), "state.returns has a negative variance")

    def observe(self, state: ForecastState, cohort: Cohort, feedback: FloatArray) -> ForecastState:
        """A step of a Kalman filter, for the trend and for every client seen."""
        keep = feedback > 0  # a zero update has no logarithm, and says nothing of the next
        ids, t = cohort.ids[keep], max(cohort.round, state.round)
        if len(ids) == 0:
            return state
        y, x = np.log(feedback[keep]) - state.log_weight[ids], state.features[:, ids]
        age = _age(state, ids, t)
        mean, variance = _offset(state, ids, age)
        state = _follow(state, x, y - mean, variance + state.noise, t)
        unsure = np.einsum("di,de,ei->i", x, state.slope_covariance, x)
        limit = OUTLIER * np.sqrt(variance + state.noise + unsure)
        observed = mean + np.clip(y - state.slope @ x - mean, -limit, limit)
        _count_returns(state, ids, observed, t)
        precision = 1 / age + 1 / state.noise
        state.offset[ids] = (state.offset[ids] / age + observed / state.noise) / precision
        state.precision[ids], state.seen[ids] = precision, t
        _score(state, ids, t)
        return _refitted(state, t) if _due(state, len(ids), t) else state

    def enter(self, state: ForecastState, ids: IntArray, weights: FloatArray) -> ForecastState:
        """Never seen; the place of their weights among the others' says what to expect."""
        state.offset[ids] = state.precision[ids] = state.seen[ids] = 0.0
        state.features[0, ids] = 1.0
        return self._weighed(state, ids, weights)

    def reweigh(
        self, state: ForecastState, ids: IntArray, weights: FloatArray, ratio: FloatArray
    ) -> ForecastState:
        """Norms are those of updates, whatever they weigh."""
        return self._weighed(state, ids, weights)

    def _weighed(self, state: ForecastState, ids: IntArray, weights: FloatArray) -> ForecastState:
        state.log_weight[ids] = np.log(weights)
        state.features[1, ids] = (state.log_weight[ids] - state.middle) * state.narrow
        _score(state, ids, max(state.round, 0))
        return state

    def forecast(self, state: ForecastState, round: int, level: float = 0.9) -> Forecasts:
        """Medians of ‖g‖ and intervals that hold it with this probability, [N]."""
        ids, x = np.arange(len(state.offset)), state.features
        if state.round < 0:
            nothing = np.full(len(ids), math.nan)
            return Forecasts(nothing, nothing, nothing)
        mean, variance = _offset(state, ids, _age(state, ids, round))
        ahead = state.slope_covariance + _steps(state, round)
        unsure = np.einsum("di,de,ei->i", x, ahead, x)
        width = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(variance + state.noise + unsure)
        middle = state.slope @ x + mean
        logs = np.clip((middle - width, middle, middle + width), SMALLEST_LOG, LARGEST_LOG)
        low, middle, high = np.exp(logs)
        return Forecasts(middle, low, high)


def _due(state: ForecastState, drawn: int, t: int) -> bool:
    """In rounds ever farther apart; sooner where offsets move fast, but never so often that more
    than a few clients are scored for every one drawn."""
    gap = t - state.fitted
    stale = state.drift * gap > STALE and _is_for_all(state, SCORED * gap * drawn)
    return stale or gap >= max(1, state.fitted // 4)


def _is_for_all(state: ForecastState, scored: int) -> bool:
    """Whether this many is at least the number of clients; room for more must not count, since a
    sampler that is loaded has none."""
    entries = len(state.offset)
    if not growing.fewest(entries) <= scored < entries:
        return scored >= entries
    return scored >= int(np.count_nonzero(state.features[0]))


def _standard(x: FloatArray) -> FloatArray:
    """Centred, with deviation 1; logarithms where all are positive, zeros where all are alike."""
    logs = np.log(x) if (x > 0).all() else x
    return np.asarray((logs - logs.mean()) * _narrow(logs))


def _narrow(x: FloatArray) -> float:
    """1 / deviation; 0 where all are alike."""
    scale = float((x - x.mean()).std())
    return 1 / scale if scale > ALIKE else 0.0


def _age(state: ForecastState, ids: IntArray, t: int) -> FloatArray:
    """Variance of `offset` by round t; infinite for clients never seen."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / state.precision[ids] + state.drift * (t - state.seen[ids]))


def _offset(state: ForecastState, ids: IntArray, age: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the offset: what the client has shown, shrunk to 0."""
    variance = 1 / (1 / age + 1 / state.spread)
    return variance * state.offset[ids] / age, variance


def _score(state: ForecastState, ids: IntArray, t: int) -> None:
    """log λ·√E‖g‖² as of the last refit: until the next one all uncertainties are taken to grow
    alike, up to what an offset in a score can have."""
    mean, variance = _offset(state, ids, _age(state, ids, t))
    forecast = state.slope[1:] @ state.features[1:, ids] + mean  # the trend is common to all
    grown = min(state.drift * (t - state.fitted), LARGEST_VARIANCE)
    state.log_score[ids] = (
        state.log_weight[ids] + forecast + np.minimum(variance, LARGEST_VARIANCE) - grown
    )


def _shares(slopes: int) -> FloatArray:
    """Variances of the slopes before anything is known, [d]: 1 for that of log λ, 1 for all others
    together, so that many useless variables say no more than one."""
    return np.array([1.0, *np.full(slopes - 1, 1 / max(slopes - 1, 1))])


def _steps(state: ForecastState, t: int) -> FloatArray:
    """Covariance that trend and slopes gain until round t."""
    step = np.array([1.0, *(SLOWER * _shares(len(state.slope) - 1))])
    return np.diag(step * state.step * max(1, t - state.round))


def _follow(
    state: ForecastState, x: FloatArray, y: FloatArray, variance: FloatArray, t: int
) -> ForecastState:
    """Trend and slopes are random walks, seen through the drawn: a Kalman filter."""
    before = state.slope_covariance + _steps(state, t)
    off, information = y - state.slope @ x, x / variance
    after = np.asarray(np.linalg.inv(np.linalg.inv(before) + information @ x.T), np.float64)
    slope, step = state.slope + after @ (information @ off), state.step
    if state.round >= 0:  # how far the drawn are off together, beyond what was to be expected
        weight = 1 / variance / (1 / variance).sum()
        middle = x @ weight
        chance = 1 / (1 / variance).sum() + middle @ state.slope_covariance @ middle
        surprise = max(0.0, float(weight @ off) ** 2 - float(chance))
        step = max(OLD * step + NEW * surprise, SMALLEST_STEP)
    return state._replace(slope=slope, slope_covariance=after, step=step, round=t)


def _count_returns(state: ForecastState, ids: IntArray, observed: FloatArray, t: int) -> None:
    """A client seen again after g rounds has changed by σ² + drift·g, its own error apart."""
    again = state.precision[ids] > 0
    ids = ids[again]
    gap = t - state.seen[ids]
    change = (observed[again] - state.offset[ids]) ** 2 - 1 / state.precision[ids]
    state.returns[:] *= MEMORY
    state.returns[:] += np.array([len(gap), gap.sum(), gap @ gap, change.sum(), change @ gap])


def _refitted(state: ForecastState, t: int) -> ForecastState:
    """Variances by moments; what offsets have in common goes to the slopes; then all scores."""
    noise, drift = _noise_and_drift(state.returns)
    state = state._replace(noise=noise, drift=drift, fitted=t)
    ids = np.flatnonzero(state.precision > 0)
    x, age = state.features[:, ids], _age(state, ids, t)
    weighted = x / (state.spread + age)
    ridge = np.diag([1.0, *(1 / _shares(len(x) - 1))])
    common = np.linalg.solve(weighted @ x.T + ridge, weighted @ state.offset[ids])
    state.offset[ids] -= common @ x
    excess = state.offset[ids] ** 2 - 1 / state.precision[ids]
    spread = float((PRIOR * SPREAD + excess.sum()) / (PRIOR + len(ids)))
    spread = max(spread, LEAST_SHARE * noise, SMALLEST_SPREAD)
    state = state._replace(slope=state.slope + common, spread=spread)
    everybody = np.flatnonzero(state.features[0])  # not what is kept free for newcomers
    for low in range(0, len(everybody), BLOCK):
        _score(state, everybody[low : low + BLOCK], t)
    return state._replace(level=float(state.log_score[everybody].max()))


def _noise_and_drift(returns: FloatArray) -> tuple[float, float]:
    """The line through squared changes against gaps; PRIOR gaps of one round and of two."""
    prior = np.array([2, 3, 5, 2 * NOISE + 3 * DRIFT, 3 * NOISE + 5 * DRIFT])
    n, gap, gap2, change, both = returns + PRIOR / 2 * prior
    gap, change = gap / n, change / n
    drift = max(0.0, (both / n - change * gap) / (gap2 / n - gap**2))
    noise = max(change - drift * gap, LEAST_SHARE * abs(change), SMALLEST_NOISE)
    return float(noise), float(drift)

"""The model behind `Forecast`: log‖g‖ = β·x + offset + noise, followed by a Kalman filter.

β (the trend and the slopes) and the offsets are random walks. β is common to all clients and moves
every round. The offset of a client is learned when the client is seen, and its variance grows while
the client is not seen. All variances are variances of logarithms.
"""

from typing import NamedTuple

import numpy as np

from kvib import growing
from kvib.types import FloatArray, IntArray

OUTLIER = 4.0
"""Standard deviations at which a surprise is cut off: one explosion is not a trend."""
FORGETTING = 0.99
"""The factor by which the moments of earlier rounds shrink per round, since training changes the
variances that are learned from them."""
NOISE, SPREAD, DRIFT, STEP = 0.03, 0.5, 0.01, 0.01
"""The variances before anything is known."""
PRIOR = 3.0
"""The number of observations that these first variances count as."""
ANY_SCALE = 1e6
"""The variance of the trend before the first round: so wide that the first norms alone decide."""
OLD, NEW = 0.9, 0.1
"""The weights of the past and of the new round in the variance of the trend's step: about ten
rounds count, since training changes it."""
SMALLEST_STEP, SMALLEST_SPREAD, SMALLEST_NOISE = 1e-6, 1e-3, 1e-4
"""Lower bounds of variances, for standard deviations of 0.1 %, 3 % and 1 %. A quantity without
variance counts as certain, and nothing more would be learned about it."""
LEAST_SHARE = 0.1
"""The least spread in units of the noise, and the least noise in units of the mean squared change.
Both are estimated by differences of moments, which may be negative by chance."""
SLOWER = 0.1
"""The variance of a slope's step, in units of the trend's."""
LARGEST_VARIANCE = 2.0
"""The largest variance of an offset in a score exp(mean + variance): beyond it the tail of a normal
law is fiction."""
STALE = 1.0
"""The variance gained by offsets since the last refit at which scores are worth a new refit."""
SCORED = 16
"""The number of clients that an early refit may score per client drawn since the last refit."""
REFIT_DIVISOR = 4
"""The divisor of the refit schedule: after a refit in round t the next one is due in round
t + max(1, ⌊t/4⌋) at the latest, so that T rounds need O(log T) refits of this kind."""
ALIKE = 1e-9
"""The standard deviation of logarithms below which they differ by rounding only."""
BLOCK = 1 << 16
"""The number of clients that a refit scores at once, so that intermediate arrays stay in the
cache."""


class ForecastState(NamedTuple):
    """Everything that is known about log‖g‖ = β·x + offset + noise."""

    log_score: FloatArray
    """The logarithm of each score, [N]. Between refits it changes only for clients that
    are observed, join or change their weight."""
    log_weight: FloatArray
    """log λ, [N]."""
    features: FloatArray
    """x, [d + 1, N]: 1, log λ, and the `variables` of the sampler, standardised. Positive variables
    are taken as logarithms."""
    offset: FloatArray
    """The offset that a client's own updates show, before it is shrunk to 0, [N]."""
    precision: FloatArray
    """1 / variance of `offset` when the client was last seen, [N]; 0 if it was never seen."""
    seen: FloatArray
    """The round of the last answer, [N]."""
    slope: FloatArray
    """β, [d + 1]: the trend, and the slope of every feature. It moves with training."""
    slope_covariance: FloatArray
    """The covariance of `slope`, [d + 1, d + 1]."""
    step: float
    """The variance of the trend's change in a round."""
    noise: float
    """σ², the variance of one observation."""
    spread: float
    """τ², the variance of the offsets among clients."""
    drift: float
    """The variance that an offset gains in a round."""
    returns: FloatArray
    """Moments of (gap g, squared change c) of clients seen again: n, Σg, Σg², Σc, Σgc, [5]."""
    middle: float
    """The mean of log λ at the beginning."""
    narrow: float
    """1 / standard deviation of log λ at the beginning. Both numbers standardise its feature."""
    level: float
    """The largest log score at the last refit: the unit of scores."""
    fitted: int
    """The round of the last refit."""
    round: int
    """The round of the last feedback; −1 before the first."""


def standardised(x: FloatArray) -> FloatArray:
    """x with mean 0 and standard deviation 1, [N]; zeros where all entries are alike.

    If all entries are positive, their logarithms are taken first.
    """
    logs = np.log(x) if (x > 0).all() else x
    return np.asarray((logs - logs.mean()) * inverse_deviation(logs))


def inverse_deviation(x: FloatArray) -> float:
    """1 / standard deviation; 0 where all entries are alike."""
    scale = float((x - x.mean()).std())
    return 1 / scale if scale > ALIKE else 0.0


def prior_variances(slopes: int) -> FloatArray:
    """The variances of the slopes before anything is known, [d].

    They are 1 for the slope of log λ, and 1 for all others together, so that many useless variables
    add no more uncertainty than one.
    """
    return np.array([1.0, *np.full(slopes - 1, 1 / max(slopes - 1, 1))])


def offset_variance(state: ForecastState, ids: IntArray, t: int) -> FloatArray:
    """The variance of `offset` by round t, [m]; infinite for clients that were never seen."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / state.precision[ids] + state.drift * (t - state.seen[ids]))


def shrunk_offset(
    state: ForecastState, ids: IntArray, own: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of each offset, shrunk to 0, [m] each.

    Two sources are weighed by their precisions: the offset that the client's own updates show, with
    the variance `own`, and the prior, with mean 0 and the variance `spread`.
    """
    variance = 1 / (1 / own + 1 / state.spread)
    return variance * state.offset[ids] / own, variance


def slope_steps(state: ForecastState, t: int) -> FloatArray:
    """The covariance that trend and slopes gain until round t, [d + 1, d + 1]."""
    step = np.array([1.0, *(SLOWER * prior_variances(len(state.slope) - 1))])
    return np.diag(step * state.step * max(1, t - state.round))


def rescore(state: ForecastState, ids: IntArray, t: int) -> None:
    """Set log_score = log(λ·√E‖g‖²) of these clients, in place, up to terms common to all clients.

    √E‖g‖² = exp(mean + variance). Until the next refit the variances of all clients are taken to
    grow alike, by the drift per round and by LARGEST_VARIANCE at most. That growth is subtracted
    here, so that this score is comparable with scores that were set in other rounds.
    """
    mean, variance = shrunk_offset(state, ids, offset_variance(state, ids, t))
    forecast = state.slope[1:] @ state.features[1:, ids] + mean  # the trend is common to all
    grown = min(state.drift * (t - state.fitted), LARGEST_VARIANCE)
    state.log_score[ids] = (
        state.log_weight[ids] + forecast + np.minimum(variance, LARGEST_VARIANCE) - grown
    )


def followed(
    state: ForecastState, x: FloatArray, y: FloatArray, variance: FloatArray, t: int
) -> ForecastState:
    """The state after a Kalman step of trend and slopes, which are random walks.

    Args:
        state: The state before round t.
        x: The features of the observed clients, [d + 1, m].
        y: Their log‖g‖ without their offsets, [m].
        variance: The variance of each y, [m].
        t: The round.
    """
    before = state.slope_covariance + slope_steps(state, t)
    off, information = y - state.slope @ x, x / variance
    after = np.asarray(np.linalg.inv(np.linalg.inv(before) + information @ x.T), np.float64)
    slope, step = state.slope + after @ (information @ off), state.step
    if state.round >= 0:
        # The step's variance: how far all observed clients are off together, beyond what their
        # own variances and the slopes' covariance explain.
        weight = 1 / variance / (1 / variance).sum()
        middle = x @ weight
        explained = 1 / (1 / variance).sum() + middle @ state.slope_covariance @ middle
        surprise = max(0.0, float(weight @ off) ** 2 - float(explained))
        step = max(OLD * step + NEW * surprise, SMALLEST_STEP)
    return state._replace(slope=slope, slope_covariance=after, step=step, round=t)


def count_returns(state: ForecastState, ids: IntArray, observed: FloatArray, t: int) -> None:
    """Add the squared changes of clients that were seen before to the moments, in place.

    A client that is seen again after g rounds has changed by σ² + drift·g in the mean square, once
    the error of its old offset is subtracted.
    """
    again = state.precision[ids] > 0
    ids = ids[again]
    gap = t - state.seen[ids]
    change = (observed[again] - state.offset[ids]) ** 2 - 1 / state.precision[ids]
    state.returns[:] *= FORGETTING
    state.returns[:] += np.array([len(gap), gap.sum(), gap @ gap, change.sum(), change @ gap])


def is_refit_due(state: ForecastState, drawn: int, t: int) -> bool:
    """Whether the model is fitted anew in this round.

    The rounds of refits are farther and farther apart. A refit comes earlier where offsets move
    fast, but not if it would score more than `SCORED` clients per client drawn since the last one.
    """
    gap = t - state.fitted
    stale = state.drift * gap > STALE and _covers_all(state, SCORED * gap * drawn)
    return stale or gap >= max(1, state.fitted // REFIT_DIVISOR)


def _covers_all(state: ForecastState, scored: int) -> bool:
    """Whether this number is at least the number of clients.

    Spare entries of the arrays do not count, since a sampler that was loaded has none. Clients are
    counted only where the length of the arrays does not decide.
    """
    entries = len(state.offset)
    if not growing.fewest(entries) <= scored < entries:
        return scored >= entries
    return scored >= int(np.count_nonzero(state.features[0]))


def refitted(state: ForecastState, t: int) -> ForecastState:
    """The state after a refit: variances, slopes and all scores are computed anew."""
    noise, drift = _noise_and_drift(state.returns)
    state = state._replace(noise=noise, drift=drift, fitted=t)

    # What the offsets have in common is explained by the features: a ridge regression moves it
    # from the offsets to the slopes.
    ids = np.flatnonzero(state.precision > 0)
    x, own = state.features[:, ids], offset_variance(state, ids, t)
    weighted = x / (state.spread + own)
    ridge = np.diag([1.0, *(1 / prior_variances(len(x) - 1))])
    common = np.linalg.solve(weighted @ x.T + ridge, weighted @ state.offset[ids])
    state.offset[ids] -= common @ x

    # The spread by moments: E[offset²] = τ² + 1/precision.
    excess = state.offset[ids] ** 2 - 1 / state.precision[ids]
    spread = float((PRIOR * SPREAD + excess.sum()) / (PRIOR + len(ids)))
    spread = max(spread, LEAST_SHARE * noise, SMALLEST_SPREAD)
    state = state._replace(slope=state.slope + common, spread=spread)

    # All scores, but not those of spare entries, whose first feature is 0.
    clients = np.flatnonzero(state.features[0])
    for low in range(0, len(clients), BLOCK):
        rescore(state, clients[low : low + BLOCK], t)
    return state._replace(level=float(state.log_score[clients].max()))


def _noise_and_drift(returns: FloatArray) -> tuple[float, float]:
    """σ² and the drift: the line σ² + drift·gap through the squared changes of returning clients.

    The prior is PRIOR observations, half of them with a gap of one round and half with two.
    """
    # The moments (n, Σg, Σg², Σc, Σgc) of one observation with each of the two gaps.
    prior = np.array([2, 3, 5, 2 * NOISE + 3 * DRIFT, 3 * NOISE + 5 * DRIFT])
    n, gap, gap2, change, both = returns + PRIOR / 2 * prior
    gap, change = gap / n, change / n
    drift = max(0.0, (both / n - change * gap) / (gap2 / n - gap**2))
    noise = max(change - drift * gap, LEAST_SHARE * abs(change), SMALLEST_NOISE)
    return float(noise), float(drift)

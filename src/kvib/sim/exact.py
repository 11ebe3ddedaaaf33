"""Exact measures of a round, from the updates of all clients, never from one draw."""

import math

import numpy as np

from kvib.analysis import metrics
from kvib.analysis.metrics import Measurement
from kvib.estimators.estimate import unbiased
from kvib.estimators.streaming import Coefficients
from kvib.procedures import Procedure
from kvib.sampler.sampler import Sampler
from kvib.sim.full_round import FullRound
from kvib.sim.stragglers import Stakes
from kvib.types import FloatArray, IntArray

DRAWS = 100
"""The number of Monte Carlo draws where the variance of a procedure has no closed form. The record
states the standard error that they leave."""
NO_CLIENT = {
    "sampling_cost": 0.0,
    "optimal_sampling_cost": 0.0,
    "quality": 0.0,
    "optimal_factor": 1.0,
}
"""Measures of a round in which no client can be drawn."""


def needs_gram(procedure: Procedure) -> bool:
    """Whether the variance of a procedure depends on the directions of the updates, pair by pair.

    It does not where the ratio of all pairs is one number.
    """
    if procedure.pairs is None:
        return True
    return not isinstance(procedure.pairs(np.array([0.5, 0.5]), np.arange(2)).ratio, float)


def measures(
    sampler: Sampler,
    full: FullRound,
    stakes: Stakes,
    p: FloatArray,
    coefficients: Coefficients,
    rng: np.random.Generator,
) -> dict[str, float]:
    """The exact fields of a `Record`, for the upcoming draw with expected counts p, [N].

    Given which clients are available, the draw has the variance of a draw among them with feedback
    π = taken·λ‖g‖. What availability adds is its mean, not what happened in this round.
    """
    # Variance and bias, over draw, silence and absence.
    at, prices = np.flatnonzero(p > 0), sampler.state.prices
    pi = sampler.weights * full.norms * stakes.taken
    stays = ~stakes.waits
    absence = metrics.absence((stakes.presence * pi)[stays], stakes.presence[stays])
    known = coefficients is unbiased and stakes.settled
    noise = Measurement(math.nan, math.nan)
    if known:
        noise = _noise(sampler, full, stakes, p, at, rng)
    measured = {
        "variance": noise.value + absence,
        "variance_error": noise.error,
        "bias": full.bias if known else math.nan,
    }
    if not len(at):
        return measured | NO_CLIENT | {"optimal_variance": absence}
    # The best probabilities that spend the same budget on the clients that can be drawn.
    e, pi, r = p[at], pi[at], stakes.response[at]
    price = prices.of(at) if prices.differ else None
    K = prices.requested(sampler.budget, len(p))
    K = min(K, len(at) if price is None else float(price.sum()))
    best = metrics.optimal_probabilities(pi, K, r, price)
    return measured | {
        "sampling_cost": metrics.sampling_cost(e, pi, r),
        "optimal_sampling_cost": metrics.sampling_cost(best, pi, r),
        "optimal_variance": metrics.variance(best, pi, response=r).value + absence,
        "quality": metrics.quality(e, pi, K, r, price),
        "optimal_factor": metrics.optimal_factor(pi, K, r, price),
    }


def _noise(
    sampler: Sampler,
    full: FullRound,
    stakes: Stakes,
    p: FloatArray,
    at: IntArray,
    rng: np.random.Generator,
) -> Measurement:
    """The variance of draw and silence, given which clients are available."""
    if not len(at):
        return Measurement(0.0)
    gram = full.gram
    if gram is None and needs_gram(sampler.procedure):
        return Measurement(math.nan, math.nan)
    if gram is not None:
        gram = gram[np.ix_(at, at)] * np.outer(stakes.taken[at], stakes.taken[at])
    return metrics.variance(
        p[at],
        (sampler.weights * full.norms * stakes.taken)[at],
        sampler.procedure,
        total=full.total,
        gram=gram,
        draws=DRAWS,
        rng=rng,
        variables=sampler.state.eligible.balanced_on(at),
        response=stakes.response[at],
    )

"""The updates of all clients in a round (full participation), for exact metrics and oracles."""

import math
from typing import NamedTuple

import numpy as np

from kvib.estimators.difference import Remembered
from kvib.sim.engines.engine import NoWorkerError, Vector
from kvib.sim.stragglers import Stakes
from kvib.sim.training import Training
from kvib.types import FloatArray

TRIES = 5
"""The number of times that lost clients are trained before the run stops: exact metrics need all
clients."""


class FullRound(NamedTuple):
    """Measures of what all clients would send in a round."""

    norms: FloatArray
    """‖g‖ of all clients, [N]. With a memory it is ‖g − βh‖, since only that is sampled."""
    total: float
    """‖Σ taken·λg‖² of the clients that can be drawn: the squared norm of the mean estimate, given
    which clients are available."""
    bias: float
    """‖E[d] − D‖, where D is the step of all clients."""
    gram: FloatArray | None
    """Inner products of all λg, [N, N], if they were asked for."""

    @property
    def sound(self) -> bool:
        """Whether the updates of all clients are finite. Otherwise there is no full step."""
        return bool(np.isfinite(self.norms).all())


def full_round(
    training: Training,
    model: Vector,
    t: int,
    weights: FloatArray,
    stakes: Stakes,
    memory: Remembered | None = None,
    with_gram: bool = False,
) -> FullRound:
    """Train all clients from a model, as in full participation, and measure their updates.

    Args:
        training: The task and its engine.
        model: The model that clients start from.
        t: The round.
        weights: λ of all clients, [N].
        stakes: The share of every client's update in the estimate.
        memory: The updates that the estimator remembers. Only the difference to them is sampled.
        with_gram: Whether all inner products are wanted, which takes all updates at once.
    """
    engine, N = training.engine, len(training.task)
    if engine.remote and not with_gram and memory is None:
        return _added_up(training, model, t, weights, stakes)
    norms, mean, off, kept = np.empty(N), model * 0, model * 0, []
    taken = weights * stakes.taken * stakes.drawable
    # Chunk by chunk: norms, the mean estimate Σ taken·λg, and the error E[d] − D.
    for ids, batches in engine.chunks(training.work(np.arange(N), t)):
        updates = new = engine.updates(model, batches)
        if memory is not None:
            new = memory.residuals(ids, updates)
        norms[ids] = engine.norms(new)
        mean = mean + engine.combine(taken[ids], new)
        if not stakes.unbiased:
            off = off + engine.combine((weights * stakes.off)[ids], new)
            off = off - engine.combine((weights * (1 - stakes.stands))[ids], updates)
        if with_gram:
            kept.append(new)
    # Inner products of all pairs, if they are wanted and finite.
    gram = None
    if with_gram and np.isfinite(norms).all():
        gram = np.block([[engine.gram(a, b) for b in kept] for a in kept])
        gram *= np.outer(weights, weights)
    return FullRound(norms, training.length(mean) ** 2, training.length(off), gram)


def _added_up(
    training: Training, model: Vector, t: int, weights: FloatArray, stakes: Stakes
) -> FullRound:
    """The full round on an engine whose updates stay on remote workers: sums come back."""
    norms, mean = _summed(training, model, t, weights * stakes.taken * stakes.drawable)
    bias = 0.0
    if not stakes.unbiased:  # then all clients train once more
        _, off = _summed(training, model, t, weights * (stakes.off + stakes.stands - 1))
        bias = training.length(off)
    return FullRound(norms, training.length(mean) ** 2, bias, None)


def _summed(
    training: Training, model: Vector, t: int, coefficients: FloatArray
) -> tuple[FloatArray, Vector]:
    """Norms of all clients, [N], and Σ coefficient·g, [d]. Lost clients are trained again."""
    N = len(training.task)
    batches = training.work(np.arange(N), t)
    norms, total = np.full(N, math.nan), model * 0
    for _ in range(TRIES):
        left = np.flatnonzero(np.isnan(norms))
        if not len(left):
            return norms, total
        found = training.engine.summed(model, batches.part(left), coefficients[left])
        norms[left], total = found.norms, total + found.total
    if np.isnan(norms).any():
        client = int(np.flatnonzero(np.isnan(norms))[0])
        raise NoWorkerError(
            f"client {client} was lost {TRIES} times in round {t}, and exact metrics need "
            "everybody; look at the cluster, or raise patience; the last checkpoint is from "
            "before"
        )
    return norms, total

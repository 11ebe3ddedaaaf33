"""How likely clients are to be available, or to answer."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib import intact, room
from kvib.cohort import FloatArray, IntArray
from kvib.intact import COUNT, POSITIVE, Range, demand

SMALLEST_RATE = 1e-9


class RateState(NamedTuple):
    """What was counted, or the known rate."""

    known: FloatArray
    """[1] if all share it, [N], or [0] when the rate is estimated."""
    trials: IntArray
    """[N], or [0] when the rate is known."""
    hits: IntArray
    total_trials: int = 0
    total_hits: int = 0
    strength: float = 0.0


@dataclass(frozen=True)
class EstimatedRate:
    """A rate per client, learned from how often it came; until somebody fails, exactly 1.

    q_i = (s·q̄ + hits_i)/(s + trials_i): the client's own frequency, shrunk to the common one q̄ as
    if s further trials had gone like everybody's. Estimates that use it are consistent, not
    unbiased, and their cohorts say so.

    Args:
        strength: s.
    """

    strength: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.strength < np.inf:
            raise ValueError(f"strength={self.strength} is not a positive number")


def start(rate: ArrayLike | EstimatedRate, clients: int, name: str) -> RateState:
    """The state of a rate that was given (a number, or one per client) or is to be estimated."""
    none = np.empty(0)
    if isinstance(rate, EstimatedRate):
        trials, hits = np.zeros((2, clients), dtype=np.int64)
        return RateState(none, trials, hits, strength=rate.strength)
    known = np.array(rate, dtype=np.float64)
    if known.shape not in ((), (clients,)):
        raise ValueError(
            f"{name} has shape {known.shape} for {clients} clients; give a number, one per client, "
            "or kvib.EstimatedRate()"
        )
    if not ((known >= SMALLEST_RATE) & (known <= 1)).all():
        raise ValueError(
            f"{name} must be probabilities from {SMALLEST_RATE:g} to 1, not {known.min()} to "
            f"{known.max()}; leave out clients that never answer"
        )
    return RateState(np.atleast_1d(known), none.astype(np.int64), none.astype(np.int64))


def checked(state: RateState, clients: int, name: str) -> RateState:
    """Refuse a state that was read and cannot be one of this many clients."""
    known, trials, hits = (len(values) for values in (state.known, state.trials, state.hits))
    demand(
        (known, trials, hits) in ((1, 0, 0), (clients, 0, 0), (0, clients, clients)),
        f"{name} is of {max(known, trials, hits)} clients, not of {clients} clients",
    )
    for field in ("trials", "hits", "total_trials", "total_hits"):
        intact.within(f"{name}.{field}", getattr(state, field), COUNT)
    if is_known(state):
        most = Range("probabilities", SMALLEST_RATE, 1.0)
        intact.within(f"{name}.known", state.known, most)
        return state
    intact.within(f"{name}.strength", state.strength, POSITIVE)
    demand((state.hits <= state.trials).all(), f"{name}.hits are more than {name}.trials")
    for total, each in ((state.total_trials, state.trials), (state.total_hits, state.hits)):
        demand(total == each.sum(), f"{name} counts {total} in all, and {each.sum()} one by one")
    return state


def is_known(state: RateState) -> bool:
    """Whether the rate was given, not learned."""
    return len(state.known) > 0


def at(state: RateState, ids: IntArray) -> FloatArray:
    """The rate of these clients, [m]."""
    if is_known(state):
        return np.full(len(ids), state.known[0]) if len(state.known) == 1 else state.known[ids]
    s = state.strength
    return (s * common(state) + state.hits[ids]) / (s + state.trials[ids])


def observe(state: RateState, ids: IntArray, hits: Any) -> RateState:
    """Count one trial of each of these clients."""
    if is_known(state):
        return state
    state.trials[ids] += 1
    state.hits[ids] += hits
    return state._replace(
        total_trials=state.total_trials + len(ids),
        total_hits=state.total_hits + int(np.count_nonzero(hits)),
    )


def common(state: RateState) -> float:
    """q̄ of a rate that is being learned."""
    return (1 + state.total_hits) / (1 + state.total_trials)


def widened(state: RateState, entries: int) -> RateState:
    """Room for more clients, who were never tried."""
    if is_known(state):
        return state
    trials, hits = (room.widened(counts, entries) for counts in (state.trials, state.hits))
    return state._replace(trials=trials, hits=hits)


def cut(state: RateState, clients: int) -> RateState:
    """Without room for more."""
    return state._replace(trials=state.trials[:clients], hits=state.hits[:clients])

"""Two rates per client, known or learned: how likely it is available, and how likely it answers.

A trial is a round in which a client could be available (or answer), a hit is a trial in which it
was (or did), a miss is a trial in which it was not.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib import growing
from kvib.cohort import Cohort, Guarantee
from kvib.files import intact, storage
from kvib.files.intact import COUNT, POSITIVE, Range, demand
from kvib.files.part import Part, Saved
from kvib.types import Arrays, BoolArray, FloatArray, IntArray

SMALLEST_RATE = 1e-9
"""The smallest rate that a user may give."""
SHARE = Range("from 0 to 1", 0.0, 1.0)
UNLIKELY = 1e-4
"""If it is less likely than this that all clients miss at once, one event has caused all misses."""
DEVIATIONS = 4.0
"""Standard deviations by which a round must lie below the recent ones to count as an outage."""
FORGIVEN, RARE = 10, 0.05
"""Outages that are forgiven: ten rounds, or one round in twenty where that is more. What happens
more often is a property of the fleet, such as day and night, and is learned."""
YOUNGER = ("missed", "rounds", "outages", "lowest", "lately")
"""Fields of the state that files of version 0.1 lack."""
RECENT_SHARE_DECAY = 0.9
"""Weight of the past in the running mean of the share of hits."""


class RateState(NamedTuple):
    """The known rate, or the counts from which the rate is estimated."""

    known: FloatArray
    """The known rate: [1] if all clients share it, else [N]. It is [0] when the rate is
    estimated."""
    trials: IntArray
    """Counted trials of each client, [N], or [0] when the rate is known."""
    hits: IntArray
    """Counted hits of each client, [N], or [0] when the rate is known."""
    missed: IntArray
    """Counted misses since the last hit, [N], or [0] when the rate is known."""
    total_trials: int = 0
    """Σ trials."""
    total_hits: int = 0
    """Σ hits."""
    rounds: int = 0
    """The number of rounds that were observed, outages included."""
    outages: int = 0
    """The number of outages of the second kind of `EstimatedRate`, which were not counted."""
    strength: float = 0.0
    """s of `EstimatedRate`."""
    lowest: float = 0.0
    """The smallest estimate that is used."""
    lately: float = 0.0
    """The share of hits in recent rounds, a running mean; 0 before the first round."""


@dataclass(frozen=True)
class EstimatedRate:
    """A rate per client that is learned from how often the client was available, or answered.

    Every client starts with the common rate of all clients, and its own record counts more with
    every trial. Until a client misses, every rate is exactly 1. Estimates that divide by a learned
    rate are consistent, not unbiased, and their cohorts say so.

    q_i = (s·q̄ + hits_i)/(s + trials_i). This is the client's own frequency, shrunk to the common
    rate q̄ as if it had s further trials with the common outcome.

    An outage teaches nothing about a single client, so it is not counted. There are two kinds. In
    the first, all clients miss at once although their rates make this less likely than 1 in 10,000.
    In the second, the share of hits is below half of its running mean, and also four standard
    deviations below it. At most ten rounds, or one round in twenty, are outages of the second kind:
    a share that stays low becomes the expected one, and so does one that returns.

    Args:
        strength: The number s of trials that the common rate counts for.
        lowest: The smallest rate that is used, so that no client counts more than 1/lowest times.
            Clients whose rate is lower than that count too little.

    Examples:
        >>> import numpy as np, kvib
        >>> rate = kvib.EstimatedRate()
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 4, budget=4, response=rate, seed=0)
        >>> cohort = sampler.draw()
        >>> sampler.update(cohort, norms=[1.0, 1.0, 1.0, np.nan])          # client 3 did not answer
        >>> sampler.draw().answer_probability.round(2)
        array([0.83, 0.83, 0.83, 0.67])
    """

    strength: float = 5.0
    lowest: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.strength < np.inf:
            raise ValueError(f"strength={self.strength} is not a positive number")
        if not SMALLEST_RATE <= self.lowest <= 1:
            raise ValueError(
                f"lowest={self.lowest} is not a probability from {SMALLEST_RATE:g} to 1"
            )


def start(rate: ArrayLike | EstimatedRate, clients: int, name: str) -> RateState:
    """The state of a rate before the first round.

    Args:
        rate: A number, one number per client, or `EstimatedRate`.
        clients: The number of clients.
        name: The name of the rate in messages.
    """
    none = np.empty(0)
    nothing = none.astype(np.int64)
    if isinstance(rate, EstimatedRate):
        trials, hits, missed = np.zeros((3, clients), dtype=np.int64)
        return RateState(none, trials, hits, missed, strength=rate.strength, lowest=rate.lowest)
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
    return RateState(np.atleast_1d(known), nothing, nothing, nothing)


def checked(state: RateState, clients: int, name: str) -> RateState:
    """A state that was read from a file; an error where it cannot be one of this many clients."""
    known, *counted = (len(values) for values in state[:4])
    demand(
        (known, *counted) in ((1, 0, 0, 0), (clients, 0, 0, 0), (0, clients, clients, clients)),
        f"{name} is of {max(known, *counted)} clients, not of {clients} clients",
    )
    for field in ("trials", "hits", "missed", "total_trials", "total_hits", "rounds", "outages"):
        intact.within(f"{name}.{field}", getattr(state, field), COUNT)
    if is_known(state):
        most = Range("probabilities", SMALLEST_RATE, 1.0)
        intact.within(f"{name}.known", state.known, most)
        return state
    intact.within(f"{name}.strength", state.strength, POSITIVE)
    intact.within(f"{name}.lowest", state.lowest, SHARE)
    intact.within(f"{name}.lately", state.lately, SHARE)
    counts = state.hits + state.missed
    demand((counts <= state.trials).all(), f"{name}.hits and misses are more than {name}.trials")
    for total, each in ((state.total_trials, state.trials), (state.total_hits, state.hits)):
        demand(total == each.sum(), f"{name} counts {total} in all, and {each.sum()} one by one")
    return state


def is_known(state: RateState) -> bool:
    """Whether the rate is known, not learned."""
    return len(state.known) > 0


def at(state: RateState, ids: IntArray) -> FloatArray:
    """The rate of these clients, [m]."""
    if is_known(state):
        return np.full(len(ids), state.known[0]) if len(state.known) == 1 else state.known[ids]
    return _frequency(state, ids, state.trials[ids])


def before_absence(state: RateState, ids: IntArray) -> FloatArray:
    """The rate of these clients without the misses since their last hits, [m]."""
    if is_known(state):
        return at(state, ids)
    return _frequency(state, ids, state.trials[ids] - state.missed[ids])


def _frequency(state: RateState, ids: IntArray, trials: IntArray) -> FloatArray:
    """(s·q̄ + hits)/(s + trials) of these clients, at least `lowest`, [m]."""
    s = state.strength
    own = (s * common(state) + state.hits[ids]) / (s + trials)
    return np.maximum(own, state.lowest)


def observe(state: RateState, ids: IntArray, hits: Any) -> RateState:
    """Count one trial of each of these clients, unless the round is an outage.

    Args:
        state: The state before the round. Its arrays are changed in place.
        ids: The clients with a trial in this round.
        hits: Whether each trial was a hit, [m].
    """
    if is_known(state) or not len(ids):
        return state
    hit, share = np.asarray(hits, np.bool_), float(np.mean(hits))
    past = RECENT_SHARE_DECAY * (state.lately or share)
    recent = past + (1 - RECENT_SHARE_DECAY) * share
    after = state._replace(lately=recent, rounds=state.rounds + 1)
    if not hit.any() and _is_one_event(state, ids):
        return after
    if _is_outage(state, len(ids), int(np.count_nonzero(hit))):
        return after._replace(outages=state.outages + 1)
    state.trials[ids] += 1
    state.hits[ids] += hit
    state.missed[ids] = np.where(hit, 0, state.missed[ids] + 1)
    return after._replace(
        total_trials=state.total_trials + len(ids),
        total_hits=state.total_hits + int(np.count_nonzero(hit)),
    )


def _is_one_event(state: RateState, ids: IntArray) -> bool:
    """Whether it is too unlikely that all these clients miss by chance."""
    return len(ids) > 1 and bool(np.prod(1 - at(state, ids)) < UNLIKELY)


def _is_outage(state: RateState, clients: int, hits: int) -> bool:
    """Whether the hits of a round are so few that one cause must explain the misses."""
    if clients < 2 or state.outages >= max(FORGIVEN, RARE * state.rounds):
        return False
    expected = clients * state.lately
    deviation = math.sqrt(max(expected * (1 - state.lately), 0.0))
    return hits < expected / 2 and hits < expected - DEVIATIONS * deviation


def forgiven(state: RateState, ids: IntArray) -> RateState:
    """The state without the misses since the last hits of these clients, who had left by then."""
    if is_known(state):
        return state
    misses = state.missed[ids].copy()
    state.trials[ids] -= misses
    state.missed[ids] = 0
    return state._replace(total_trials=state.total_trials - int(misses.sum()))


def common(state: RateState) -> float:
    """The common rate q̄ of all clients, where the rate is learned."""
    return (1 + state.total_hits) / (1 + state.total_trials)


def widened(state: RateState, entries: int) -> RateState:
    """The state with room for more clients, who have no trials yet."""
    if is_known(state):
        return state
    trials, hits, missed = (growing.widened(counts, entries) for counts in _counts(state))
    return state._replace(trials=trials, hits=hits, missed=missed)


def cut(state: RateState, clients: int) -> RateState:
    """The state of the first clients, this many, without room for more."""
    trials, hits, missed = (counts[:clients] for counts in _counts(state))
    return state._replace(trials=trials, hits=hits, missed=missed)


def _counts(state: RateState) -> tuple[IntArray, IntArray, IntArray]:
    """The arrays with one entry per client."""
    return state.trials, state.hits, state.missed


def of_today(name: str, arrays: Arrays) -> Arrays:
    """The arrays of a saved rate, completed by defaults for the `YOUNGER` fields that it lacks."""
    clients = len(arrays[f"{name}.trials"]) if f"{name}.trials" in arrays else 0
    lowest = EstimatedRate.lowest if clients else 0.0
    none = np.asarray(0)
    fresh = (np.zeros(clients, np.int64), none, none, np.asarray(lowest), np.asarray(0.0))
    names = (f"{name}.{field}" for field in YOUNGER)
    return {**dict(zip(names, fresh, strict=True)), **arrays}


class Rates(Part):
    """The two rates of all clients, and their product q = a·r.

    A client is available with probability a before the draw. A drawn client answers with
    probability r.

    Args:
        response: The response r: a number, one number per client, or `EstimatedRate`.
        availability: The availability a, in the same forms.
        clients: The number of clients.
    """

    def __init__(
        self,
        response: ArrayLike | EstimatedRate,
        availability: ArrayLike | EstimatedRate,
        clients: int,
    ) -> None:
        self.response = start(response, clients, "response")
        self.availability = start(availability, clients, "availability")
        self._settle()

    def _settle(self) -> None:
        """Set what follows from which rates are known."""
        self.answers_known = is_known(self.response)
        """Whether r is known, not learned."""
        self.availability_known = is_known(self.availability)
        """Whether a is known, not learned."""
        known = self.answers_known and self.availability_known
        self.guarantee: Guarantee = "unbiased" if known else "consistent"
        """The guarantee of an estimate that divides by q."""
        always = self.availability_known and bool((self.availability.known == 1).all())
        self.always = always
        """Whether every client is available in every round."""

    def at(self, ids: IntArray) -> FloatArray:
        """q of these clients, [m]."""
        return self.available(ids) * self.answering(ids)

    def available(self, ids: IntArray) -> FloatArray:
        """a of these clients, [m]."""
        return at(self.availability, ids)

    def answering(self, ids: IntArray) -> FloatArray:
        """r of these clients, [m]."""
        return at(self.response, ids)

    @property
    def of_each(self) -> bool:
        """Whether rates were given client by client."""
        return max(len(self.response.known), len(self.availability.known)) > 1

    def must_be_listed(self, available: ArrayLike | None) -> None:
        """Refuse a draw without a list of the available clients where estimates divide by a."""
        if available is None and not self.always:
            raise ValueError(
                "this sampler divides by the availability of clients, so each draw must be told "
                "who is there: draw(available=…)"
            )

    def before_absence(self, ids: IntArray) -> FloatArray:
        """a of these clients without the misses since they were last available, [m]."""
        return before_absence(self.availability, ids)

    def missed(self, ids: IntArray) -> IntArray | None:
        """The number of rounds in a row that each of these clients was not available, [m].

        Outages are not counted. None means that availability is not learned.
        """
        return None if self.availability_known else self.availability.missed[ids]

    def forgive(self, ids: IntArray) -> None:
        """Remove the misses since these clients were last available: they have left."""
        self.availability = forgiven(self.availability, ids)

    def observe_presence(self, ids: IntArray, present: BoolArray) -> None:
        """Learn which of these clients were available."""
        self.availability = observe(self.availability, ids, present)

    def observe_answers(self, ids: IntArray, answered: BoolArray) -> None:
        """Learn which of these clients answered."""
        self.response = observe(self.response, ids, answered)

    def lost(self, cohort: Cohort, answered: BoolArray) -> int:
        """The number of silent clients whose answer was certain; 0 where r is learned."""
        return int(np.count_nonzero(cohort.lost(answered))) if self.answers_known else 0

    def widen(self, entries: int) -> None:
        """Make room for more clients, who have no trials yet."""
        self.response = widened(self.response, entries)
        self.availability = widened(self.availability, entries)

    ARRAYS = ("response", "availability")

    def packed(self, clients: int) -> Arrays:
        """Both rates as arrays."""
        return {
            **storage.pack("response", cut(self.response, clients)),
            **storage.pack("availability", cut(self.availability, clients)),
        }

    def restore(self, saved: Saved) -> None:
        """Take over the saved rates."""
        self.response, self.availability = (
            self._restored(saved, name, fresh)
            for name, fresh in (("response", self.response), ("availability", self.availability))
        )
        self._settle()

    def _restored(self, saved: Saved, name: str, fresh: RateState) -> RateState:
        """The saved state of one of the two rates."""
        arrays, clients = of_today(name, saved.arrays), saved.clients
        return checked(storage.unpack(name, fresh, arrays, clients), clients, name)

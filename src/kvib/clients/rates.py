"""How likely clients are to be available, and to answer: two rates, known or learned."""

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
SHARE = Range("from 0 to 1", 0.0, 1.0)
UNLIKELY = 1e-4
"""A silence of all clients at once that is less likely than this is one event, not one of each."""
DEVIATIONS = 4.0
"""Standard deviations that a round must lie below the recent ones to count as an outage."""
FORGIVEN, RARE = 10, 0.05
"""Outages that are not counted: the first ten rounds of them, and one round in twenty. What happens
more often is how the fleet is, by day and night, say."""
YOUNGER = ("missed", "rounds", "outages", "lowest", "lately")
"""Fields of the state that files of version 0.1 lack."""
FORGET = 0.9
"""Weight of the past in the share of clients that came lately."""


class RateState(NamedTuple):
    """What was counted, or the known rate."""

    known: FloatArray
    """[1] if all share it, [N], or [0] when the rate is estimated."""
    trials: IntArray
    """[N], or [0] when the rate is known."""
    hits: IntArray
    missed: IntArray
    """Trials since the last hit that were counted, [N], or [0] when the rate is known."""
    total_trials: int = 0
    total_hits: int = 0
    rounds: int = 0
    """How many were observed, outages included."""
    outages: int = 0
    """Rounds that were not counted."""
    strength: float = 0.0
    lowest: float = 0.0
    lately: float = 0.0
    """Share of the clients that came in recent rounds, a running mean; 0 before the first."""


@dataclass(frozen=True)
class EstimatedRate:
    """A rate per client, learned from how often it came; until somebody fails, exactly 1.

    q_i = (s·q̄ + hits_i)/(s + trials_i): the client's own frequency, shrunk to the common one q̄ as
    if s further trials had gone like everybody's. Estimates that use it are consistent, not
    unbiased, and their cohorts say so.

    An outage teaches nothing about a client. A round counts as one where all clients fail at once,
    which their rates make less likely than 1 in 10,000, or where fewer than half of the usual share
    comes, four standard deviations below it. A share that stays low becomes the usual one, and so
    does one that returns: of the second kind at most ten rounds, or one in twenty, are outages.

    Args:
        strength: s.
        lowest: the smallest rate that is used, so that no client counts more than 1/lowest times.
            Clients that come less often than that count too little.
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
    """The state of a rate that was given (a number, or one per client) or is to be estimated."""
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
    """Refuse a state that was read and cannot be one of this many clients."""
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
    """Whether the rate was given, not learned."""
    return len(state.known) > 0


def at(state: RateState, ids: IntArray) -> FloatArray:
    """The rate of these clients, [m]."""
    if is_known(state):
        return np.full(len(ids), state.known[0]) if len(state.known) == 1 else state.known[ids]
    return _frequency(state, ids, state.trials[ids])


def before_absence(state: RateState, ids: IntArray) -> FloatArray:
    """The rate of these clients without the misses since they last came, [m]."""
    if is_known(state):
        return at(state, ids)
    return _frequency(state, ids, state.trials[ids] - state.missed[ids])


def _frequency(state: RateState, ids: IntArray, trials: IntArray) -> FloatArray:
    s = state.strength
    own = (s * common(state) + state.hits[ids]) / (s + trials)
    return np.maximum(own, state.lowest)


def observe(state: RateState, ids: IntArray, hits: Any) -> RateState:
    """Count one trial of each of these clients, unless all of them were cut off together."""
    if is_known(state) or not len(ids):
        return state
    came, share = np.asarray(hits, np.bool_), float(np.mean(hits))
    expected = state.lately or share
    after = state._replace(lately=FORGET * expected + (1 - FORGET) * share, rounds=state.rounds + 1)
    if not came.any() and _is_one_event(state, ids):
        return after
    if _is_outage(state, len(ids), int(np.count_nonzero(came))):
        return after._replace(outages=state.outages + 1)
    state.trials[ids] += 1
    state.hits[ids] += came
    state.missed[ids] = np.where(came, 0, state.missed[ids] + 1)
    return after._replace(
        total_trials=state.total_trials + len(ids),
        total_hits=state.total_hits + int(np.count_nonzero(came)),
    )


def _is_one_event(state: RateState, ids: IntArray) -> bool:
    """Whether these clients cannot all have failed by chance."""
    return len(ids) > 1 and bool(np.prod(1 - at(state, ids)) < UNLIKELY)


def _is_outage(state: RateState, clients: int, came: int) -> bool:
    """Whether few came, as seldom happens: one cause must have kept the others away."""
    if clients < 2 or state.outages >= max(FORGIVEN, RARE * state.rounds):
        return False
    expected = clients * state.lately
    deviation = math.sqrt(max(expected * (1 - state.lately), 0.0))
    return came < expected / 2 and came < expected - DEVIATIONS * deviation


def forgiven(state: RateState, ids: IntArray) -> RateState:
    """Without the misses since these clients last came: they had left, and were not away."""
    if is_known(state):
        return state
    misses = state.missed[ids].copy()
    state.trials[ids] -= misses
    state.missed[ids] = 0
    return state._replace(total_trials=state.total_trials - int(misses.sum()))


def common(state: RateState) -> float:
    """q̄ of a rate that is being learned."""
    return (1 + state.total_hits) / (1 + state.total_trials)


def widened(state: RateState, entries: int) -> RateState:
    """Room for more clients, who were never tried."""
    if is_known(state):
        return state
    trials, hits, missed = (growing.widened(counts, entries) for counts in _counts(state))
    return state._replace(trials=trials, hits=hits, missed=missed)


def cut(state: RateState, clients: int) -> RateState:
    """Without room for more."""
    trials, hits, missed = (counts[:clients] for counts in _counts(state))
    return state._replace(trials=trials, hits=hits, missed=missed)


def _counts(state: RateState) -> tuple[IntArray, IntArray, IntArray]:
    return state.trials, state.hits, state.missed


def of_today(name: str, arrays: Arrays) -> Arrays:
    """The arrays of a saved rate, with the `YOUNGER` ones where the file lacks them."""
    clients = len(arrays[f"{name}.trials"]) if f"{name}.trials" in arrays else 0
    lowest = EstimatedRate.lowest if clients else 0.0
    none = np.asarray(0)
    fresh = (np.zeros(clients, np.int64), none, none, np.asarray(lowest), np.asarray(0.0))
    names = (f"{name}.{field}" for field in YOUNGER)
    return {**dict(zip(names, fresh, strict=True)), **arrays}


class Rates(Part):
    """q = a·r: clients are available with probability a, and who is drawn answers with r.

    Args:
        response: r: a number, one per client, or to be estimated.
        availability: a, given in the same ways.
        clients: how many there are.
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
        """What follows from which rates are known, which never changes."""
        self.answers_known = is_known(self.response)
        """Whether r was given, not learned."""
        self.availability_known = is_known(self.availability)
        """Whether a was given, not learned."""
        known = self.answers_known and self.availability_known
        self.guarantee: Guarantee = "unbiased" if known else "consistent"
        """What division by q gives."""
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
        """Refuse a draw that is not told who is there, where the estimate is divided by a."""
        if available is None and not self.always:
            raise ValueError(
                "this sampler divides by the availability of clients, so each draw must be told "
                "who is there: draw(available=…)"
            )

    def before_absence(self, ids: IntArray) -> FloatArray:
        """a of these clients as it was when they were last there, [m]."""
        return before_absence(self.availability, ids)

    def missed(self, ids: IntArray) -> IntArray | None:
        """Rounds in a row that these clients were away, outages not counted, [m]; None where
        availability is not learned."""
        return None if self.availability_known else self.availability.missed[ids]

    def forgive(self, ids: IntArray) -> None:
        """These clients left: their last absence says nothing about how often they are there."""
        self.availability = forgiven(self.availability, ids)

    def observe_presence(self, ids: IntArray, present: BoolArray) -> None:
        """Which of these clients were there."""
        self.availability = observe(self.availability, ids, present)

    def observe_answers(self, ids: IntArray, answered: BoolArray) -> None:
        """Which of these clients answered."""
        self.response = observe(self.response, ids, answered)

    def lost(self, cohort: Cohort, answered: BoolArray) -> int:
        """How many are silent whose answer was certain; 0 where the rate of answers is learned."""
        return int(np.count_nonzero(cohort.lost(answered))) if self.answers_known else 0

    def widen(self, entries: int) -> None:
        """Room for more clients, who were never tried."""
        self.response = widened(self.response, entries)
        self.availability = widened(self.availability, entries)

    ARRAYS = ("response", "availability")

    def packed(self, clients: int) -> Arrays:
        """As arrays."""
        return {
            **storage.pack("response", cut(self.response, clients)),
            **storage.pack("availability", cut(self.availability, clients)),
        }

    def restore(self, saved: Saved) -> None:
        """What was saved."""
        self.response, self.availability = (
            self._restored(saved, name, fresh)
            for name, fresh in (("response", self.response), ("availability", self.availability))
        )
        self._settle()

    def _restored(self, saved: Saved, name: str, fresh: RateState) -> RateState:
        """One of the two rates."""
        arrays, clients = of_today(name, saved.arrays), saved.clients
        return checked(storage.unpack(name, fresh, arrays, clients), clients, name)

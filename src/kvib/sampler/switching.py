"""Another policy in the middle of a run."""

from copy import copy
from typing import Any, Literal, NamedTuple

from kvib.checks import checked_kind
from kvib.estimators.guard import Guard
from kvib.policies import Policy
from kvib.policies.checked import checked_policy, checked_procedure
from kvib.policies.policy import Setting
from kvib.procedures import Procedure
from kvib.sampler.learner import Learner
from kvib.sampler.state import State
from kvib.types import FloatArray


class Way(NamedTuple):
    """How rounds are drawn."""

    policy: Policy[Any]
    procedure: Procedure
    guard: Guard | None


NewGuard = Guard | None | Literal["keep"]
"""A guard, none, or the one that a sampler has."""


class Learned(NamedTuple):
    """What a policy that takes over knows of the rounds before it."""

    rounds: int
    """Past rounds that it learned from."""
    missing: int
    """Past rounds with feedback that could not teach it: their details are not there."""


def chosen(
    state: State, policy: Policy[Any], procedure: Procedure | None, guard: NewGuard
) -> Way | None:
    """What to go on with; None where the sampler does so already."""
    if checked_policy(policy).needs_norms:
        raise ValueError(
            f"{type(policy).__name__} must know every client's norm before it draws, and learns "
            "nothing from past rounds; choose another policy, or begin a new sampler with it"
        )
    now = Way(state.learner.policy, state.eligible.procedure, state.learning.guard)
    if procedure is None and now.procedure != now.policy.procedure:
        procedure = now.procedure
    kept = now.guard if guard == "keep" else checked_kind(guard, Guard, "guard")
    priced = state.prices.cost is not None
    way = Way(policy, checked_procedure(procedure, policy, priced), kept)
    same = type(now.policy) is type(policy) and vars(now.policy) == vars(policy)
    return None if same and way[1:] == now[1:] else way


def beginner(state: State, way: Way, weights: FloatArray) -> Learner:
    """The new policy before its first round, with room for all clients of today.

    Args:
        state: of the sampler that is switched.
        way: to what.
        weights: of the first clients, in the population's units.
    """
    known = state.eligible.variables[: len(weights)]
    setting = Setting(weights.copy(), state.prices.clients_per_round, way.procedure.cap, known)
    learner, entries = Learner(way.policy, setting), len(state.population.raw)
    if state.population.changed:
        learner.takes_changes()  # or refuse now, not when the next client comes
    if entries > len(weights):
        learner.widen(entries)
    return learner


def fresh(state: State, way: Way) -> Learner:
    """The new policy for the clients of today."""
    population = state.population
    learner = beginner(state, way, population.raw[: population.count])
    if population.changed:
        state.resize(learner, len(population))
    return learner


def take_over(state: State, way: Way, learner: Learner) -> None:
    """Draw by this policy from the next round on; all else stays, and all of it where the new
    policy fails."""
    before = copy(state.learner)
    state.learner.take_over(learner)
    try:
        state.eligible.draw_by(way.procedure)
    except BaseException:
        state.learner.take_over(before)
        raise
    state.learning.guard = way.guard


def switch(
    state: State, policy: Policy[Any], procedure: Procedure | None, guard: NewGuard
) -> Learned:
    """Without a look at the past: the sampler does not remember it."""
    way = chosen(state, policy, procedure, guard)
    if way is None:
        return Learned(0, 0)
    take_over(state, way, fresh(state, way))
    return Learned(0, state.rounds.answered)

"""The switch to another policy in the middle of a run."""

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
    """The policy, procedure and guard by which a sampler draws."""

    policy: Policy[Any]
    """Decides how often each client is drawn."""
    procedure: Procedure
    """Draws by that."""
    guard: Guard | None
    """Bounds what one client can add to a step."""


NewGuard = Guard | None | Literal["keep"]
"""A guard, None for no guard, or "keep" for the guard that the sampler has."""


class Learned(NamedTuple):
    """What a new policy has learned from the rounds before it."""

    rounds: int
    """The number of past rounds that it learned from."""
    missing: int
    """The number of past rounds with feedback that it could not learn from, since their details are
    not known."""


def chosen(
    state: State, policy: Policy[Any], procedure: Procedure | None, guard: NewGuard
) -> Way | None:
    """The new way to draw, checked. None where the sampler draws so already."""
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
    """The new policy before its first round, with room for all current clients.

    Args:
        state: The state of the sampler that is switched.
        way: The new way to draw.
        weights: The weights of the first clients, in the population's units.
    """
    variables = state.eligible.variables[: len(weights)]
    setting = Setting(weights.copy(), state.prices.clients_per_round, way.procedure.cap, variables)
    learner, entries = Learner(way.policy, setting), len(state.population.raw)
    if state.population.changed:
        learner.takes_changes()  # it may refuse now, not when the next client joins
    if entries > len(weights):
        learner.widen(entries)
    return learner


def fresh(state: State, way: Way) -> Learner:
    """The new policy for the current clients, before it has learned anything."""
    population = state.population
    learner = beginner(state, way, population.raw[: population.count])
    if population.changed:
        state.resize(learner, len(population))
    return learner


def take_over(state: State, way: Way, learner: Learner) -> None:
    """Draw by this policy from the next round on.

    All else stays as it is. Where the new policy raises, everything stays.
    """
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
    """Switch to another policy, which learns nothing from the past: a sampler keeps no past."""
    way = chosen(state, policy, procedure, guard)
    if way is None:
        return Learned(0, 0)
    take_over(state, way, fresh(state, way))
    return Learned(0, state.rounds.answered)

"""Another policy in the middle of a run."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvib.checks import checked_kind
from kvib.cohort import FloatArray
from kvib.guard import Guard
from kvib.learner import Learner
from kvib.policies import Policy, Setting
from kvib.policies.checked import checked_policy, checked_procedure
from kvib.procedures import Procedure
from kvib.urn import Urn

if TYPE_CHECKING:
    from kvib.sampler import Sampler


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
    sampler: "Sampler", policy: Policy[Any], procedure: Procedure | None, guard: NewGuard
) -> Way | None:
    """What to go on with; None where the sampler does so already."""
    if checked_policy(policy).needs_norms:
        raise ValueError(
            f"{type(policy).__name__} must know every client's norm before it draws, and learns "
            "nothing from past rounds; choose another policy, or begin a new sampler with it"
        )
    if procedure is None and sampler.procedure != sampler.policy.procedure:
        procedure = sampler.procedure
    now = sampler.policy
    kept = sampler.guard if guard == "keep" else checked_kind(guard, Guard, "guard")
    priced = sampler.prices.cost is not None
    way = Way(policy, checked_procedure(procedure, policy, priced), kept)
    same = type(now) is type(policy) and vars(now) == vars(policy)
    return None if same and way[1:] == (sampler.procedure, sampler.guard) else way


def beginner(sampler: "Sampler", way: Way, weights: FloatArray) -> Learner:
    """The new policy before its first round, with room for all clients of today.

    Args:
        sampler: that is switched.
        way: to what.
        weights: of the first clients, in the population's units.
    """
    known = sampler.variables[: len(weights)]
    setting = Setting(weights.copy(), sampler._clients_per_round, way.procedure.cap, known)
    learner, entries = Learner(way.policy, setting), len(sampler.population.raw)
    if sampler.population.changed:
        learner.takes_changes()  # or refuse now, not when the next client comes
    if entries > len(weights):
        learner.widen(entries)
    return learner


def fresh(sampler: "Sampler", way: Way) -> Learner:
    """The new policy for the clients of today."""
    population = sampler.population
    learner = beginner(sampler, way, population.raw[: len(sampler)])
    if population.changed:
        resize(sampler, learner, len(population))
    return learner


def resize(sampler: "Sampler", learner: Learner, clients: int) -> None:
    """Let a policy know how many clients are here."""
    learner.resized(clients, min(sampler._clients_per_round, clients))


def take_over(sampler: "Sampler", way: Way, learner: Learner) -> None:
    """Draw by this policy from the next round on; all else stays."""
    sampler.policy, sampler.procedure, sampler.guard = way
    sampler._learner = learner
    sampler._urn = Urn(
        sampler.population,
        sampler.resting,
        sampler.prices,
        learner,
        way.procedure,
        sampler._urn.variables,
        sampler.sketches,
    )
    sampler._urn.remove(sampler.resting.ids)


def switch(
    sampler: "Sampler", policy: Policy[Any], procedure: Procedure | None, guard: NewGuard
) -> Learned:
    """Without a look at the past: the sampler does not remember it."""
    way = chosen(sampler, policy, procedure, guard)
    if way is None:
        return Learned(0, 0)
    take_over(sampler, way, fresh(sampler, way))
    return Learned(0, sampler._ledger.heard)

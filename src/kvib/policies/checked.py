"""Policies and procedures as a user gives them: checked once, at the border."""

from typing import Any

from kvib import procedures
from kvib.checks import short
from kvib.policies.policy import Policy
from kvib.procedures import Procedure, without_replacement


def checked_policy(policy: Any) -> Policy[Any]:
    """A policy that has what every policy needs."""
    if isinstance(policy, type):
        raise ValueError(f"policy {policy.__name__} is a class; write {policy.__name__}()")
    if not isinstance(policy, Policy):
        raise ValueError(
            f"policy {short(policy)} is not a policy; write kvib.Forecast(), kvib.KVib() or your "
            "own subclass of kvib.Policy"
        )
    kind = type(policy)
    missing = [name for name in ("start", "scores") if getattr(kind, name) is getattr(Policy, name)]
    missing += [] if hasattr(policy, "procedure") else ["procedure"]
    if missing:
        raise ValueError(
            f"policy {kind.__name__} has no {' and no '.join(missing)}; a policy needs start, "
            "scores and the procedure to draw with by default"
        )
    return policy


def checked_procedure(procedure: Any, policy: Policy[Any], priced: bool = False) -> Procedure:
    """A procedure that can give this policy's probabilities; the policy's own by default.

    Args:
        procedure: as given.
        policy: that it draws for.
        priced: whether clients have costs, which make probabilities differ.
    """
    chosen = policy.procedure if procedure is None else procedure
    if not isinstance(chosen, Procedure):
        known = isinstance(chosen, str) and chosen in procedures.__all__
        raise ValueError(
            f"procedure {short(chosen)} is not a procedure; write "
            f"kvib.{chosen if known else 'pivotal'}" + ("" if known else ", say")
        )
    if chosen is without_replacement and not policy.equal:
        raise ValueError(
            "without_replacement gives every client the same probability, "
            f"{type(policy).__name__} does not; kvib.pivotal draws a fixed number with any "
            "probabilities"
        )
    if chosen is without_replacement and priced:
        raise ValueError(
            "without_replacement gives every client the same probability, and costs make them "
            "differ; write procedure=kvib.pivotal"
        )
    return chosen

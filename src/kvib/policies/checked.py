"""Checks of the policies and procedures that users give to a sampler."""

from typing import Any

import numpy as np

from kvib import procedures
from kvib.checks import short
from kvib.cohort import Cohort
from kvib.policies.policy import Policy, Setting
from kvib.procedures import Procedure, without_replacement


def checked_policy(policy: Any) -> Policy[Any]:
    """The policy itself, if it has the members that every policy needs."""
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
    if policy.lasting:
        _check_lasting(policy)
    return policy


def _check_lasting(policy: Policy[Any]) -> None:
    """Refuse `lasting` scores that can be 0, and exploration by a floor, which an index cannot do.

    The policy is tried on two clients before the first round, since no later round looks at all
    clients. A policy that fails on two clients is accepted: the index checks every score that it
    gets.
    """
    try:
        floor, least = _tried(policy)
    except Exception:  # a policy may need the clients that it was written for
        return
    if floor > 0:
        raise ValueError(
            f"policy {type(policy).__name__} has `lasting` scores and explores with a floor; "
            "explore with `mix`, or set lasting = False"
        )
    if least == 0:
        raise ValueError(
            f"policy {type(policy).__name__} has `lasting` scores and gives a client that "
            "answered with a norm of 0 the score 0; give every client a positive score, or set "
            "lasting = False"
        )


def _tried(policy: Policy[Any]) -> tuple[float, float]:
    """The largest floor and the least score in two rounds of two clients.

    Both clients answer with a norm of 0 in the first round, and one of them in the second.
    """
    both, once, halves = np.arange(2), np.ones(2, np.int64), np.full(2, 0.5)
    state = policy.start(Setting(halves, 1.0, policy.procedure.cap, np.empty((2, 0))))
    floor, least = 0.0, np.inf
    for round, feedback in enumerate((np.zeros(2), np.array([0.5, 0.0]))):
        floor = max(floor, float(policy.exploration(state, round).floor))
        cohort = Cohort(
            ids=both, count=once, expected=halves, weight=halves, round=round, budget=1.0
        )
        state = policy.learned(state, cohort, feedback)
        least = min(least, float(policy.checked_scores(state, both).min()))
    return floor, least


def checked_procedure(procedure: Any, policy: Policy[Any], priced: bool = False) -> Procedure:
    """The procedure to draw with, which must suit the policy's probabilities.

    Args:
        procedure: The procedure that the user gave. None means the default of the policy.
        policy: The policy that it draws for.
        priced: Whether clients have costs, which make probabilities differ.
    """
    chosen = policy.procedure if procedure is None else procedure
    if not isinstance(chosen, Procedure):
        is_name = isinstance(chosen, str) and hasattr(procedures.catalogue, chosen)
        raise ValueError(
            f"procedure {short(chosen)} is not a procedure; write "
            f"kvib.{chosen if is_name else 'pivotal'}" + ("" if is_name else ", say")
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

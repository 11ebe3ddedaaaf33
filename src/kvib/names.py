"""The one table where names become objects."""

import ast
from collections.abc import Callable
from typing import Any

from kvib import difference, guard, memory, policies, procedures

POLICIES: dict[str, type[policies.Policy[Any]]] = {
    cls.__name__: cls
    for cls in (
        policies.Uniform,
        policies.BySize,
        policies.Optimal,
        policies.AOCS,
        policies.KVib,
        policies.Vrb,
        policies.Mabs,
        policies.Avare,
        policies.OSMD,
        policies.Forecast,
    )
}

PROCEDURES: dict[str, procedures.Procedure] = {
    procedure.name: procedure
    for procedure in (
        procedures.independent,
        procedures.with_replacement,
        procedures.without_replacement,
        procedures.pivotal,
        procedures.systematic,
        procedures.ordered,
        procedures.conditional_poisson,
        procedures.balanced,
        procedures.neighbours,
    )
}

CONFIGURATIONS: dict[str, Callable[..., Any]] = {
    cls.__name__: cls
    for cls in (
        difference.Difference,
        guard.Guard,
        memory.LastUpdates,
        memory.GroupMeans,
        memory.LargestEntries,
    )
}
"""What else a state file may name."""


def policy(words: str) -> policies.Policy[Any]:
    """One of kvib's policies as its repr says it: "Forecast", "KVib(rounds=500)"."""
    try:
        said = ast.parse(words.strip(), mode="eval").body
        call = said if isinstance(said, ast.Call) else ast.Call(said, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("write a name, or Name(option=number, …)")
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"policy {words!r}: {error}") from error
    if call.func.id not in POLICIES:
        raise ValueError(f"policy {call.func.id!r} is not one of {', '.join(POLICIES)}")
    try:
        return POLICIES[call.func.id](**options)
    except TypeError as error:
        raise ValueError(f"policy {words!r}: {error}") from error

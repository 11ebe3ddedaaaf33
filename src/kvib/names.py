"""The one table where names become objects."""

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

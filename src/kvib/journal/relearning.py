"""A sampler before its first round, from what its journal says: to learn all rounds once more."""

import json
from typing import Any

from kvib.clients import rates
from kvib.clients.rates import EstimatedRate
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler import describing
from kvib.sampler.sampler import Sampler
from kvib.types import Arrays, FloatArray


def at_the_beginning(
    about: dict[str, Any],
    arrays: Arrays,
    weights: FloatArray,
    policy: Policy[Any] | None,
    procedure: Procedure | None,
) -> Sampler:
    """For a snapshot whose policy's state is not of today's form; all else of it is taken.

    Args:
        about: the header of the snapshot.
        arrays: of the snapshot.
        weights: λ at the beginning.
        policy: needed if it is the user's own.
        procedure: needed if it is the user's own.
    """
    cost, keys = arrays.get("cost.each"), arrays.get("population.keys")
    if cost is not None and about["population"]["changed"]:
        raise ValueError(
            "the policy's state is of another version, and it cannot be learned again, since "
            "clients with costs came or returned; open it with the version that wrote it"
        )
    sampler = Sampler(
        describing.restore_policy(about["policy"], policy),
        weights,
        about["budget"],
        procedure or PROCEDURES[about["procedure"]],
        seed=about["seed"],
        response=_rate(arrays, "response"),
        availability=_rate(arrays, "availability"),
        guard=describing.described(about["guard"]),
        variables=arrays["variables"] if arrays["variables"].shape[1] else None,
        sketch=about["sketch"],
        keys=None if keys is None else json.loads(keys.tobytes())[: len(weights)],
        cost=cost,
        cool_down=about["cool down"],
        over_select=about["over-select"],
    )
    sampler.state.population.unit = tuple(about["population"]["unit"])  # in which newcomers come
    sampler.state.rounds.token = about["token"]
    return sampler


def _rate(arrays: Arrays, name: str) -> Any:
    """As it was given: a number, one per client, or to be estimated."""
    known = arrays[f"{name}.known"]
    if len(known) == 0:
        said = rates.of_today(name, arrays)
        return EstimatedRate(*(said[f"{name}.{field}"].item() for field in ("strength", "lowest")))
    return known if len(known) > 1 else known.item()

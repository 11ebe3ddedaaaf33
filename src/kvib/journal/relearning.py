"""A sampler before its first round, made from its journal, to learn from all rounds again."""

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
    """The sampler before its first round, with the options that a snapshot holds.

    It is for a snapshot in which the state of the policy has another form than today.

    Args:
        about: The header of the snapshot.
        arrays: The arrays of the snapshot.
        weights: λ at the beginning.
        policy: The policy, needed if it is the user's own.
        procedure: The procedure, needed if it is the user's own.
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
    # The weights of clients that join later are in this unit.
    sampler.state.population.unit = tuple(about["population"]["unit"])
    sampler.state.rounds.token = about["token"]
    return sampler


def _rate(arrays: Arrays, name: str) -> Any:
    """A rate as it was given: a number, one number per client, or `EstimatedRate`."""
    values = arrays[f"{name}.known"]
    if len(values) == 0:
        now = rates.of_today(name, arrays)
        return EstimatedRate(*(now[f"{name}.{field}"].item() for field in ("strength", "lowest")))
    return values if len(values) > 1 else values.item()

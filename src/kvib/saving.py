"""A sampler as arrays, and back."""

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvib import storage
from kvib.cohort import Arrays
from kvib.ledger import Ledger
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure

if TYPE_CHECKING:
    from kvib.sampler import Sampler

S = TypeVar("S", bound="Sampler")

_HEADER = {
    "policy",
    "procedure",
    "budget",
    "seed",
    "round",
    "token",
    "estimator",
    "guard",
    "sketch",
    "usual step",
    "cool down",
    "over-select",
    "population",
    "usual",
    "check-in",
}
_ARRAYS = {
    "weights",
    "updated",
    "variables",
    "sketches.rows",
    "sketches.returns",
    "population.gone",
}


def packed(sampler: "Sampler") -> Arrays:
    """Everything."""
    N, ledger = len(sampler), sampler._ledger
    about = {
        "policy": storage.describe_policy(sampler.policy),
        "procedure": sampler.procedure.name,
        "budget": sampler.budget,
        "seed": sampler.seed,
        "round": ledger.round,
        "token": ledger.token,
        "estimator": storage.describe(sampler.estimator),
        "guard": storage.describe(sampler.guard),
        "sketch": sampler.sketches.size,
        "usual step": None if math.isnan(sampler.usual_step) else sampler.usual_step,
        "cool down": sampler.resting.rounds,
        "over-select": sampler._prices.over_select,
        "population": sampler.population.about(),
        "usual": sampler._clients_per_round,
        "check-in": sampler._check_in is not None,
    }
    cost, index = sampler._prices.cost, sampler._urn.index
    parts = {
        "population": sampler.population.packed(),
        "resting": sampler.resting.packed(),
        "sketches": sampler.sketches.packed(N),
        "index": {} if index is None else index.packed(),
        "estimator": {} if sampler.remembered is None else sampler.remembered.packed(),
        "cost": {} if cost is None else {"each": cost[:N]},
        "ledger": ledger.packed(),
    }
    arrays = {
        "header": storage.header("sampler", about),
        "weights": sampler.population.raw[:N],
        "updated": np.frombuffer(bytes(ledger.updated), dtype=np.uint8),
        **sampler._learner.packed(N),
        **sampler._reach.packed(N),
        "variables": sampler.variables,
        **{f"{name}.{key}": array for name, part in parts.items() for key, array in part.items()},
    }
    return {name: np.array(array) for name, array in arrays.items()}


def restored(
    cls: type[S],
    about: dict[str, Any],
    arrays: Arrays,
    policy: Policy[Any] | None,
    procedure: Procedure | None,
) -> S:
    """The sampler that was packed."""
    missing = _HEADER - set(about) | _ARRAYS - set(arrays)
    if missing or len(arrays["updated"]) != about["round"]:
        raise ValueError(f"not a whole kvib sampler file: {missing or 'rounds'} missing")
    policy = storage.restore_policy(about["policy"], policy)
    procedure = PROCEDURES.get(about["procedure"]) if procedure is None else procedure
    if procedure is None:
        raise ValueError(
            f"{about['procedure']!r} is not one of kvib's procedures; give it: "
            "Sampler.load(path, procedure=…)"
        )
    cost = arrays.get("cost.each")
    most = math.inf if cost is None else cost.sum()  # costs may have fallen since
    sampler = cls(
        policy,
        arrays["weights"],
        min(about["budget"], most),
        procedure,
        seed=about["seed"],
        estimator=storage.described(about["estimator"]),
        guard=storage.described(about["guard"]),
        variables=arrays["variables"] if arrays["variables"].shape[1] else None,
        sketch=about["sketch"],
        cost=cost,
        cool_down=about["cool down"],
        over_select=about["over-select"],
    )
    sampler.budget, sampler._clients_per_round = about["budget"], about["usual"]
    # exactly as saved: normalising again may change the last digit
    sampler.population.raw[:] = arrays["weights"]
    sampler.population.restore(about["population"], storage.part(arrays, "population"))
    if sampler.sketches.size:
        sampler.sketches.restore(storage.part(arrays, "sketches"))
    sampler.resting.restore(storage.part(arrays, "resting"))
    sampler.usual_step = math.nan if about["usual step"] is None else about["usual step"]
    if sampler.remembered is not None:
        sampler.remembered._weights = sampler.weights
        sampler.remembered.restore(storage.part(arrays, "estimator"))
    sampler._learner.restore(arrays, len(sampler))
    sampler._reach.restore(arrays, len(sampler))
    sampler._ledger = Ledger(about["token"], about["round"], arrays["updated"].tobytes())
    sampler._ledger.restore(storage.part(arrays, "ledger"))
    if sampler._urn.index is not None:
        sampler._urn.index.restore(storage.part(arrays, "index"))
    if about["check-in"]:
        sampler._check_in = sampler._new_check_in()
    return sampler

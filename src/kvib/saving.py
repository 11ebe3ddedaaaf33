"""A sampler as arrays, and back."""

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvib import describing, intact, storage
from kvib.cohort import Arrays, FloatArray
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure

if TYPE_CHECKING:
    from kvib.sampler import Sampler

S = TypeVar("S", bound="Sampler")

_HEADER = (
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
)
_ALONE = ("weights", "updated", "variables")
_PARTS = (
    "state",
    "response",
    "availability",
    "population",
    "resting",
    "sketches",
    "index",
    "estimator",
    "cost",
    "ledger",
)
ARRAYS = (*_ALONE, *_PARTS)
"""Arrays of a sampler, by the first words of their names. Each part knows the others."""


def packed(sampler: "Sampler") -> Arrays:
    """Everything."""
    N, ledger = len(sampler), sampler._ledger
    about = {
        "policy": describing.describe_policy(sampler.policy),
        "procedure": sampler.procedure.name,
        "budget": sampler.budget,
        "seed": sampler.seed,
        **ledger.about(),
        "estimator": describing.describe(sampler.estimator),
        "guard": describing.describe(sampler.guard),
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
        "ledger": ledger.seals(),
    }
    arrays = {
        "weights": sampler.population.raw[:N],
        **ledger.packed(),
        **sampler._learner.packed(N),
        **sampler._reach.packed(N),
        "variables": sampler.variables,
        **{f"{name}.{key}": array for name, part in parts.items() for key, array in part.items()},
    }
    copies = {name: np.array(array) for name, array in arrays.items()}
    return storage.headed("sampler", about, copies)


def restored(
    cls: type[S],
    about: dict[str, Any],
    arrays: Arrays,
    policy: Policy[Any] | None,
    procedure: Procedure | None,
    path: str | os.PathLike[str] | None = None,
) -> S:
    """The sampler that was packed; a ValueError where none can have packed this.

    Args:
        cls: what to make.
        about: what the header says.
        arrays: by their names.
        policy: needed if it is the user's own.
        procedure: needed if it is the user's own.
        path: of the file, for what errors say.
    """
    with storage.whole("sampler", path):
        intact.said(about, _HEADER)
        _check_names({name for name in arrays if name != "header"})
        sampler = _configured(cls, about, arrays, policy, procedure)
        _fill(sampler, about, arrays)
        return sampler


def _check_names(names: set[str]) -> None:
    """What stands alone is there, and all else is of a part that there is."""
    alone = {name for name in names if name.partition(".")[0] not in _PARTS}
    intact.names("", alone, _ALONE)


def _configured(
    cls: type[S],
    about: dict[str, Any],
    arrays: Arrays,
    policy: Policy[Any] | None,
    procedure: Procedure | None,
) -> S:
    """A sampler as it was before its first round; nothing is made that is larger than the file."""
    policy = describing.restore_policy(about["policy"], policy)
    procedure = PROCEDURES.get(about["procedure"]) if procedure is None else procedure
    if procedure is None:
        raise storage.OtherFileError(
            f"{about['procedure']!r} is not one of kvib's procedures; give it: "
            "Sampler.load(path, procedure=…)"
        )
    variables, N = arrays["variables"], len(arrays["weights"])
    intact.each("variables", variables, N, variables.shape[-1])
    intact.each("sketches.rows", arrays["sketches.rows"], N, about["sketch"])
    cost = _cost(about, storage.part(arrays, "cost"))
    most = math.inf if cost is None else cost.sum()  # costs may have fallen since
    return cls(
        policy,
        arrays["weights"],
        min(intact.number(about, "budget"), most),
        procedure,
        seed=about["seed"],
        estimator=describing.described(about["estimator"]),
        guard=describing.described(about["guard"]),
        variables=variables if variables.size else None,
        sketch=about["sketch"],
        cost=cost,
        cool_down=about["cool down"],
        over_select=intact.flag(about, "over-select"),
    )


def _cost(about: dict[str, Any], arrays: Arrays) -> FloatArray | None:
    """What drawing each client costs, if anything."""
    intact.names("cost", arrays, (), ("each",))
    if about["version"] == 1 and not about["over-select"] and about["usual"] != about["budget"]:
        intact.names("cost", arrays, ("each",))  # the budget is in units of something
    return arrays.get("each")


def _fill(sampler: "Sampler", about: dict[str, Any], arrays: Arrays) -> None:
    """What was learned, every part its own; exactly as saved."""
    N, parts = len(sampler), {name: storage.part(arrays, name) for name in _PARTS}
    sampler.budget = about["budget"]
    sampler._clients_per_round = intact.number(about, "usual")
    sampler._ledger.restore(about, arrays, parts["ledger"])
    # normalising again may change the last digit
    sampler.population.raw[:] = arrays["weights"]
    sampler.population.restore(about["population"], parts["population"])
    sampler.sketches.restore(parts["sketches"])
    sampler.resting.restore(parts["resting"], N, sampler.round)
    if about["usual step"] is not None:
        sampler.usual_step = intact.number(about, "usual step")
    if sampler.remembered is None:
        intact.names("estimator", parts["estimator"], ())
    else:
        stepped = not (math.isnan(sampler.usual_step) and math.isnan(sampler.sketches.remembered))
        sampler.remembered.restore(parts["estimator"], sampler.weights, stepped)
    sampler._learner.restore(arrays, N, sampler.round)
    sampler._reach.restore(arrays, N)
    sampler._urn.restore(parts["index"])
    if intact.flag(about, "check-in"):
        sampler._check_in = sampler._new_check_in()

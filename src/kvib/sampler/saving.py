"""A sampler as arrays, and back, part by part."""

import math
from typing import Any, get_args, get_type_hints

import numpy as np

from kvib.clients.prices import saved_cost
from kvib.files import intact, storage
from kvib.files.part import Part, Saved
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler import describing
from kvib.sampler.state import State
from kvib.types import Arrays


def _kinds() -> tuple[type[Part], ...]:
    """The kinds of parts that a sampler can have."""
    hints = get_type_hints(State).values()
    kinds = (kind for hint in hints for kind in (get_args(hint) or (hint,)))
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Part))


PARTS = _kinds()
"""The kinds of parts that a sampler can have."""
ARRAYS = tuple(word for part in PARTS for word in part.ARRAYS)
"""The first words of the names of a sampler's arrays."""
_ALONE = ("weights", "updated", "variables")
"""Arrays without a prefix, which every sampler has."""
_CONFIGURED = ("policy", "procedure", "seed", "estimator", "guard")
"""Entries of the header that describe the options of a sampler."""
_HEADER = (*_CONFIGURED, *(word for part in PARTS for word in part.HEADER))
"""All entries of the header."""


def packed(state: State) -> Arrays:
    """The whole state as arrays with a header."""
    about = {
        "policy": describing.describe_policy(state.learner.policy),
        "procedure": state.eligible.procedure.name,
        "seed": state.drawing.seed,
        "estimator": describing.describe(state.estimator),
        "guard": describing.describe(state.learning.guard),
    }
    arrays: Arrays = {}
    for part in state.saved():
        about |= part.about()
        arrays |= part.packed(state.population.count)
    copies = {name: np.array(array) for name, array in arrays.items()}
    return storage.headed("sampler", about, copies)


def options(
    saved: Saved, policy: Policy[Any] | None, procedure: Procedure | None
) -> dict[str, Any]:
    """All arguments of a sampler as it was before its first round.

    None is left to its default, since a default that has changed must not change the sampler.
    Nothing is made that is larger than the file.

    Args:
        saved: What the file holds.
        policy: The policy. It is needed if it is the user's own.
        procedure: The procedure. It is needed if it is the user's own.
    """
    about, arrays = saved
    intact.has_entries(about, _HEADER)
    _check_names(saved)
    if procedure is None and about["procedure"] not in PROCEDURES:
        raise storage.OtherFileError(
            f"{about['procedure']!r} is not one of kvib's procedures; give it: "
            "Sampler.load(path, procedure=…)"
        )
    variables = arrays["variables"]
    intact.each("variables", variables, saved.clients, variables.shape[-1])
    intact.each("sketches.rows", arrays["sketches.rows"], saved.clients, about["sketch"])
    cost = saved_cost(saved)
    most = (
        math.inf if cost is None else cost.sum()
    )  # costs may have fallen since the budget was checked
    return {
        "policy": describing.restore_policy(about["policy"], policy),
        "weights": arrays["weights"],
        "budget": min(intact.number(about, "budget"), most),
        "procedure": PROCEDURES[about["procedure"]] if procedure is None else procedure,
        "seed": about["seed"],
        "response": 1.0,  # both rates are restored afterwards, known or learned
        "availability": 1.0,
        "keys": None,
        "estimator": describing.described(about["estimator"]),
        "guard": describing.described(about["guard"]),
        "variables": variables if variables.size else None,
        "sketch": about["sketch"],
        "cost": cost,
        "cool_down": about["cool down"],
        "over_select": intact.flag(about, "over-select"),
    }


def _check_names(saved: Saved) -> None:
    """Refuse a file that lacks an array without a prefix, or has an array of no part."""
    names = {name for name in saved.arrays if name != "header"}
    with_prefix = {*ARRAYS} - {*_ALONE}
    others = {name for name in names if name.partition(".")[0] not in with_prefix}
    intact.names("", others, _ALONE)


def fill(state: State, saved: Saved) -> None:
    """Let every part take over exactly what was saved of it."""
    if state.memory is None:
        intact.names("estimator", saved.part("estimator"), ())
    for part in state.saved():
        part.restore(saved)

"""Cohorts as records of a file: short in the log of events, exact until their feedback comes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Cohort
from kvib.journal.records import EventRecord
from kvib.procedures import Procedure
from kvib.types import FloatArray, IntArray

FIELDS = {
    "ids": "ids",
    "count": "count",
    "expected": "expected",
    "weight": "weight",
    "response": "answer_probability",
    "availability": "availability",
    "round": "round",
    "budget": "budget",
    "requested": "requested",
    "most": "most",
    "guarantee": "guarantee",
    "token": "token",
}
"""Entries of a record, and the fields of a cohort that they hold."""
DRAWN = ("ids", "count", "expected", "weight", "most")
"""Fields that a draw decides."""
CONDITIONS = ("answer_probability", "availability", "budget", "requested", "guarantee")
"""Fields that hold the conditions of a draw."""


def exact(cohort: Cohort) -> EventRecord:
    """A record of all fields of a cohort but its second moments."""
    return {entry: getattr(cohort, name) for entry, name in FIELDS.items()}


def whole(record: EventRecord) -> Cohort:
    """The cohort that `exact` made this record of."""
    return Cohort(**{FIELDS[entry]: value for entry, value in record.items()})


def short(cohort: Cohort, weights: FloatArray) -> EventRecord:
    """A record of about 10 bytes per client, in single precision.

    It leaves out values that are 1, and λ where it is as it was at the beginning.

    Args:
        cohort: The cohort to write down.
        weights: λ at the beginning.
    """
    record: EventRecord = {"ids": cohort.ids, "expected": cohort.expected.astype(np.float32)}
    if (cohort.count != 1).any():
        record["count"] = cohort.count
    if not np.array_equal(cohort.weight, _at_the_beginning(weights, cohort.ids)):
        record["weight"] = cohort.weight.astype(np.float32)
    if cohort.most != 1:
        record["most"] = cohort.most
    for entry in ("response", "availability"):
        values = getattr(cohort, FIELDS[entry])
        if len(values) and (values != 1).any():
            same = (values == values[0]).all()
            record[entry] = float(values[0]) if same else values.astype(np.float32)
    return record | {name: getattr(cohort, name) for name in ("budget", "requested", "guarantee")}


def lengthened(record: EventRecord, weights: FloatArray, **about: Any) -> Cohort:
    """The cohort that `short` shortened, in single precision.

    Args:
        record: What `short` returned.
        weights: λ at the beginning.
        about: Further fields of the cohort, such as its round.
    """
    ids = record["ids"]
    return Cohort(
        ids=ids,
        count=record.get("count", np.ones(len(ids), np.int64)),
        expected=record["expected"],
        weight=record["weight"] if "weight" in record else weights[ids],
        answer_probability=record.get("response", 1.0),
        availability=record.get("availability", 1.0),
        budget=record["budget"],
        requested=record["requested"],
        most=record.get("most", 1.0),
        guarantee=record["guarantee"],
        **about,
    )


def alike(a: Cohort, b: Cohort, names: Sequence[str]) -> bool:
    """Whether two cohorts agree in these fields, up to single precision."""
    return all(_close(getattr(a, name), getattr(b, name)) for name in names)


def _close(a: Any, b: Any) -> bool:
    """Whether two values of a field agree: integers and strings exactly, others to 1e-6."""
    if isinstance(a, str) or np.asarray(a).dtype.kind == "i":
        return np.array_equal(a, b)
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-6, atol=0)


def digest(norms: NDArray[np.float32]) -> bytes:
    """Eight bytes by which identical feedback is recognised."""
    return blake2b(norms.astype("<f4").tobytes(), digest_size=8).digest()


def with_moments(cohort: Cohort, procedure: Procedure | None) -> Cohort:
    """The cohort with its second moments, if its procedure draws clients independently."""
    if procedure is None or not procedure.uncorrelated:
        return cohort
    assert procedure.pairs is not None
    here = np.arange(len(cohort))
    return replace(cohort, pairs=partial(procedure.pairs, cohort.expected, here))


def _at_the_beginning(weights: FloatArray, ids: IntArray) -> FloatArray:
    """λ of these clients at the beginning, [m]; NaN for clients that joined later."""
    values = np.full(len(ids), np.nan)
    present = ids < len(weights)
    values[present] = weights[ids[present]]
    return values

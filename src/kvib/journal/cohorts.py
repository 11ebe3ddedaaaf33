"""Cohorts as records: short in the log, exact while their feedback is still to come."""

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
"""What a draw gives."""
CONDITIONS = ("answer_probability", "availability", "budget", "requested", "guarantee")
"""What a draw was made under."""


def exact(cohort: Cohort) -> EventRecord:
    """All of a cohort but its second moments."""
    return {entry: getattr(cohort, name) for entry, name in FIELDS.items()}


def whole(record: EventRecord) -> Cohort:
    """The cohort of which `exact` made this record."""
    return Cohort(**{FIELDS[entry]: value for entry, value in record.items()})


def short(cohort: Cohort, weights: FloatArray) -> EventRecord:
    """About 10 bytes per client: nothing that is 1, or λ as it was at the beginning."""
    record: EventRecord = {"ids": cohort.ids, "expected": cohort.expected.astype(np.float32)}
    if (cohort.count != 1).any():
        record["count"] = cohort.count
    if not np.array_equal(cohort.weight, _known(weights, cohort.ids)):
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
    """The cohort that `short` shortened, to single precision."""
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
    """Whether two cohorts agree in these fields, as far as single precision tells."""
    return all(_close(getattr(a, name), getattr(b, name)) for name in names)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, str) or np.asarray(a).dtype.kind == "i":
        return np.array_equal(a, b)
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-6, atol=0)


def digest(norms: NDArray[np.float32]) -> bytes:
    """Eight bytes by which the same feedback is known."""
    return blake2b(norms.astype("<f4").tobytes(), digest_size=8).digest()


def with_moments(cohort: Cohort, procedure: Procedure | None) -> Cohort:
    """With its second moments, if it was drawn by a procedure that draws clients independently."""
    if procedure is None or not procedure.uncorrelated:
        return cohort
    assert procedure.pairs is not None
    here = np.arange(len(cohort))
    return replace(cohort, pairs=partial(procedure.pairs, cohort.expected, here))


def _known(weights: FloatArray, ids: IntArray) -> FloatArray:
    """λ of the beginning; NaN for clients that came later."""
    known = np.full(len(ids), np.nan)
    there = ids < len(weights)
    known[there] = weights[ids[there]]
    return known

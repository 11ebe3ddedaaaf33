"""Between Flower's records and NumPy's arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from kvib.integrations.arrays import BadReplyError, as_usual


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Of a record of our own."""
    arrays = {}
    for name, array in record.items():
        usual = as_usual(array.data, np.dtype(array.dtype).str, array.shape)
        arrays[name] = array.numpy() if usual is None else usual
    return arrays


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """As Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Reply(NamedTuple):
    """What a client sent."""

    arrays: dict[str, bytes]
    """Nobody has looked into them yet."""
    metrics: list[MetricRecord]


def received(content: RecordDict) -> Reply:
    """A reply's parts, if there are arrays that could be a model."""
    parts = list(content.values())
    records = [part for part in parts if isinstance(part, ArrayRecord)]
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    arrays = {}
    for name, array in records[0].items():
        if array.stype != SType.NUMPY:
            raise BadReplyError(f"array {name!r} cannot be read: it is of kind {array.stype!r}")
        arrays[name] = array.data
    return Reply(arrays, [part for part in parts if isinstance(part, MetricRecord)])

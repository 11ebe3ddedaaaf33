"""Between Flower's records and NumPy's arrays."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from kvib.integrations.arrays import BadReplyError


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Of a record of our own."""
    return {name: array.numpy() for name, array in record.items()}


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """As Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def received(content: RecordDict) -> dict[str, bytes]:
    """The arrays of a reply, as bytes: nobody has looked into them yet."""
    records = [part for part in content.values() if isinstance(part, ArrayRecord)]
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    for name, array in records[0].items():
        if array.stype != SType.NUMPY:
            raise BadReplyError(f"array {name!r} cannot be read: it is of kind {array.stype!r}")
    return {name: array.data for name, array in records[0].items()}

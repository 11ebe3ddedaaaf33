"""Between Flower's records and NumPy's arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from kvib.integrations.kit.arrays import BadReplyError, read_npy

OURS = "kvib"
"""Name of the record that is for the adapter alone."""


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The arrays of a record of our own."""
    arrays = {}
    for name, array in record.items():
        plain = read_npy(array.data, np.dtype(array.dtype).str, array.shape)
        arrays[name] = array.numpy() if plain is None else plain
    return arrays


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A record as Flower sends it."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Unwritten(Array):
    """An array whose bytes are written when they are asked for.

    A strategy that averages one reply asks for its numbers only. Writing and reading them would
    take the server as long as two replies do.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.dtype, self.shape, self.stype = str(array.dtype), tuple(array.shape), SType.NUMPY

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes that Flower would write."""
        return self.written().data

    def written(self) -> Array:
        """The array as Flower sends it."""
        return Array(self._array)

    def numpy(self) -> NDArray[Any]:
        """The array itself."""
        return self._array


def unwritten(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A record for a strategy in this process."""
    record = ArrayRecord()  # made from a dict it would ask for all bytes
    for name, array in arrays.items():
        record[name] = Unwritten(array)
    return record


def written(record: ArrayRecord) -> ArrayRecord:
    """The record itself, after all of its arrays are as Flower sends them."""
    for name, array in record.items():
        if isinstance(array, Unwritten):
            record[name] = array.written()
    return record


Records = dict[str, Any]
"""Records of a reply, by name."""


class Reply(NamedTuple):
    """What a client sent."""

    arrays: dict[str, bytes]
    """Bytes that were not looked into yet."""
    said: Records
    """Its other records: what it measured, and whatever else the app sends."""
    norm: Any
    """What it says the norm of its update is, if it says so."""


def received(content: RecordDict) -> Reply:
    """A reply's parts, if there are arrays that could be a model."""
    parts = dict(content)  # what Flower sorts by kind it sorts anew whenever it is asked
    records = [part for part in parts.values() if isinstance(part, ArrayRecord)]
    if len(records) != 1:
        raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
    arrays = {}
    for name, array in records[0].items():
        if array.stype != SType.NUMPY:
            raise BadReplyError(f"array {name!r} cannot be read: it is of kind {array.stype!r}")
        arrays[name] = array.data
    ours = parts.pop(OURS, None)
    norm = ours.get("norm") if isinstance(ours, ConfigRecord) else None
    said = {name: part for name, part in parts.items() if not isinstance(part, ArrayRecord)}
    return Reply(arrays, said, norm)

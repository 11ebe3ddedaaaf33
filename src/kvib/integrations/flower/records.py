"""Conversions between Flower's records and NumPy's arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from kvib.integrations.kit.arrays import BadReplyError, read_npy

OURS = "kvib"
"""The name of the record that only the adapter reads."""


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The arrays of a record that the server made."""
    arrays = {}
    for name, array in record.items():
        plain = read_npy(array.data, np.dtype(array.dtype).str, array.shape)
        arrays[name] = array.numpy() if plain is None else plain
    return arrays


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """The record of these arrays, as Flower sends it."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Unwritten(Array):
    """An array whose bytes are written only when they are read.

    A strategy that averages one reply reads only its numbers. Writing and reading the bytes would
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
    """The record of these arrays, for a strategy in this process."""
    record = ArrayRecord()  # a record made from a dict would read all bytes
    for name, array in arrays.items():
        record[name] = Unwritten(array)
    return record


def written(record: ArrayRecord) -> ArrayRecord:
    """The record itself, after its arrays were replaced by those that Flower sends."""
    for name, array in record.items():
        if isinstance(array, Unwritten):
            record[name] = array.written()
    return record


Records = dict[str, Any]
"""The records of a reply, by name."""


class Reply(NamedTuple):
    """The parts of a client's reply."""

    arrays: dict[str, bytes]
    """The bytes of its arrays, which were not checked yet."""
    records: Records
    """Its other records: metrics, and whatever else the app sends."""
    norm: Any
    """The norm of its update that it reports. None if it reports none."""


def received(content: RecordDict) -> Reply:
    """The parts of a reply. A reply whose arrays cannot be a model is refused."""
    parts = dict(content)  # Flower would sort them by kind anew at every access
    models = [part for part in parts.values() if isinstance(part, ArrayRecord)]
    if len(models) != 1:
        raise BadReplyError(f"{len(models)} ArrayRecords instead of one")
    arrays = {}
    for name, array in models[0].items():
        if array.stype != SType.NUMPY:
            raise BadReplyError(f"array {name!r} cannot be read: it is of kind {array.stype!r}")
        arrays[name] = array.data
    ours = parts.pop(OURS, None)
    norm = ours.get("norm") if isinstance(ours, ConfigRecord) else None
    records = {name: part for name, part in parts.items() if not isinstance(part, ArrayRecord)}
    return Reply(arrays, records, norm)

"""The records of journal events as compact bytes."""

import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

EventRecord = dict[str, Any]
"""Arrays and JSON values by name."""


def encode(record: EventRecord) -> bytes:
    """A record as bytes: a line of JSON, then the arrays.

    Integers (of 63 bits) become as narrow as they fit, and booleans become bits.
    """
    plain, shapes, parts = {}, [], []
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            kind, data = _written(value)
            shapes.append([name, kind, value.shape, len(data)])
            parts.append(data)
        else:
            plain[name] = value
    head = json.dumps([plain, shapes], separators=(",", ":"))
    return b"".join([head.encode(), b"\n", *parts])


def decode(data: bytes) -> EventRecord:
    """The record that `encode` made these bytes of. Integers become int64."""
    head, _, rest = data.partition(b"\n")
    record, shapes = json.loads(head)
    at = 0
    for name, kind, shape, length in shapes:
        record[name] = _read(kind, tuple(shape), rest[at : at + length])
        at += length
    return dict(record)


def _written(array: NDArray[Any]) -> tuple[str, bytes]:
    """The kind of encoding of an array, and its bytes."""
    if array.dtype == np.bool_:
        return "bits", zlib.compress(np.packbits(array).tobytes(), 1)
    if array.dtype.kind not in "iu":
        plain = array.astype(array.dtype.newbyteorder("<"))
        return plain.dtype.str, plain.tobytes()
    whole = array.astype(np.int64)  # differences of unsigned integers would not be integers
    gaps = np.diff(whole, prepend=0) if whole.ndim == 1 else np.empty(0, np.int64)
    if len(gaps) and (gaps >= 0).all():  # ids ascend: their gaps are small
        narrow = _narrow(gaps)
        return f"gaps {narrow.dtype.str}", narrow.tobytes()
    narrow = _narrow(whole)
    return narrow.dtype.str, narrow.tobytes()


def _read(kind: str, shape: tuple[int, ...], data: bytes) -> NDArray[Any]:
    """The array that `_written` wrote with this kind of encoding."""
    if kind == "bits":
        bits = np.frombuffer(zlib.decompress(data), dtype=np.uint8)
        return np.unpackbits(bits, count=int(np.prod(shape))).view(np.bool_).reshape(shape)
    dtype = np.dtype(kind.removeprefix("gaps "))
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    if kind.startswith("gaps"):
        return np.cumsum(array, dtype=np.int64)
    return array.astype(np.int64) if dtype.kind in "iu" else array


def _narrow(array: NDArray[np.int64]) -> NDArray[Any]:
    """Integers in the narrowest type that holds them all."""
    if array.size and array.min() < 0:
        return array.astype("<i8")
    return array.astype(np.min_scalar_type(array.max(initial=0)).newbyteorder("<"))

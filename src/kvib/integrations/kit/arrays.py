"""The arrays of a model and of what clients make of it. Trusts no bytes, knows no framework."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kvib.integrations.kit import passes
from kvib.types import FloatArray

LARGEST = float(np.finfo(np.float32).max)
"""Updates longer than this are no updates."""
HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}

ModelArrays = Mapping[str, Any]
"""By name: NumPy arrays, or the bytes of `.npy` files."""


class BadReplyError(ValueError):
    """What a client sent is no update of this model."""


def running_statistics(name: str, array: NDArray[Any]) -> bool:
    """Whether an array is no parameter but counts or measures: BatchNorm's, and all integers."""
    last = name.split(".")[-1]
    return last in {"running_mean", "running_var", "num_batches_tracked"} or array.dtype.kind != "f"


class Model:
    """Parameters, which learn and make up one row of d numbers, and buffers, only averaged.

    Args:
        arrays: by name.
        buffers: those that are no parameters.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], buffers: set[str]) -> None:
        self.arrays, self.buffers = dict(arrays), buffers
        self.parts: dict[str, slice] = {}
        """Where the parameters are in a row."""
        self.size = 0
        """Numbers of a row, d."""
        for name, array in self.arrays.items():
            if name not in buffers:
                self.parts[name] = slice(self.size, self.size + array.size)
                self.size += array.size

    def only(self, names: Set[str]) -> "Model":
        """The part of it that has these arrays."""
        if names == self.arrays.keys():
            return self
        arrays = {name: array for name, array in self.arrays.items() if name in names}
        return Model(arrays, {name for name in self.buffers if name in names})

    def read(self, theirs: ModelArrays) -> dict[str, NDArray[Any]]:
        """A client's arrays, of our names and shapes."""
        if theirs.keys() != self.arrays.keys():
            odd = sorted(theirs.keys() ^ self.arrays.keys())
            raise BadReplyError(f"array {odd[0]!r} is not in both its model and ours")
        return {name: _read(name, theirs[name], own) for name, own in self.arrays.items()}

    def distance(self, arrays: Mapping[str, NDArray[Any]]) -> float:
        """‖x − x_i‖, which is refused where it is no length of an update."""
        return checked_length(
            math.sqrt(
                sum(passes.squared_distance(self.arrays[name], arrays[name]) for name in self.parts)
            )
        )

    def add(
        self, replies: Sequence[Mapping[str, NDArray[Any]]], weights: FloatArray, row: FloatArray
    ) -> float:
        """Add Σ weight·(x − x_i) to a row; its squared norm with the second weights, [1 or 2, m],
        if there are any."""
        squared = 0.0
        for name, part in self.parts.items():
            theirs = [arrays[name] for arrays in replies]
            squared += passes.add(self.arrays[name], theirs, weights, row[part])
        return squared

    def joined(self, arrays: Mapping[str, NDArray[Any]], row: FloatArray) -> None:
        """Put the parameters among these arrays into a row, of which all must be finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            for name, part in self.parts.items():
                row[part] = arrays[name].ravel()
            checked_length(math.sqrt(float(np.dot(row, row))))

    def averaged(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, FloatArray]:
        """The buffers among these arrays."""
        own = {name: arrays[name].astype(np.float64) for name in self.buffers}
        for name, array in own.items():
            if not np.isfinite(array).all():
                raise BadReplyError(f"array {name!r} has no finite numbers")
        return own

    def scaled(
        self, arrays: Mapping[str, NDArray[Any]], factor: float
    ) -> dict[str, NDArray[np.float64]]:
        """factor·(x − x_i), and factor times the buffers, in double precision."""
        own = self.averaged(arrays)
        for name in self.parts:
            own[name] = np.subtract(self.arrays[name], arrays[name], dtype=np.float64)
        return {name: np.asarray(factor * own[name]) for name in self.arrays}

    def moved(self, d: Any, buffers: Mapping[str, FloatArray]) -> dict[str, NDArray[Any]]:
        """x − d and the new buffers, in the types of the model."""
        steps = np.broadcast_to(d, self.size)
        return {
            name: _less(array, steps[self.parts[name]])
            if name in self.parts
            else _as(array.dtype, buffers.get(name, array))
            for name, array in self.arrays.items()
        }


def checked_length(norm: float) -> float:
    """The norm of an update, which is refused where an update cannot have it."""
    if not norm <= LARGEST:
        raise BadReplyError(f"‖x − x_i‖ is {norm}: it diverged, or has no numbers in it")
    return norm


def _less(x: NDArray[Any], step: FloatArray) -> NDArray[Any]:
    """x − step in the type of x, without a copy in double precision where that is a float."""
    if x.dtype.kind != "f":
        return _as(x.dtype, x - step.reshape(x.shape))
    moved: NDArray[Any] = np.empty(x.shape, x.dtype)
    np.subtract(x, step.reshape(x.shape), out=moved, casting="same_kind")
    return moved


def _as(dtype: np.dtype[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Counters are rounded, not cut off."""
    return np.asarray(array if dtype.kind == "f" else np.rint(array)).astype(dtype)


def _read(name: str, given: Any, own: NDArray[Any]) -> NDArray[Any]:
    try:
        if isinstance(given, bytes):
            return _from_npy(name, given, own)
        array = np.asarray(given)
        _must_fit(name, array.shape, array.dtype, own)
        return array
    except BadReplyError:
        raise
    except Exception as error:  # whatever a client's bytes make of NumPy: the round goes on
        raise BadReplyError(f"array {name!r} cannot be read: {error}") from error


def _must_fit(name: str, shape: Any, dtype: np.dtype[Any], own: NDArray[Any]) -> None:
    if shape != own.shape:
        raise BadReplyError(f"array {name!r} has shape {shape}, in the model {own.shape}")
    if dtype.kind not in "fiub":
        raise BadReplyError(f"array {name!r} is of type {dtype}")


def _from_npy(name: str, data: bytes, own: NDArray[Any]) -> NDArray[Any]:
    """What `np.load` reads, 40 times as fast where it looks like ours, and never larger than that.

    `np.load` believes what the header says: it would open archives, and make room for 10¹⁵ numbers.
    """
    array = read_npy(data, own.dtype.str, own.shape)
    if array is not None:
        return array
    file = BytesIO(data)
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"format {version} is not known")
    shape, by_column, dtype = HEADERS[version](file)
    _must_fit(name, shape, dtype, own)
    expected, there = own.size * dtype.itemsize, len(data) - file.tell()
    if there != expected:
        raise ValueError(f"{there} bytes of {expected}")
    flat = np.frombuffer(data, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if by_column else "C")


def read_npy(data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The array in a file as `np.save` writes it, if it is of this type and shape."""
    header, kind = _npy_header(dtype, shape), np.dtype(dtype)
    if not data.startswith(header) or len(data) != len(header) + math.prod(shape) * kind.itemsize:
        return None
    return np.frombuffer(data, kind, offset=len(header)).reshape(shape)


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What `np.save` writes before the numbers."""
    file = BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, about)
    return file.getvalue()

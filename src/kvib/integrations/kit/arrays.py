"""The arrays of a model and of the replies to it. It trusts no bytes and knows no framework."""

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
"""The largest norm that an update can have: the largest number in single precision."""
HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
"""The readers of headers, by version of the `.npy` format."""

ModelArrays = Mapping[str, Any]
"""NumPy arrays, or the bytes of `.npy` files, by name."""


class BadReplyError(ValueError):
    """Raised for a reply that is not an update of this model."""


def running_statistics(name: str, array: NDArray[Any]) -> bool:
    """Return whether an array is a buffer: a running statistic of BatchNorm, or not of floats.

    Args:
        name: The name of the array, as in a PyTorch state dict.
        array: The array.

    Examples:
        >>> import numpy as np
        >>> from kvib.integrations.kit import running_statistics
        >>> running_statistics("bn1.running_mean", np.zeros(3))
        True
        >>> running_statistics("fc.weight", np.zeros(3))
        False
    """
    last = name.split(".")[-1]
    return last in {"running_mean", "running_var", "num_batches_tracked"} or array.dtype.kind != "f"


class Model:
    """Holds the arrays of a model: parameters, which learn, and buffers, which are averaged.

    The parameters x make up one row of d numbers. A client's reply is x_i, and its update x − x_i.

    Args:
        arrays: The arrays by name.
        buffers: The names of the arrays that are buffers. All others are parameters.

    Examples:
        >>> import numpy as np
        >>> from kvib.integrations.kit import Model
        >>> model = Model({"w": np.array([3.0, 4.0]), "count": np.array(7)}, buffers={"count"})
        >>> model.size
        2
        >>> reply = model.read({"w": np.zeros(2), "count": np.array(9)})
        >>> model.distance(reply)
        5.0
        >>> moved = model.moved(np.array([1.0, 1.0]), {"count": np.array(8.4)})
        >>> moved["w"].tolist(), int(moved["count"])
        ([2.0, 3.0], 8)
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], buffers: set[str]) -> None:
        self.arrays, self.buffers = dict(arrays), buffers
        self.parts: dict[str, slice] = {}
        """The slice of the row that each parameter takes."""
        self.size = 0
        """The number d of numbers in a row."""
        for name, array in self.arrays.items():
            if name not in buffers:
                self.parts[name] = slice(self.size, self.size + array.size)
                self.size += array.size

    def only(self, names: Set[str]) -> "Model":
        """Return the part of the model that has only these arrays.

        Args:
            names: The names of the arrays to keep.
        """
        if names == self.arrays.keys():
            return self
        arrays = {name: array for name, array in self.arrays.items() if name in names}
        return Model(arrays, {name for name in self.buffers if name in names})

    def read(self, theirs: ModelArrays) -> dict[str, NDArray[Any]]:
        """Read a reply, and refuse it if its names, shapes or types do not fit the model.

        Args:
            theirs: The arrays of the reply by name, as NumPy arrays or the bytes of `.npy` files.
        """
        if theirs.keys() != self.arrays.keys():
            odd = sorted(theirs.keys() ^ self.arrays.keys())
            raise BadReplyError(f"array {odd[0]!r} is not in both its model and ours")
        return {name: _read(name, theirs[name], own) for name, own in self.arrays.items()}

    def distance(self, arrays: Mapping[str, NDArray[Any]]) -> float:
        """Compute ‖x − x_i‖, and refuse a norm that no update can have.

        Args:
            arrays: The arrays x_i of a reply, as `read` returns them.
        """
        return checked_length(
            math.sqrt(
                sum(passes.squared_distance(self.arrays[name], arrays[name]) for name in self.parts)
            )
        )

    def add(
        self, replies: Sequence[Mapping[str, NDArray[Any]]], weights: FloatArray, row: FloatArray
    ) -> float:
        """Add Σ weight·(x − x_i) to a row, and return ‖Σ weight·(x − x_i)‖² for other weights.

        Args:
            replies: The arrays of m replies, as `read` returns them.
            weights: The weights of the replies for the row and, if wanted, the other weights, whose
                sum is only measured, [1 or 2, m]. Without other weights the result is 0.
            row: The row to which the sum is added, in double precision, [d].
        """
        squared = 0.0
        for name, part in self.parts.items():
            theirs = [arrays[name] for arrays in replies]
            squared += passes.add(self.arrays[name], theirs, weights, row[part])
        return squared

    def joined(self, arrays: Mapping[str, NDArray[Any]], row: FloatArray) -> None:
        """Write the parameters among these arrays into a row, and refuse numbers that diverged.

        Args:
            arrays: The arrays of a reply, as `read` returns them.
            row: The row that is overwritten, [d].
        """
        with np.errstate(over="ignore", invalid="ignore"):
            for name, part in self.parts.items():
                row[part] = arrays[name].ravel()
            checked_length(math.sqrt(float(np.dot(row, row))))

    def averaged(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, FloatArray]:
        """Return the buffers among these arrays in double precision. All must be finite.

        Args:
            arrays: The arrays of a reply, as `read` returns them.
        """
        own = {name: arrays[name].astype(np.float64) for name in self.buffers}
        for name, array in own.items():
            if not np.isfinite(array).all():
                raise BadReplyError(f"array {name!r} has no finite numbers")
        return own

    def scaled(
        self, arrays: Mapping[str, NDArray[Any]], factor: float
    ) -> dict[str, NDArray[np.float64]]:
        """Compute factor·(x − x_i), and factor times the buffers, in double precision.

        Args:
            arrays: The arrays x_i of a reply, as `read` returns them.
            factor: The coefficient of the client.
        """
        own = self.averaged(arrays)
        for name in self.parts:
            own[name] = np.subtract(self.arrays[name], arrays[name], dtype=np.float64)
        return {name: np.asarray(factor * own[name]) for name in self.arrays}

    def moved(self, d: Any, buffers: Mapping[str, FloatArray]) -> dict[str, NDArray[Any]]:
        """Return the model after a step: x − d and the new buffers, in the types of the model.

        Args:
            d: The step, [d], or 0.
            buffers: The new buffers by name. A buffer that is missing stays as it is.
        """
        steps = np.broadcast_to(d, self.size)
        return {
            name: _less(array, steps[self.parts[name]])
            if name in self.parts
            else _as(array.dtype, buffers.get(name, array))
            for name, array in self.arrays.items()
        }


def checked_length(norm: float) -> float:
    """Return the norm of an update, and refuse a norm that no update can have.

    Args:
        norm: The norm. NaN, infinity and numbers beyond single precision are refused.

    Examples:
        >>> from kvib.integrations.kit import BadReplyError, checked_length
        >>> checked_length(2.5)
        2.5
        >>> try:
        ...     checked_length(float("nan"))
        ... except BadReplyError as error:
        ...     print(error)
        ‖x − x_i‖ is nan: it diverged, or has no numbers in it
    """
    if not norm <= LARGEST:
        raise BadReplyError(f"‖x − x_i‖ is {norm}: it diverged, or has no numbers in it")
    return norm


def _less(x: NDArray[Any], step: FloatArray) -> NDArray[Any]:
    """x − step in the type of x. Floats are subtracted without a copy in double precision."""
    if x.dtype.kind != "f":
        return _as(x.dtype, x - step.reshape(x.shape))
    moved: NDArray[Any] = np.empty(x.shape, x.dtype)
    np.subtract(x, step.reshape(x.shape), out=moved, casting="same_kind")
    return moved


def _as(dtype: np.dtype[Any], array: NDArray[Any]) -> NDArray[Any]:
    """The array in this type. Integers are rounded, not cut off."""
    return np.asarray(array if dtype.kind == "f" else np.rint(array)).astype(dtype)


def _read(name: str, sent: Any, own: NDArray[Any]) -> NDArray[Any]:
    """One array of a reply, if it fits the model's own array."""
    try:
        if isinstance(sent, bytes):
            return _from_npy(name, sent, own)
        array = np.asarray(sent)
        _must_fit(name, array.shape, array.dtype, own)
        return array
    except BadReplyError:
        raise
    except Exception as error:  # whatever error a client's bytes cause in NumPy, the round goes on
        raise BadReplyError(f"array {name!r} cannot be read: {error}") from error


def _must_fit(name: str, shape: Any, dtype: np.dtype[Any], own: NDArray[Any]) -> None:
    """Refuse another shape than the model's, and what is not a number."""
    if shape != own.shape:
        raise BadReplyError(f"array {name!r} has shape {shape}, in the model {own.shape}")
    if dtype.kind not in "fiub":
        raise BadReplyError(f"array {name!r} is of type {dtype}")


def _from_npy(name: str, data: bytes, own: NDArray[Any]) -> NDArray[Any]:
    """The array in the bytes of a `.npy` file, if it fits the model's own array.

    A file of the model's own type and shape is read 40 times as fast as by `np.load`, and no more
    memory is taken than the model needs. `np.load` believes the header: it would open archives,
    and make room for 10¹⁵ numbers.
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
    """The array in a file as `np.save` writes it. None if it is of another type or shape."""
    header, kind = _npy_header(dtype, shape), np.dtype(dtype)
    if not data.startswith(header) or len(data) != len(header) + math.prod(shape) * kind.itemsize:
        return None
    return np.frombuffer(data, kind, offset=len(header)).reshape(shape)


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header that `np.save` writes before the numbers."""
    file = BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, about)
    return file.getvalue()

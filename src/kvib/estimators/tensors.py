"""The algebra that estimators need, for NumPy arrays and for torch tensors.

Only this file distinguishes the two. "Rows" are the updates of some clients, [m, d].
"""

import reprlib
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from kvib.randomness import generator
from kvib.types import BoolArray, FloatArray, Tensor

Rows = Tensor
"""Updates of some clients, [m, d]."""
WIDE = 2**26
"""The most numbers that are copied in double precision at a time: half a gigabyte."""
TILE = 32, 8192
"""Rows and columns of arrays that are summed at a time. They are few enough to stay in a cache, and
so few that no library spreads them over threads, whose number would change the last bits."""


class _Torch(Tensor, Protocol):
    """The methods of a torch tensor that an array lacks. Torch itself is not imported here."""

    device: Any
    layout: Any

    def detach(self) -> "_Torch": ...
    def clone(self) -> "_Torch": ...
    def cpu(self) -> "_Torch": ...
    def numpy(self) -> NDArray[Any]: ...
    def double(self) -> "_Torch": ...
    def float(self) -> "_Torch": ...
    def half(self) -> "_Torch": ...
    def is_complex(self) -> bool: ...
    def is_floating_point(self) -> bool: ...
    def to(self, other: Tensor) -> "_Torch": ...
    def add_(self, other: Tensor, *, alpha: Any) -> "_Torch": ...
    def new_zeros(self, shape: Any) -> "_Torch": ...
    def new_empty(self, shape: Any) -> "_Torch": ...
    def new_tensor(self, array: Any) -> "_Torch": ...


def is_numpy(array: Any) -> TypeGuard[NDArray[Any]]:
    """Whether this is a NumPy array (or one number of it), not a tensor."""
    return isinstance(array, np.ndarray | np.generic)


def _torch(array: Tensor) -> _Torch:
    """The same object, typed as a torch tensor."""
    return typing.cast(_Torch, array)


def real(update: Any) -> Tensor:
    """An update as an array or tensor of real numbers, without gradients; else an error."""
    if hasattr(update, "detach"):
        tensor: _Torch = update.detach()
        if tensor.is_complex():
            raise ValueError(_COMPLEX)
        return tensor
    if isinstance(update, np.ma.MaskedArray):
        raise ValueError("an update is a masked array; fill in what is masked: update.filled(0)")
    array = np.asarray(update)
    if array.dtype.kind == "c":
        raise ValueError(_COMPLEX)
    try:
        if update is None or array.dtype.kind not in "biufO":
            raise TypeError
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError):
        raise ValueError(
            f"{' '.join(reprlib.repr(update).split())} is not an update; give arrays, tensors or "
            "numbers, or dicts and lists of them"
        ) from None


_COMPLEX = "an update is complex; give its real and imaginary parts as two arrays"


def norms(rows: Rows) -> FloatArray:
    """‖row‖, [m]."""
    return np.sqrt(dots(rows, rows))


def dots(a: Rows, b: Rows) -> FloatArray:
    """a_i·b_i, [m]."""
    if is_numpy(a):
        products: FloatArray = np.einsum("ij,ij->i", a, to_numpy(b), dtype=np.float64)
        return products
    parts = [to_numpy((double(a[at]) * double(b[at])).sum(1)) for at in _blocks(a)]
    return np.concatenate([np.empty(0), *parts])


def gram(rows: Rows) -> FloatArray:
    """The inner products of all pairs of rows, [m, m], in double precision."""
    wide = double(rows)
    return to_numpy(wide @ wide.T)


def doubled(weight: FloatArray, rows: Rows) -> Tensor:
    """Σ weight_i row_i, [d], in double precision."""
    if not _on_host(rows):
        total: Tensor = double(rows[:0]).sum(0)
        for at in _blocks(rows):
            wide = double(rows[at])
            total += like(wide, weight[at]) @ wide
        return total
    added = np.zeros(rows.shape[1])
    for at, columns in _tiles(len(rows), rows.shape[1]):
        part = to_numpy(rows[at, columns]).astype(np.float64, copy=False)
        added[columns] += _mixed(weight[at], part)
    return like(double(rows[:0]), added)


def _mixed(weight: FloatArray, rows: FloatArray) -> FloatArray:
    """Σ weight_i row_i without BLAS, whose order of sums depends on its number of threads."""
    mixed: FloatArray = np.einsum("i,ij->j", weight, rows)
    return mixed


def summed(weight: FloatArray, arrays: Sequence[Tensor]) -> Tensor:
    """Σ weight_i array_i of arrays of one shape, in double precision."""
    first = arrays[0]
    if all(_on_host(array) and "bfloat16" not in str(array.dtype) for array in arrays):
        added = _summed(weight, [to_numpy(array).reshape(-1) for array in arrays])
        return like(double(first.reshape(-1)[:0]), added.reshape(first.shape))
    total = _torch(double(first) * float(weight[0]))
    for factor, array in zip(weight[1:].tolist(), arrays[1:], strict=True):
        total.add_(like(total, array) if is_numpy(array) else array, alpha=factor)
    return total


def _summed(weight: FloatArray, vectors: Sequence[NDArray[Any]]) -> FloatArray:
    """Σ weight_i vector_i, [d], tile by tile, so that no second copy of all vectors is made."""
    m, d = len(vectors), len(vectors[0])
    total, tile = np.zeros(d), np.empty((min(m, TILE[0]), min(d, TILE[1])))
    for at, columns in _tiles(m, d):
        part = tile[: at.stop - at.start, : columns.stop - columns.start]
        for row, vector in zip(part, vectors[at], strict=True):
            row[:] = vector[columns]
        total[columns] += _mixed(weight[at], part)
    return total


def _on_host(array: Tensor) -> bool:
    """Whether NumPy can read the numbers: it can read arrays, and dense tensors of the CPU."""
    if is_numpy(array):
        return True
    tensor = _torch(array)
    return bool(tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided")


def _tiles(m: int, d: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of each tile of an array of m rows and d columns."""
    for low in range(0, m, TILE[0]):
        at = slice(low, min(low + TILE[0], m))
        for left in range(0, d, TILE[1]):
            yield at, slice(left, min(left + TILE[1], d))


def _blocks(rows: Rows) -> Iterator[slice]:
    """Slices of rows that hold at most `WIDE` numbers each, or a single row."""
    m, d = rows.shape
    step = max(1, WIDE // max(1, d))
    return (slice(low, low + step) for low in range(0, m, step))


def some(rows: Rows, at: BoolArray) -> Rows:
    """The rows that the mask `at` marks."""
    return rows[np.flatnonzero(at)]


def plus(total: Tensor | float, part: Tensor) -> Tensor:
    """total + part, in the kind and place of the part."""
    return total + part if isinstance(total, float) else like(part, total) + part


def double(array: Tensor) -> Tensor:
    """The same numbers in double precision.

    Squares of half-precision numbers overflow, and squares of small integers wrap around.
    """
    if is_numpy(array):
        return array.astype(np.float64, copy=False)
    return _torch(array).detach().double()


def single(array: Tensor) -> Tensor:
    """The same numbers in single precision."""
    if is_numpy(array):
        return array.astype(np.float32, copy=False)
    return _torch(array).detach().float()


def half(array: Tensor) -> Tensor:
    """The same numbers in half precision."""
    if is_numpy(array):
        return array.astype(np.float16, copy=False)
    return _torch(array).detach().half()


def floating(array: Tensor) -> Tensor:
    """Integers in double precision, floating-point numbers as they are."""
    if is_numpy(array):
        return array if array.dtype.kind == "f" else double(array)
    tensor = _torch(array)
    return tensor.detach() if tensor.is_floating_point() else double(tensor)


def cast(total: Tensor, other: Tensor) -> Tensor:
    """A sum in the kind, place and precision of another array, in double precision for integers.

    Numbers that this precision cannot hold become infinite.
    """
    with np.errstate(over="ignore"):
        converted = like(floating(other), total)
    return converted[()] if is_numpy(converted) else converted


def zeros(other: Tensor, shape: int | tuple[int, ...]) -> Tensor:
    """Zeros of this shape in the kind, place and precision of another array."""
    return np.zeros(shape, other.dtype) if is_numpy(other) else _torch(other).new_zeros(shape)


def formed(other: Tensor, flat: Tensor | float) -> Tensor:
    """A vector in the kind and shape of another array; zeros where `flat` is the number 0.0."""
    if isinstance(flat, float):
        return zeros(other, other.shape)
    return like(other, flat).reshape(other.shape)


def copied(array: Tensor) -> Tensor:
    """A copy of an array or tensor."""
    return array.copy() if is_numpy(array) else _torch(array).clone()


def stacked(updates: Sequence[Tensor]) -> Tensor:
    """Updates of one shape stacked along a new first axis."""
    first = updates[0]
    if is_numpy(first):
        return np.stack([to_numpy(update) for update in updates])
    # torch.stack, without importing torch
    out = _torch(first).new_empty((len(updates), *first.shape))
    for k, tensor in enumerate(updates):
        out[k] = like(first, tensor)
    return out


def to_numpy(rows: Tensor) -> NDArray[Any]:
    """An array on the host. bfloat16 becomes single precision, since NumPy lacks it."""
    if is_numpy(rows):
        return rows
    host = _torch(rows).detach().cpu()
    return (host.float() if str(host.dtype) == "torch.bfloat16" else host).numpy()


def like(other: Tensor, array: Tensor) -> Tensor:
    """An array or tensor in the kind, place and precision of another one."""
    if is_numpy(other):
        host = to_numpy(array) if hasattr(array, "detach") else array
        return np.asarray(host).astype(other.dtype)
    if hasattr(array, "to"):
        return _torch(array).to(other)
    return _torch(other).new_tensor(np.array(array))


def sketch(rows: Rows, size: int) -> FloatArray:
    """A sketch of each row: a few numbers that keep inner products on average, [m, size].

    It is a count sketch, which takes one pass and no matrix. Entry b sums every size-th coordinate
    from b on, with random signs that are always the same.
    """
    m, d = rows.shape
    whole, wide = d // size * size, double(rows[:0]).dtype
    sums = np.zeros((m, size))
    for at in _blocks(rows):
        block = floating(rows[at])
        signed = block * _signs(block, size)  # exact in any precision, unlike the sums below
        sums[at, : d - whole] = to_numpy(signed[:, whole:])
        sums[at] += to_numpy(
            signed[:, :whole].reshape((len(block), d // size, size)).sum(1, dtype=wide)
        )
    return sums


@dataclass(frozen=True)
class _Place:
    """The kind, device and precision of an array: a key of the cache of signs."""

    kind: type
    device: Any
    dtype: Any
    example: Rows = field(compare=False)
    """An empty array of this kind."""


def _signs(rows: Rows, size: int) -> Tensor:
    """The sign ±1 of every coordinate, [d], in the place and precision of the rows."""
    place = _Place(type(rows), getattr(rows, "device", None), rows.dtype, zeros(rows, 0))
    return _signs_at(rows.shape[1], size, place)


@lru_cache(maxsize=1)  # 10^8 signs take seconds to draw and to send; the cache is safe in threads
def _signs_at(d: int, size: int, place: _Place) -> Tensor:
    """The sign of every coordinate at a place, [d]."""
    drawn = generator(d, size, "signs of a sketch").integers(0, 2, d)
    return like(place.example, (2 * drawn - 1).astype(np.int8))

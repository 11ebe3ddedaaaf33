"""The little algebra that estimators need, alike for NumPy arrays and torch tensors.

Only this file knows which of the two it has. Rows are the updates of some clients, [m, d].
"""

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import BoolArray, FloatArray
from kvib.randomness import generator

Rows = Any
WIDE = 2**26
"""Numbers of which there is ever a second copy, in double precision: half a gigabyte."""
TILE = 32, 8192
"""Rows and columns of arrays that are summed at once: few enough to stay in a cache, and so few
that no library spreads them over threads, whose number would change the last bits."""


def is_numpy(array: Any) -> TypeGuard[NDArray[Any]]:
    """An array (or one number of it), not a tensor."""
    return isinstance(array, np.ndarray | np.generic)


def real(given: Any) -> Any:
    """An array or tensor of real numbers, without gradients; an error for anything else."""
    if hasattr(given, "detach"):
        tensor = given.detach()
        if tensor.is_complex():
            raise ValueError(_COMPLEX)
        return tensor
    if isinstance(given, np.ma.MaskedArray):
        raise ValueError("an update is a masked array; fill in what is masked: update.filled(0)")
    array = np.asarray(given)
    if array.dtype.kind == "c":
        raise ValueError(_COMPLEX)
    try:
        if given is None or array.dtype.kind not in "biufO":
            raise TypeError
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError):
        raise ValueError(
            f"{' '.join(reprlib.repr(given).split())} is not an update; give arrays, tensors or "
            "numbers, or dicts and lists of them"
        ) from None


_COMPLEX = "an update is complex; give its real and imaginary parts as two arrays"


def norms(rows: Rows) -> FloatArray:
    """‖row‖, [m]."""
    return np.sqrt(dots(rows, rows))


def dots(a: Rows, b: Rows) -> FloatArray:
    """a_i·b_i, [m]."""
    if is_numpy(a):
        products: FloatArray = np.einsum("ij,ij->i", a, b, dtype=np.float64)
        return products
    parts = [to_numpy((double(a[at]) * double(b[at])).sum(1)) for at in _blocks(a)]
    return np.concatenate([np.empty(0), *parts])


def gram(rows: Rows) -> FloatArray:
    """Inner products of all pairs, [m, m], in double precision."""
    wide = double(rows)
    return np.asarray(to_numpy(wide @ wide.T))


def doubled(weight: FloatArray, rows: Rows) -> Any:
    """Σ weight_i row_i, [d], in double precision."""
    if not _on_host(rows):
        total = double(rows[:0]).sum(0)
        for at in _blocks(rows):
            wide = double(rows[at])
            total += like(wide, weight[at]) @ wide
        return total
    added = np.zeros(rows.shape[1])
    for at, columns in _tiles(*rows.shape):
        added[columns] += _mixed(weight[at], double(to_numpy(rows[at, columns])))
    return like(double(rows[:0]), added)


def _mixed(weight: FloatArray, rows: FloatArray) -> FloatArray:
    """Σ weight_i row_i by no BLAS, whose order of sums hangs on its threads."""
    mixed: FloatArray = np.einsum("i,ij->j", weight, rows)
    return mixed


def summed(weight: FloatArray, arrays: Sequence[Any]) -> Any:
    """Σ weight_i array_i of arrays of one shape, in double precision."""
    first = arrays[0]
    if all(_on_host(array) and "bfloat16" not in str(array.dtype) for array in arrays):
        added = _summed(weight, [to_numpy(array).reshape(-1) for array in arrays])
        return like(double(first.reshape(-1)[:0]), added.reshape(first.shape))
    total = double(first) * float(weight[0])
    for factor, array in zip(weight[1:].tolist(), arrays[1:], strict=True):
        total.add_(like(total, array) if is_numpy(array) else array, alpha=factor)
    return total


def _summed(weight: FloatArray, vectors: Sequence[NDArray[Any]]) -> FloatArray:
    """Of vectors, tile by tile, so that there is no second copy of all of them."""
    m, d = len(vectors), len(vectors[0])
    total, tile = np.zeros(d), np.empty((min(m, TILE[0]), min(d, TILE[1])))
    for at, columns in _tiles(m, d):
        part = tile[: at.stop - at.start, : columns.stop - columns.start]
        for row, vector in zip(part, vectors[at], strict=True):
            row[:] = vector[columns]
        total[columns] += _mixed(weight[at], part)
    return total


def _on_host(array: Any) -> bool:
    """Whether NumPy can look at its numbers: those of a tensor on another device it cannot, nor
    those of a sparse one."""
    return is_numpy(array) or bool(
        array.device.type == "cpu" and str(array.layout) == "torch.strided"
    )


def _tiles(m: int, d: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each tile."""
    for low in range(0, m, TILE[0]):
        at = slice(low, min(low + TILE[0], m))
        for left in range(0, d, TILE[1]):
            yield at, slice(left, min(left + TILE[1], d))


def _blocks(rows: Rows) -> Iterator[slice]:
    """Rows of which a copy in double precision does no harm; of one row it has to be."""
    m, d = rows.shape
    step = max(1, WIDE // max(1, d))
    return (slice(low, low + step) for low in range(0, m, step))


def some(rows: Rows, at: BoolArray) -> Rows:
    """Those that `at` marks."""
    return rows[np.flatnonzero(at)]


def plus(total: Any, part: Any) -> Any:
    """A sum in progress and a part of it, where the part is."""
    return total + part if np.ndim(total) == 0 else like(part, total) + part


def double(array: Any) -> Any:
    """In double precision: squares of halves overflow, squares of small integers wrap."""
    return array.astype(np.float64, copy=False) if is_numpy(array) else array.detach().double()


def single(array: Any) -> Any:
    """In single precision."""
    return array.astype(np.float32, copy=False) if is_numpy(array) else array.detach().float()


def floating(array: Any) -> Any:
    """Whole numbers in double precision, others as they are."""
    if is_numpy(array):
        return array if array.dtype.kind == "f" else double(array)
    return array.detach() if array.is_floating_point() else double(array)


def cast(total: Any, other: Any) -> Any:
    """A sum in double precision in the kind, place and precision of another, double for integers;
    what that precision cannot say becomes infinite."""
    with np.errstate(over="ignore"):
        given = like(floating(other), total)
    return given[()] if is_numpy(given) else given


def zeros(other: Any, shape: Any) -> Any:
    """Of this shape, in the kind, place and precision of another."""
    return np.zeros(shape, other.dtype) if is_numpy(other) else other.new_zeros(shape)


def formed(other: Any, flat: Any) -> Any:
    """A vector in the kind and shape of another; zeros for the number 0."""
    if np.ndim(flat) == 0:
        return zeros(other, other.shape)
    return like(other, flat).reshape(other.shape)


def copied(array: Any) -> Any:
    """A copy."""
    return array.copy() if is_numpy(array) else array.clone()


def stacked(updates: Sequence[Any]) -> Any:
    """One array or tensor of updates of one shape, along a new first axis."""
    first = updates[0]
    if is_numpy(first):
        return np.stack([to_numpy(update) for update in updates])
    out = first.new_empty((len(updates), *first.shape))  # torch.stack, without importing torch
    for k, tensor in enumerate(updates):
        out[k] = like(first, tensor)
    return out


def to_numpy(rows: Any) -> Any:
    """On the host; NumPy has no bfloat16."""
    if is_numpy(rows):
        return rows
    rows = rows.detach().cpu()
    return (rows.float() if str(rows.dtype) == "torch.bfloat16" else rows).numpy()


def like(other: Any, array: Any) -> Any:
    """An array or tensor in the kind, place and precision of another."""
    if is_numpy(other):
        host = to_numpy(array) if hasattr(array, "detach") else array
        return np.asarray(host).astype(other.dtype)
    return array.to(other) if hasattr(array, "to") else other.new_tensor(np.array(array))


def sketch(rows: Rows, size: int) -> FloatArray:
    """A few numbers of each row that keep inner products on average, [m, size].

    Entry b sums every size-th coordinate from b on, with random signs that are always the same:
    a count sketch, one pass and no matrix.
    """
    m, d = rows.shape
    whole, wide = d // size * size, double(rows[:0]).dtype
    sums = np.zeros((m, size))
    for at in _blocks(rows):
        some = floating(rows[at])
        signed = some * _signs(some, size)  # exact in any precision; sums are not
        sums[at, : d - whole] = to_numpy(signed[:, whole:])
        sums[at] += to_numpy(
            signed[:, :whole].reshape(len(some), d // size, size).sum(1, dtype=wide)
        )
    return sums


_last_signs: tuple[Any, Any] = (None, None)


def _signs(rows: Rows, size: int) -> Any:
    """±1 of every coordinate, [d], where the rows are and in their precision.

    Those of the last call are kept: drawing and sending 10^8 of them takes seconds.
    """
    global _last_signs
    d = rows.shape[1]
    wanted = (d, size, type(rows), getattr(rows, "device", None), rows.dtype)
    kept, signs = _last_signs
    if kept != wanted:
        drawn = generator(d, size, "signs of a sketch").integers(0, 2, d)
        signs = like(rows, (2 * drawn - 1).astype(np.int8))
        _last_signs = wanted, signs
    return signs

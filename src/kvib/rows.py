"""The little algebra that estimators need, alike for NumPy arrays and torch tensors.

Rows are the updates of some clients, [m, d].
"""

from typing import Any

import numpy as np

from kvib.cohort import FloatArray
from kvib.randomness import generator

Rows = Any


def norms(rows: Rows) -> FloatArray:
    """‖row‖, [m]."""
    return np.sqrt(dots(rows, rows))


def dots(a: Rows, b: Rows) -> FloatArray:
    """a_i·b_i, [m]."""
    if isinstance(a, np.ndarray):
        products: FloatArray = np.einsum("ij,ij->i", a, b, dtype=np.float64)
        return products
    return np.asarray((a.detach().double() * b.detach().double()).sum(1).cpu().numpy())


def weighted(weight: FloatArray, rows: Rows) -> Any:
    """Σ weight_i row_i, [d]."""
    return like(rows, doubled(weight, rows))


def doubled(weight: FloatArray, rows: Rows) -> Any:
    """The same in double precision."""
    if isinstance(rows, np.ndarray):
        return weight @ rows.astype(np.float64)
    double = rows.detach().double()
    return double.new_tensor(np.array(weight)) @ double


def plus(total: Any, part: Any) -> Any:
    """A sum in progress and a part of it, where the part is."""
    return total + part if np.ndim(total) == 0 else like(part, total) + part


def to_numpy(rows: Any) -> Any:
    """On the host; NumPy has no bfloat16."""
    if isinstance(rows, np.ndarray):
        return rows
    rows = rows.detach().cpu()
    return (rows.float() if str(rows.dtype) == "torch.bfloat16" else rows).numpy()


def like(other: Any, array: Any) -> Any:
    """An array or tensor in the kind, place and precision of another."""
    if isinstance(other, np.ndarray):
        return np.asarray(array).astype(other.dtype)
    return array.to(other) if hasattr(array, "to") else other.new_tensor(np.array(array))


def sketch(rows: Rows, size: int) -> FloatArray:
    """A few numbers of each row that keep inner products on average, [m, size].

    Entry b sums every size-th coordinate from b on, with random signs that are always the same:
    a count sketch, one pass and no matrix.
    """
    m, d = rows.shape
    signs = generator(d, size, "signs of a sketch").integers(0, 2, d) * 2.0 - 1
    rows = rows.astype(np.float64) if isinstance(rows, np.ndarray) else rows.detach().double()
    signed = rows * like(rows, signs)
    whole = d // size * size
    parts = signed[:, :whole].reshape(m, -1, size).sum(1)
    short = np.zeros((m, size))
    short[:, : d - whole] = to_numpy(signed[:, whole:])
    return np.asarray(to_numpy(parts), dtype=np.float64) + short

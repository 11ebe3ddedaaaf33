"""Arrays by the numbers that they hold, and keys of clients."""

from collections.abc import Callable
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]
"""A state on its way to a file."""
Scores = Callable[[IntArray], FloatArray]
"""From ids, [m], to one number for each of these clients, [m]."""
Key = str | int
"""What a client is called."""


class Tensor(Protocol):
    """A NumPy array or a torch tensor: what kvib asks of both alike.

    `kvib.estimators.tensors` has the rest, where the two differ.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def dtype(self) -> Any:
        """The kind of number, NumPy's or torch's own object."""

    @property
    def T(self) -> "Tensor":
        """The transpose."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: Any, /) -> "Tensor": ...
    def __setitem__(self, at: Any, value: Any, /) -> None: ...
    def __add__(self, other: Any, /) -> "Tensor": ...
    def __radd__(self, other: Any, /) -> "Tensor": ...
    def __sub__(self, other: Any, /) -> "Tensor": ...
    def __mul__(self, other: Any, /) -> "Tensor": ...
    def __rmul__(self, other: Any, /) -> "Tensor": ...
    def __truediv__(self, other: Any, /) -> "Tensor": ...
    def __pow__(self, other: Any, /) -> "Tensor": ...
    def __matmul__(self, other: Any, /) -> "Tensor": ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...

    def reshape(self, shape: Any, /) -> "Tensor":
        """The same numbers in another shape."""

    def clip(self, low: Any, high: Any, /) -> Any:
        """Numbers below `low` raised to it, those above `high` lowered."""

    @overload
    def sum(self) -> Any: ...
    @overload
    def sum(self, axis: int, /, *, dtype: Any = None) -> Any: ...

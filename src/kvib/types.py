"""Types that all of kvib shares: arrays by the kind of their numbers, tensors, and client keys."""

from collections.abc import Callable
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]
"""Arrays by name, as a file holds them."""
Scores = Callable[[IntArray], FloatArray]
"""A function from ids, [m], to the scores of these clients, [m]."""
Key = str | int
"""The name that the user gives to a client."""


class Tensor(Protocol):
    """A NumPy array or a torch tensor.

    The protocol lists the operations that both have in the same form. Operations in which the two
    differ are in `kvib.estimators.tensors`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every axis."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def dtype(self) -> Any:
        """The type of the numbers, as an object of NumPy or of torch."""

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
        """Return the numbers in another shape."""

    def clip(self, low: Any, high: Any, /) -> Any:
        """Raise numbers below `low` to `low`, and lower numbers above `high` to `high`."""

    @overload
    def sum(self) -> Any: ...
    @overload
    def sum(self, axis: int, /, *, dtype: Any = None) -> Any: ...

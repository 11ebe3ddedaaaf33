"""The data of N clients as two arrays and their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvib.types import FloatArray, IntArray

Array = NDArray[Any]


def finite(values: Array) -> bool:
    """Whether there is no NaN and no infinity."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of all clients lie in two arrays, one client after another.

    Client i owns the samples from Σ_{j<i} sizes[j] to Σ_{j≤i} sizes[j].

    Examples:
        >>> import numpy as np
        >>> from kvib.sim import ClientData
        >>> data = ClientData(x=np.zeros((5, 2)), y=np.array([0, 1, 0, 1, 1]), sizes=[2, 3])
        >>> len(data), data.starts
        (2, array([0, 2]))
        >>> data.owner(3)
        1
    """

    x: Array
    """Inputs of all samples, [n, …]: float32, or uint8 for images in 0 … 255."""
    y: Array
    """Targets of all samples, [n]."""
    sizes: IntArray
    """The number of samples of each client, [N], Σ = n."""

    def __post_init__(self) -> None:
        sizes = np.asarray(self.sizes, dtype=np.int64)
        object.__setattr__(self, "sizes", sizes)
        if not len(self.x) == len(self.y) == sizes.sum():
            raise ValueError(
                f"{len(self.x)} inputs and {len(self.y)} targets for sizes that sum to "
                f"{sizes.sum()}; every client's samples must be there, one client after another"
            )
        empty = np.flatnonzero(sizes <= 0)
        if len(empty):
            raise ValueError(f"client {empty[0]} has no data; leave such clients out")
        for values in (self.x, self.y):
            if not finite(values):
                flat = np.asarray(values).reshape(len(values), -1)
                bad = int(np.flatnonzero(~np.isfinite(flat).all(axis=1))[0])
                raise ValueError(
                    f"client {self.owner(bad)} has a NaN or infinity in its data; clean it first"
                )

    @cached_property
    def starts(self) -> IntArray:
        """The position of each client's first sample, [N]."""
        return np.cumsum(self.sizes) - self.sizes

    def samples(self, ids: IntArray) -> IntArray:
        """Return the positions of all samples of some clients, client after client.

        Args:
            ids: The numbers of the clients, [m].
        """
        sizes = self.sizes[ids]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        samples: IntArray = np.repeat(self.starts[ids], sizes) + within
        return samples

    def means(self, ids: IntArray, values: FloatArray) -> FloatArray:
        """Average values of samples over each client, [m].

        Args:
            ids: The numbers of the clients, [m].
            values: One value per sample, in the order of `samples(ids)`.
        """
        sizes = self.sizes[ids]
        sums = np.add.reduceat(values, np.cumsum(sizes) - sizes) if len(ids) else np.empty(0)
        return np.asarray(sums / sizes)

    def owner(self, sample: int) -> int:
        """Return the number of the client that a sample belongs to.

        Args:
            sample: The position of the sample in `x` and `y`.
        """
        return int(np.searchsorted(np.cumsum(self.sizes), sample, "right"))

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @classmethod
    def of(cls, clients: Sequence[tuple[Array, Array]]) -> "ClientData":
        """Combine the data of clients that come as one pair of arrays each.

        Args:
            clients: Inputs and targets of every client, as pairs (x, y).
        """
        if not clients:
            raise ValueError("no clients; give one pair of inputs and targets per client")
        for i, (x, y) in enumerate(clients):
            if len(x) != len(y):
                raise ValueError(f"client {i} has {len(x)} inputs and {len(y)} targets")
        return cls(
            np.concatenate([np.asarray(x) for x, _ in clients]),
            np.concatenate([np.asarray(y) for _, y in clients]),
            np.array([len(x) for x, _ in clients]),
        )

"""The contract of all engines."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from kvib.sim.local import Batches
from kvib.types import BoolArray, FloatArray, IntArray

Vector = Any
"""The model, or a step of it, as one vector [d]: a NumPy array, or a torch tensor on its device.
It is not `kvib.types.Tensor`, since an engine takes only its own kind of vector."""
Matrix = Any
"""Updates of several clients, [m, d], of the same kind."""


class Evaluation(NamedTuple):
    """The mean loss and the accuracy of a model."""

    loss: float
    """The mean loss of all samples."""
    accuracy: float
    """The share of right classes. NaN for tasks without classes."""


class Summed(NamedTuple):
    """The norms and the sum of a round's updates, where single updates are not needed."""

    norms: FloatArray
    """‖g_i‖, [m], and NaN of a client that did not answer."""
    total: Vector
    """Σ coefficient_i g_i of the clients that answered, [d]."""


class Engine(Protocol):
    """An engine trains clients. Engines differ in speed, not in what they compute."""

    chunk: int
    """The number of clients whose updates fit into memory together."""
    remote: bool
    """Whether clients may fail to answer, and single updates lie on other machines."""

    def adds_up(self, clients: int) -> bool:
        """Whether the updates of this many clients are added up where they are made.

        This holds only for choosers that do not need single updates.
        """

    def chunks(self, batches: Batches) -> Iterator[tuple[IntArray, Batches]]:
        """Positions and work of clients, as many at a time as fit into memory."""

    def initial(self, seed: int) -> Vector:
        """A fresh model."""

    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """g_i = x − x_i of each client after its local steps, [m, d]."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """Which clients answered, [m], and their updates."""

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms of all updates, and their sum. Memory holds one chunk of updates at most."""

    def norms(self, updates: Matrix) -> FloatArray:
        """‖g_i‖ of each row, [m]."""

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Σ coefficient_i g_i."""

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """g_i·g_j of all pairs, [m, m]. With others, of each row with each of theirs, [m, n]."""

    def evaluate(self, model: Vector, split: str) -> Evaluation:
        """Mean loss and accuracy on the "train" data of all clients or on the "test" data."""

    def losses(self, model: Vector, ids: IntArray) -> FloatArray:
        """The mean loss of each of these clients on its own data, [m]."""

    def to_numpy(self, vector: Vector) -> Any:
        """The vector as a NumPy array, for checkpoints."""

    def from_numpy(self, array: Any) -> Vector:
        """A NumPy array as a vector of this engine."""


SLOWLY = "clients train slowly"
"""The first words of the warning of an engine that trains slower than was asked for."""


class NoWorkerError(ValueError):
    """Clients train on remote workers, and no worker is there to train them."""


class MemoryShortError(ValueError):
    """Local training does not fit into memory. The message says what to lower."""


def memory_short(error: Exception) -> bool:
    """Whether an error means that memory ran out. Torch's errors differ by device."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryShortError) or any(w in str(error).lower() for w in words)

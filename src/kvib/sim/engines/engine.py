"""One contract for all engines."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from kvib.sim.local import Batches
from kvib.types import BoolArray, FloatArray, IntArray

Vector = Any
"""The model, or a step of it, as one vector [d]: a NumPy array, or a torch tensor on its device.
Not `kvib.types.Tensor`, since an engine takes one kind only, its own."""
Matrix = Any
"""Updates of several clients, [m, d], of the same kind."""


class Evaluation(NamedTuple):
    """How good a model is."""

    loss: float
    accuracy: float


class Summed(NamedTuple):
    """What is left of a round where nobody needs single updates."""

    norms: FloatArray
    """‖g_i‖, [m]; NaN of a client that did not answer."""
    total: Vector
    """Σ coefficient_i g_i of those who did, [d]."""


class Engine(Protocol):
    """Trains clients. Engines differ in speed, not in what they compute."""

    chunk: int
    """How many clients' updates fit into memory at once."""
    remote: bool
    """Whether clients may fail to answer, and single updates are far away."""

    def adds_up(self, clients: int) -> bool:
        """Whether updates of this many clients are added up where they are made, wherever single
        ones are not asked for."""

    def chunks(self, batches: Batches) -> Iterator[tuple[IntArray, Batches]]:
        """Positions and work of clients, as many at a time as fit into memory."""

    def initial(self, seed: int) -> Vector:
        """A fresh model."""

    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """g_i = x − x_i of each client after its local steps, [m, d]."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """Who answered, [m], and the updates of those."""

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms of all updates, and their sum; a chunk of updates at most is ever there."""

    def norms(self, updates: Matrix) -> FloatArray:
        """‖g_i‖ of each, [m]."""

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Σ coefficient_i g_i."""

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """g_i·g_j of all pairs, [m, m]; with others, of each with each of those, [m, n]."""

    def evaluate(self, model: Vector, split: str) -> Evaluation:
        """Mean loss and accuracy on the "train" data of all clients or on the "test" data."""

    def losses(self, model: Vector, ids: IntArray) -> FloatArray:
        """The mean loss of each of these clients on its own data, [m]."""

    def to_numpy(self, vector: Vector) -> Any:
        """As a NumPy array, for checkpoints."""

    def from_numpy(self, array: Any) -> Vector:
        """Back from one."""


SLOWLY = "clients train slowly"
"""How the warning begins of an engine that cannot train as fast as it was asked to."""


class NobodyError(ValueError):
    """Clients are trained elsewhere, and nobody is there who does it."""


class MemoryShortError(ValueError):
    """Local training does not fit into memory; says what to lower."""


def memory_short(error: Exception) -> bool:
    """Whether that is what an error is about: torch's own names differ by device."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryShortError) or any(w in str(error).lower() for w in words)

"""One contract for all engines."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from kvib.cohort import BoolArray, FloatArray
from kvib.sim.local import Batches

Vector = Any
"""The model, or a step of it, as one vector [d]: a NumPy array, or a torch tensor on its device."""
Matrix = Any
"""Updates of several clients, [m, d], of the same kind."""


class Evaluation(NamedTuple):
    """How good a model is."""

    loss: float
    accuracy: float


class Engine(Protocol):
    """Trains clients. Engines differ in speed, not in what they compute."""

    chunk: int
    """How many clients' updates fit into memory at once."""

    def initial(self, seed: int) -> Vector:
        """A fresh model."""

    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """g_i = x − x_i of each client after its local steps, [m, d]."""

    def norms(self, updates: Matrix) -> FloatArray:
        """‖g_i‖ of each, [m]."""

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Σ coefficient_i g_i."""

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """g_i·g_j of all pairs, [m, m]; with others, of each with each of those, [m, n]."""

    def evaluate(self, model: Vector, split: str) -> Evaluation:
        """Mean loss and accuracy on the "train" data of all clients or on the "test" data."""

    def to_numpy(self, vector: Vector) -> Any:
        """As a NumPy array, for checkpoints."""

    def from_numpy(self, array: Any) -> Vector:
        """Back from one."""


class Summed(NamedTuple):
    """What is left of a round where nobody needs single updates."""

    norms: FloatArray
    """‖g_i‖, [m]; NaN of a client that did not answer."""
    total: Vector
    """Σ coefficient_i g_i of those who did, [d]."""


@runtime_checkable
class Sums(Protocol):
    """An engine that adds up updates as they come, in the memory of one."""

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms of all updates, and their sum."""


@runtime_checkable
class Remote(Protocol):
    """An engine whose clients may fail to answer."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """Who answered, [m], and the updates of those."""


PRECISIONS = ("float32", "tf32", "bf16")


def check_precision(name: str) -> None:
    """That torch's matrix products have it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not one of {', '.join(PRECISIONS)}")


SLOWLY = "clients train slowly"
"""How the warning begins of an engine that cannot train as fast as it was asked to."""


class MemoryShortError(ValueError):
    """Local training does not fit into memory; says what to lower."""

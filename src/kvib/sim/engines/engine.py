"""One contract for all engines."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvib import rows
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

    def to_numpy(self, vector: Vector) -> Any:
        """As a NumPy array, for checkpoints."""

    def from_numpy(self, array: Any) -> Vector:
        """Back from one."""


class Usual(ABC):
    """What engines have in common, unless they know better: everybody answers."""

    chunk: int
    remote = False

    @abstractmethod
    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """See `Engine`."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """Everybody."""
        return np.ones(len(batches.steps), np.bool_), self.updates(model, batches)

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Chunk by chunk, in double precision."""
        norms, total = np.empty(len(coefficients)), rows.double(model) * 0
        for low in range(0, len(norms), self.chunk):
            at = np.arange(low, min(low + self.chunk, len(norms)))
            updates = self.updates(model, batches.part(at))
            norms[at] = rows.norms(updates)
            total += rows.doubled(coefficients[at], updates)
        return Summed(norms, rows.like(model, total))

    def norms(self, updates: Matrix) -> FloatArray:
        """Row by row, in double precision."""
        return rows.norms(updates)

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Added up in double precision."""
        return rows.like(updates, rows.doubled(coefficients, updates))

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """In double precision."""
        right = updates if others is None else others
        return np.asarray(rows.to_numpy(rows.double(updates) @ rows.double(right).T))


PRECISIONS = ("float32", "tf32", "bf16")


def check_precision(name: str) -> None:
    """That torch's matrix products have it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not one of {', '.join(PRECISIONS)}")


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

"""The base class of engines: defaults for all that engines have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from kvib.estimators import tensors
from kvib.sim.engines.engine import Matrix, Summed, Vector
from kvib.sim.engines.place import Place, check_device
from kvib.sim.local import Batches, LocalSGD
from kvib.sim.task import Task
from kvib.types import BoolArray, FloatArray, IntArray


class BaseEngine(ABC):
    """Defaults for an engine in this process, where all clients answer.

    Args:
        task: The task to train.
        local: How clients train.
    """

    chunk: int
    """The number of clients whose updates fit into memory together."""
    remote = False
    """Whether clients train elsewhere and may fail to answer."""

    def __init__(self, task: Task, local: LocalSGD) -> None:
        self.task, self.local = task, local

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """An engine for this task at this place."""
        return cls(task, local)

    @classmethod
    def check(cls, place: Place) -> None:
        """Refuse a place that this machine does not have, before a task is made."""
        if (place.address, place.workers, place.patience) != (None, None, None):
            raise ValueError(
                "address, workers and patience are of the Ray engine: --engine ray, or engine = "
                '"ray" in an experiment file; else leave them out'
            )
        if place.device is not None:
            check_device(place.device)

    def adds_up(self, clients: int) -> bool:
        """Whether updates are added up at once: they do not fit into memory, or are remote."""
        return self.remote or clients > self.chunk

    def chunks(self, batches: Batches) -> Iterator[tuple[IntArray, Batches]]:
        """Positions and work of clients, `chunk` clients at a time, in order."""
        m = len(batches.steps)
        for low in range(0, m, self.chunk):
            at = np.arange(low, min(low + self.chunk, m))
            yield at, batches if len(at) == m else batches.part(at)

    @abstractmethod
    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """g_i = x − x_i of each client after its local steps, [m, d]."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """Which clients answered, here all of them, [m], and their updates."""
        return np.ones(len(batches.steps), np.bool_), self.updates(model, batches)

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms of all updates, and their sum in double precision, chunk by chunk."""
        norms, total = np.empty(len(coefficients)), tensors.double(model) * 0
        for at, part in self.chunks(batches):
            updates = self.updates(model, part)
            norms[at] = tensors.norms(updates)
            total += tensors.doubled(coefficients[at], updates)
        return Summed(norms, tensors.like(model, total))

    def norms(self, updates: Matrix) -> FloatArray:
        """‖g_i‖ of each row, in double precision, [m]."""
        return tensors.norms(updates)

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Σ coefficient_i g_i, added up in double precision."""
        return tensors.like(updates, tensors.doubled(coefficients, updates))

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """g_i·g_j of all pairs in double precision, [m, m], or [m, n] with others."""
        right = updates if others is None else others
        return np.asarray(tensors.to_numpy(tensors.double(updates) @ tensors.double(right).T))

    def to_numpy(self, vector: Vector) -> Any:
        """The vector as a NumPy array. Here vectors are NumPy arrays already."""
        return vector

    def from_numpy(self, array: Any) -> Vector:
        """A NumPy array as a vector in single precision."""
        return array.astype(np.float32)

    def losses(self, model: Vector, ids: IntArray) -> FloatArray:
        """Refuse: Power-of-Choice needs an engine that overrides this method."""
        raise ValueError(
            f"{type(self).__name__} does not tell the losses of single clients, which this "
            "selector asks for; give it a method `losses`, or use another engine"
        )

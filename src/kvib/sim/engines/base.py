"""What engines have in common."""

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
    """What engines have in common, unless they know better: all clients answer."""

    chunk: int
    remote = False

    def __init__(self, task: Task, local: LocalSGD) -> None:
        self.task, self.local = task, local

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """An engine for this task at this place."""
        return cls(task, local)

    @classmethod
    def check(cls, place: Place) -> None:
        """Refuse a place that is not here, before there is a task to train."""
        if (place.address, place.workers, place.patience) != (None, None, None):
            raise ValueError(
                "address, workers and patience are of the Ray engine: --engine ray, or engine = "
                '"ray" in an experiment file; else leave them out'
            )
        if place.device is not None:
            check_device(place.device)

    def adds_up(self, clients: int) -> bool:
        """Where they do not fit into memory together, or are far away."""
        return self.remote or clients > self.chunk

    def chunks(self, batches: Batches) -> Iterator[tuple[IntArray, Batches]]:
        """In the order of their positions."""
        m = len(batches.steps)
        for low in range(0, m, self.chunk):
            at = np.arange(low, min(low + self.chunk, m))
            yield at, batches if len(at) == m else batches.part(at)

    @abstractmethod
    def updates(self, model: Vector, batches: Batches) -> Matrix:
        """See `Engine`."""

    def answers(self, model: Vector, batches: Batches) -> tuple[BoolArray, Matrix]:
        """All of them."""
        return np.ones(len(batches.steps), np.bool_), self.updates(model, batches)

    def summed(self, model: Vector, batches: Batches, coefficients: FloatArray) -> Summed:
        """Chunk by chunk, in double precision."""
        norms, total = np.empty(len(coefficients)), tensors.double(model) * 0
        for at, part in self.chunks(batches):
            updates = self.updates(model, part)
            norms[at] = tensors.norms(updates)
            total += tensors.doubled(coefficients[at], updates)
        return Summed(norms, tensors.like(model, total))

    def norms(self, updates: Matrix) -> FloatArray:
        """Row by row, in double precision."""
        return tensors.norms(updates)

    def combine(self, coefficients: FloatArray, updates: Matrix) -> Vector:
        """Added up in double precision."""
        return tensors.like(updates, tensors.doubled(coefficients, updates))

    def gram(self, updates: Matrix, others: Matrix | None = None) -> FloatArray:
        """In double precision."""
        right = updates if others is None else others
        return np.asarray(tensors.to_numpy(tensors.double(updates) @ tensors.double(right).T))

    def to_numpy(self, vector: Vector) -> Any:
        """It is one, unless an engine has other vectors."""
        return vector

    def from_numpy(self, array: Any) -> Vector:
        """In single precision."""
        return array.astype(np.float32)

    def losses(self, model: Vector, ids: IntArray) -> FloatArray:
        """An engine that has no such method cannot play Power-of-Choice."""
        raise ValueError(
            f"{type(self).__name__} does not tell the losses of single clients, which this "
            "selector asks for; give it a method `losses`, or use another engine"
        )

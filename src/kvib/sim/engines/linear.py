"""Softmax regression, compiled: all local SGD of a round in one call on all cores."""

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import IntArray
from kvib.sim.data import Array
from kvib.sim.engines.engine import Evaluation, Usual
from kvib.sim.local import Batches, LocalSGD, shared_out
from kvib.sim.task import SoftmaxRegression, Task

LANES = 16  # rows are padded to a multiple of this many floats, so that loops over them vectorise
_TURN = Lock()  # not every threading layer of numba may be entered twice at once

Floats = NDArray[np.float32]


class LinearEngine(Usual):
    """Softmax regression in float32; clients are shared out over threads, longest first."""

    def __init__(self, task: Task, local: LocalSGD, threads: int | None = None) -> None:
        if not isinstance(task.model, SoftmaxRegression):
            raise ValueError(f"the linear engine trains SoftmaxRegression, not {task.model}")
        try:
            from kvib.sim.engines import linear_kernels
        except ImportError as error:
            raise ValueError(
                "the linear engine is compiled by numba; install it, or use the torch engine"
            ) from error
        self._kernels = linear_kernels
        self.task, self.local = task, local
        self.features, self.classes = task.model.features, task.model.classes
        self.width = -(-(self.features + 1) // LANES) * LANES
        self.threads = threads or linear_kernels.cores()
        self.chunk = 1 << 20
        given = {"train": (task.train.x, task.train.y), "test": task.test}
        self._splits = {n: (self._rows(x), np.asarray(y, np.int64)) for n, (x, y) in given.items()}

    def _rows(self, x: Array) -> Floats:
        """Inputs with a 1 for the bias, padded."""
        rows = np.zeros((len(x), self.width), np.float32)
        rows[:, : self.features] = x
        rows[:, self.features] = 1
        return rows

    def initial(self, seed: int) -> Floats:
        """Zeros: softmax regression is convex."""
        return np.zeros((self.features + 1) * self.classes, np.float32)

    def _padded(self, model: Floats) -> Floats:
        """Weights [classes, features], then biases [classes], as torch has them → padded rows."""
        wide = np.zeros((self.classes, self.width), np.float32)
        weights = self.classes * self.features
        wide[:, : self.features] = model[:weights].reshape(self.classes, self.features)
        wide[:, self.features] = model[weights:]
        return wide

    def updates(self, model: Floats, batches: Batches) -> Floats:
        """All clients in one go."""
        steps = batches.steps
        out = np.empty((len(steps), self.classes, self.width), np.float32)
        rate, prox = np.float32(self.local.learning_rate), np.float32(self.local.prox)
        clients, cuts = self._shares(steps)
        given = (*self._splits["train"], *batches[:4], clients)
        if self.threads == 1:
            self._kernels.train(*given, self._padded(model), rate, prox, out)
        else:
            with _TURN:
                self._kernels.train_shares(*given, cuts, self._padded(model), rate, prox, out)
        weights = out[:, :, : self.features].reshape(len(steps), -1)
        return np.concatenate([weights, out[:, :, self.features]], axis=1)

    def _shares(self, steps: IntArray) -> tuple[IntArray, IntArray]:
        """Clients in the order of the threads that train them, and where each thread begins."""
        shares = shared_out(steps, self.threads)
        clients = np.array([c for share in shares for c in share], dtype=np.int64)
        return clients, np.cumsum([0, *map(len, shares)])

    def evaluate(self, model: Floats, split: str) -> Evaluation:
        """An equal part of the data on each thread."""
        x, y = self._splits[split]
        wide = self._padded(model)
        cuts = np.linspace(0, len(x), self.threads + 1).astype(np.int64)
        out = np.empty((self.threads, 2))
        if self.threads == 1:
            out[0] = self._kernels.evaluate(x, y, 0, len(x), wide)
        else:
            with _TURN:
                self._kernels.evaluate_shares(x, y, cuts, wide, out)
        loss, right = out.sum(axis=0)
        return Evaluation(float(loss) / len(x), float(right) / len(x))

    def to_numpy(self, vector: Floats) -> Floats:
        """It is one."""
        return vector

    def from_numpy(self, array: Floats) -> Floats:
        """It is one."""
        return array.astype(np.float32)

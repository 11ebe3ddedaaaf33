"""Softmax regression, compiled: all local SGD of a round in one call on all cores."""

from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvib.sim.data import Array
from kvib.sim.engines.base import BaseEngine
from kvib.sim.engines.engine import Evaluation
from kvib.sim.engines.place import Place
from kvib.sim.local import Batches, LocalSGD, shared_out
from kvib.sim.task import SoftmaxRegression, Task
from kvib.types import BoolArray, FloatArray, IntArray

LANES = 16  # rows are padded to a multiple of this many floats, so that loops over them vectorise
LITTLE = 10**7  # multiplications for which threads are not woken
_TURN = Lock()  # not every threading layer of numba may be entered twice at once

Floats = NDArray[np.float32]


class LinearEngine(BaseEngine):
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
        super().__init__(task, local)
        self.features, self.classes = task.model.features, task.model.classes
        self.width = -(-(self.features + 1) // LANES) * LANES
        self.threads = threads or linear_kernels.cores()
        self.chunk = 1 << 20
        given = {"train": (task.train.x, task.train.y), "test": task.test}
        self._splits = {n: (self._rows(x), np.asarray(y, np.int64)) for n, (x, y) in given.items()}

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """On all threads of this place; it knows no other precision than its own."""
        if place.precision != "float32":
            raise ValueError(
                f"precision {place.precision!r} is of torch, but {task.name} is trained by the "
                "compiled engine; give a device too, cpu or cuda"
            )
        return cls(task, local, place.threads)

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
        given = (
            *self._splits["train"],
            *batches[:4],
            clients,
            self._padded(model),
            rate,
            prox,
            out,
        )
        self._run(self._kernels.train, self._kernels.train_shares, given, cuts)
        weights = out[:, :, : self.features].reshape(len(steps), -1)
        return np.concatenate([weights, out[:, :, self.features]], axis=1)

    def _run(self, whole: Any, shares: Any, given: tuple[Any, ...], cuts: IntArray) -> None:
        """A kernel here, or a share of its work on each thread: bits are the same."""
        if len(cuts) == 2:
            whole(*given, cuts[0], cuts[1])
        else:
            with _TURN:
                shares(*given, cuts)

    def _shares(self, steps: IntArray) -> tuple[IntArray, IntArray]:
        """Clients in the order of the threads that train them, and where each thread begins."""
        shares = shared_out(steps, self.threads)
        clients = np.array([c for share in shares for c in share], dtype=np.int64)
        return clients, np.cumsum([0, *map(len, shares)])

    def evaluate(self, model: Floats, split: str) -> Evaluation:
        """Losses are added up in one order."""
        losses, right = self._judged(model, *self._splits[split])
        return Evaluation(float(losses.mean()), float(right.mean()))

    def losses(self, model: Floats, ids: IntArray) -> FloatArray:
        """From the samples of these clients alone."""
        train = self.task.train
        at = train.samples(ids)
        x, y = self._splits["train"]
        losses, _ = self._judged(model, x[at], y[at])
        return train.means(ids, losses)

    def _judged(self, model: Floats, x: Floats, y: IntArray) -> tuple[FloatArray, BoolArray]:
        """Loss of every sample, and whether its class is right; a part on each thread."""
        gap, mass = np.empty((2, len(x)), np.float32)
        right = np.empty(len(x), np.bool_)
        given = (x, y, self._padded(model), gap, mass, right)
        cuts = _parts(len(x), self.threads)
        self._run(self._kernels.evaluate, self._kernels.evaluate_shares, given, cuts)
        return np.asarray(gap + np.log(mass, dtype=np.float64), np.float64), right

    def gram(self, updates: Floats, others: Floats | None = None) -> FloatArray:
        """In double precision, every sum in one order: that of a BLAS hangs on its threads."""
        a = _wide(updates)
        b = a if others is None else _wide(others)
        out = np.zeros((len(a), len(b)))
        cuts = _parts(len(a), self.threads if a.size * len(b) > LITTLE else 1)
        self._run(self._kernels.gram, self._kernels.gram_shares, (a, b, out), cuts)
        return out[: len(updates), : len(updates if others is None else others)]


def _parts(length: int, threads: int) -> IntArray:
    """Where each thread begins, if all have the same to do."""
    return np.arange(threads + 1) * length // threads


def _wide(updates: Floats) -> FloatArray:
    """In double precision, with rows and columns of zeros up to a multiple of eight."""
    m, d = updates.shape
    wide = np.zeros((-(-m // 8) * 8, -(-d // 8) * 8))
    wide[:m, :d] = updates
    return wide

"""Softmax regression, compiled: one call trains all clients of a round on all cores."""

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

LANES = 16
"""Rows are padded to a multiple of this many floats (64 bytes), so that loops vectorise."""
LITTLE = 10**7
"""Multiplications up to which threads are not woken, since waking them takes time too."""
MANY = 1 << 20
"""Clients of one chunk: in effect all clients of a round train in one call."""
_TURN = Lock()
"""Held by the one call that is in numba's threads: not every threading layer may be entered
twice at once."""

Floats = NDArray[np.float32]


class LinearEngine(BaseEngine):
    """The engine for softmax regression trains in float32 without torch, compiled by numba.

    Clients are shared out over threads, those with most steps first. The results are the same bits
    on any number of threads.

    Args:
        task: The task to train. Its model must be a `SoftmaxRegression`.
        local: How clients train.
        threads: The number of threads. None means all cores.

    Examples:
        >>> from kvib.sim import LinearEngine, LocalSGD, synthetic
        >>> engine = LinearEngine(synthetic(clients=5), LocalSGD(learning_rate=0.02, batch_size=64))
        >>> model = engine.initial(seed=0)
        >>> model.shape  # 10 classes, 60 features and a bias
        (610,)
        >>> round(engine.evaluate(model, "test").loss, 3)  # ln 10
        2.303
    """

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
        self.chunk = MANY
        data = {"train": (task.train.x, task.train.y), "test": task.test}
        self._splits = {n: (self._rows(x), np.asarray(y, np.int64)) for n, (x, y) in data.items()}

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """Make an engine with the threads of a place.

        Args:
            task: The task to train.
            local: How clients train.
            place: The place, of which the threads count. Its precision must be float32.
        """
        if place.precision != "float32":
            raise ValueError(
                f"precision {place.precision!r} is of torch, but {task.name} is trained by the "
                "compiled engine; give a device too, cpu or cuda"
            )
        return cls(task, local, place.threads)

    def _rows(self, x: Array) -> Floats:
        """Inputs with a 1 for the bias, padded to whole lanes, [n, width]."""
        rows = np.zeros((len(x), self.width), np.float32)
        rows[:, : self.features] = x
        rows[:, self.features] = 1
        return rows

    def initial(self, seed: int) -> Floats:
        """Return a model of zeros, whatever the seed: softmax regression is convex.

        Args:
            seed: The seed, which changes nothing here.
        """
        return np.zeros((self.features + 1) * self.classes, np.float32)

    def _padded(self, model: Floats) -> Floats:
        """The model as padded rows, [classes, width].

        A model is a vector of weights [classes, features], then biases [classes], as in torch.
        """
        wide = np.zeros((self.classes, self.width), np.float32)
        weights = self.classes * self.features
        wide[:, : self.features] = model[:weights].reshape(self.classes, self.features)
        wide[:, self.features] = model[weights:]
        return wide

    def updates(self, model: Floats, batches: Batches) -> Floats:
        """Train clients and return their updates g_i = x − x_i, [m, d].

        Args:
            model: The model x that clients start from, [d].
            batches: The local work of the clients.
        """
        steps = batches.steps
        out = np.empty((len(steps), self.classes, self.width), np.float32)
        rate, prox = np.float32(self.local.learning_rate), np.float32(self.local.prox)
        clients, cuts = self._shares(steps)
        arguments = (
            *self._splits["train"],
            *batches[:4],
            clients,
            self._padded(model),
            rate,
            prox,
            out,
        )
        self._run(self._kernels.train, self._kernels.train_shares, arguments, cuts)
        weights = out[:, :, : self.features].reshape(len(steps), -1)
        return np.concatenate([weights, out[:, :, self.features]], axis=1)

    def _run(self, whole: Any, shares: Any, arguments: tuple[Any, ...], cuts: IntArray) -> None:
        """Run a kernel in this thread, or a share of its work on each thread. Bits are the same."""
        if len(cuts) == 2:
            whole(*arguments, cuts[0], cuts[1])
        else:
            with _TURN:
                shares(*arguments, cuts)

    def _shares(self, steps: IntArray) -> tuple[IntArray, IntArray]:
        """Clients in the order of the threads that train them, and where each thread begins."""
        shares = shared_out(steps, self.threads)
        clients = np.array([c for share in shares for c in share], dtype=np.int64)
        return clients, np.cumsum([0, *map(len, shares)])

    def evaluate(self, model: Floats, split: str) -> Evaluation:
        """Measure the mean loss and the accuracy of a model, always summed in one order.

        Args:
            model: The model, [d].
            split: "train" for the data of all clients, "test" for the test data.
        """
        losses, right = self._judged(model, *self._splits[split])
        return Evaluation(float(losses.mean()), float(right.mean()))

    def losses(self, model: Floats, ids: IntArray) -> FloatArray:
        """Measure the mean loss of some clients, each on its own data, [m].

        Args:
            model: The model, [d].
            ids: The numbers of the clients, [m].
        """
        train = self.task.train
        at = train.samples(ids)
        x, y = self._splits["train"]
        losses, _ = self._judged(model, x[at], y[at])
        return train.means(ids, losses)

    def _judged(self, model: Floats, x: Floats, y: IntArray) -> tuple[FloatArray, BoolArray]:
        """The loss of every sample, and whether its class is right, [n]. Threads share the work."""
        gap, mass = np.empty((2, len(x)), np.float32)
        right = np.empty(len(x), np.bool_)
        arguments = (x, y, self._padded(model), gap, mass, right)
        cuts = _parts(len(x), self.threads)
        self._run(self._kernels.evaluate, self._kernels.evaluate_shares, arguments, cuts)
        return np.asarray(gap + np.log(mass, dtype=np.float64), np.float64), right

    def gram(self, updates: Floats, others: Floats | None = None) -> FloatArray:
        """Compute g_i·g_j of all pairs in double precision, [m, m], or [m, n] with others.

        Every sum is added up in one order. That of a BLAS depends on its threads.

        Args:
            updates: The updates of clients, [m, d].
            others: Updates of other clients, [n, d]. None means all pairs within `updates`.
        """
        a = _wide(updates)
        b = a if others is None else _wide(others)
        out = np.zeros((len(a), len(b)))
        cuts = _parts(len(a), self.threads if a.size * len(b) > LITTLE else 1)
        self._run(self._kernels.gram, self._kernels.gram_shares, (a, b, out), cuts)
        return out[: len(updates), : len(updates if others is None else others)]


def _parts(length: int, threads: int) -> IntArray:
    """The position where each thread begins, and the end, if all have the same to do."""
    return np.arange(threads + 1) * length // threads


def _wide(updates: Floats) -> FloatArray:
    """The updates in double precision, padded with zeros to multiples of eight rows and columns."""
    m, d = updates.shape
    wide = np.zeros((-(-m // 8) * 8, -(-d // 8) * 8))
    wide[:m, :d] = updates
    return wide

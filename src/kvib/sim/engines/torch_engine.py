"""The engine for any torch module and any loss: one client after another, or many on a GPU."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the common name)

from kvib.checks import earlier_names, warn
from kvib.sim.engines.base import BaseEngine
from kvib.sim.engines.batched import BatchedTrainer
from kvib.sim.engines.engine import (
    SLOWLY,
    Evaluation,
    MemoryShortError,
    Summed,
    memory_short,
)
from kvib.sim.engines.flat import FlatModule, moving, on_device, prepared
from kvib.sim.engines.place import Place, check_device, check_precision
from kvib.sim.engines.sequential import Loss, SequentialTrainer
from kvib.sim.local import Batches, LocalSGD
from kvib.sim.models import make
from kvib.sim.task import Task
from kvib.types import FloatArray, IntArray

LARGE = 30_000_000
"""Parameters from which one client fills a GPU: batching would only take memory."""
FLOAT_BYTES = 4
"""Bytes of a float32."""
MODEL_SIZES = 6
"""Room of one client, in sizes of the model: its update, its copy of the model, its gradient, and
activations, which are of similar size as the model."""
FROZEN_SIZES = 3
"""Room for the activations of frozen layers, in sizes of these layers. Nothing else makes room for
them, since frozen layers are not in the model."""
OUTPUT_SIZES = 3
"""Room for a sample's outputs: the outputs, and twice as much for their gradient."""
EVALUATED_TOGETHER = 2048
"""Samples that are evaluated together at most."""
EVALUATION_PART = 4
"""The outputs of an evaluation take at most one part in this many of `chunk_bytes`."""


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of every sample, [batch]."""
    return F.cross_entropy(outputs, targets, reduction="none")


@earlier_names({"memory": "chunk_bytes"})
class TorchEngine(BaseEngine):
    """An engine that trains clients of any `nn.Module`.

    On a CPU clients train one after another, with channels last for images: batching them over
    clients loses there. On a GPU the clients of a round train together (`BatchedTrainer`).
    Parameters that require no gradient belong to the task, not to the model. All clients share
    them, and they are those of a module made with seed 0.

    Args:
        task: The task to train.
        local: How clients train.
        device: The torch device: "cpu", "cuda", "cuda:1", …
        precision: The precision of matrix products: "float32", "tf32" or "bf16".
        batched: Whether clients train together. The default is to do so on a GPU. A module that
            cannot be batched is trained one client after another. A warning and `slow` say why.
        chunk_bytes: The bytes that the updates and activations of one chunk may take.
        graphs: Whether the steps of clients that train one after another are replayed from CUDA
            graphs. The default is to do so on a GPU. Steps that cannot be recorded are run one by
            one. A warning and `slow` say why.
    """

    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        device: str = "cpu",
        precision: str = "float32",
        batched: bool | None = None,
        chunk_bytes: float = 16e9,
        graphs: bool | None = None,
    ) -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device {device!r} was asked for, but there is no CUDA here; use cpu")
        check_precision(precision)
        super().__init__(task, local)
        self.precision = precision
        self.device = torch.device(device)
        self.loss: Loss = task.loss or cross_entropy
        with self._memory_error("model and data", "the number of samples, or the model"):
            self.flat = FlatModule(make(task, seed=0), self.device)
            self.x, self.y = (on_device(a, self.device) for a in (task.train.x, task.train.y))
            self.test = tuple(on_device(a, self.device) for a in task.test)
        self._initial = 0, self.flat.vector.clone()
        self.slow, self.chunk_bytes = "", chunk_bytes
        """The reason why clients train slower than was asked for. Empty if they do not."""
        self._sequential = SequentialTrainer(self.flat, self.loss, local, self.x, self.y, graphs)
        self._batched: BatchedTrainer | None = None
        # Bytes of one client decide how many clients train together.
        outputs = OUTPUT_SIZES * FLOAT_BYTES * self._outputs()  # of one sample
        large = len(self.flat.vector) >= LARGE
        together = batched if batched is not None else self.device.type == "cuda" and not large
        client = MODEL_SIZES * FLOAT_BYTES * len(self.flat.vector)
        client += together * outputs * local.batch_size
        client += together * FROZEN_SIZES * FLOAT_BYTES * self.flat.frozen
        self.chunk = max(1, int(chunk_bytes / client))
        if together:
            room = min(self.chunk, len(task))
            trainer = BatchedTrainer(self.flat, self.loss, local, self.x, self.y, room)
            self._batched = trainer
            with self._training(2):
                why = trainer.cannot()
            self._batched = None if why else trainer
            self._warn_slow(why)
        block = int(chunk_bytes / EVALUATION_PART / outputs)
        self._block = max(1, min(EVALUATED_TOGETHER, block))

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """An engine on the device of this place, with the memory that the last engine left."""
        check_device(place.device or "cpu")
        if place.threads is not None:
            torch.set_num_threads(place.threads)
        torch.cuda.empty_cache()  # other processes may need the memory
        return cls(
            task, local, place.device or "cpu", place.precision, chunk_bytes=place.chunk_bytes
        )

    @property
    def graphs(self) -> bool:
        """Whether the steps of clients that train one after another are recorded."""
        return self._batched is None and self._sequential.graphs

    def _warn_slow(self, why: str) -> None:
        """Warn once that training is slow: results do not show that they took ten times longer."""
        if why and not self.slow:
            self.slow = why
            warn(f"{SLOWLY}: {why}")

    @torch.no_grad()
    def _outputs(self) -> int:
        """The number of outputs of one sample, counted as 1 where a sample has one target.

        Outputs are small beside the model, unless every token has one per word of a vocabulary.
        """
        if self.y.ndim == 1:
            return 1
        return int(self.flat.module.eval()(prepared(self.test[0][:1])).numel())

    def initial(self, seed: int) -> torch.Tensor:
        """A fresh model, the same on every device. The last is kept: large models take long."""
        kept, vector = self._initial
        if kept != seed:
            parts = [t for named in moving(make(self.task, seed)) for t in named.values()]
            vector = self.flat.join([t.detach().float().to(self.device) for t in parts])
            self._initial = seed, vector
        return vector.clone()

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i of each client, [m, d]."""
        with self._precision(), self._training(len(batches.steps)):
            if self._batched is not None:
                return self._batched.updates(model, batches)
            found = self._sequential.updates(model, batches)
        self._warn_slow(self._sequential.why_eager)
        return found

    def summed(self, model: torch.Tensor, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms and Σ coefficient_i g_i. Memory holds one chunk of updates at most."""
        if self._batched is not None:
            return super().summed(model, batches, coefficients)
        norms, total = [], torch.zeros_like(model, dtype=torch.float64)
        update = torch.empty_like(model)
        with self._precision(), self._training(1):
            trained = self._sequential.each(model, batches)
            for coefficient, _ in zip(coefficients.tolist(), trained, strict=True):
                torch.sub(model, self.flat.vector, out=update)
                norms.append(torch.linalg.vector_norm(update, dtype=torch.float64))
                total.add_(update, alpha=coefficient)
        self._warn_slow(self._sequential.why_eager)
        lengths = torch.stack(norms).cpu().numpy() if norms else np.empty(0)
        return Summed(np.asarray(lengths), total.to(model))

    def _training(self, together: int) -> AbstractContextManager[None]:
        """A context for local training of this many clients, which explains a lack of memory."""
        fewer = f"chunk_bytes (now {self.chunk_bytes:g} bytes, up to {self.chunk} clients together)"
        if self._batched is None or together == 1:
            fewer = "the length of samples, or precision to bf16"
        batch = f"batch_size (now {self.local.batch_size})"
        return self._memory_error("the local training", f"{batch}, or {fewer}")

    @contextlib.contextmanager
    def _memory_error(self, doing: str, lower: str) -> Iterator[None]:
        """Turn an error of lacking memory into one that says which setting to lower."""
        try:
            yield
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not memory_short(error):
                raise
            raise MemoryShortError(
                f"{self.device} has no room for {doing} of {self.task.name}: lower {lower}"
            ) from error

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        """Set the precision of matrix products, and restore it afterwards."""
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark
        products.allow_tf32 = convolutions.allow_tf32 = self.precision != "float32"
        convolutions.benchmark = self._batched is not None  # shapes repeat: look for the fastest
        bf16 = self.precision == "bf16"
        try:
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False
            ):
                yield
        finally:
            products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = before

    # In single precision: copies in double precision would be the largest tensors on the device.

    def norms(self, updates: torch.Tensor) -> FloatArray:
        """‖g_i‖ of each row, [m]."""
        return np.asarray(torch.linalg.vector_norm(updates, dim=1).double().cpu().numpy())

    def combine(self, coefficients: FloatArray, updates: torch.Tensor) -> torch.Tensor:
        """Σ coefficient_i g_i."""
        return torch.from_numpy(coefficients).to(updates) @ updates

    def gram(self, updates: torch.Tensor, others: torch.Tensor | None = None) -> FloatArray:
        """g_i·g_j of all pairs, [m, m], or [m, n] with others."""
        right = updates if others is None else others
        return np.asarray((updates @ right.T).double().cpu().numpy())

    def evaluate(self, model: torch.Tensor, split: str) -> Evaluation:
        """The mean loss and accuracy on "train" or "test" data, in blocks that fit into memory."""
        x, y = self.test if split == "test" else (self.x, self.y)
        loss, right = 0.0, 0.0
        for losses, hits in self._judged(model, x, y):
            loss += float(losses.sum())
            right += hits
        accuracy = right / len(x) if self.task.classes is not None else math.nan
        return Evaluation(loss / len(x), accuracy)

    def losses(self, model: torch.Tensor, ids: IntArray) -> FloatArray:
        """The mean loss of each of these clients on its own data, [m]."""
        train = self.task.train
        at = torch.from_numpy(train.samples(ids)).to(self.device)
        judged = self._judged(model, self.x[at], self.y[at])
        parts = [losses.cpu().numpy() for losses, _ in judged]
        return train.means(ids, np.concatenate([np.empty(0), *parts]))

    @torch.no_grad()
    def _judged(
        self, model: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, float]]:
        """The losses of samples, and the number of right classes, block by block."""
        self.flat.restore(model)
        self.flat.module.eval()
        fewer = f"chunk_bytes (now {self.chunk_bytes:g} bytes, {self._block} samples together)"
        with self._memory_error("the evaluation", fewer):
            for low in range(0, len(x), self._block):
                targets = y[low : low + self._block]
                with self._precision():
                    outputs = self.flat.module(prepared(x[low : low + self._block]))
                losses, right = self.loss(outputs.float(), targets).double(), 0.0
                if self.task.classes is not None:
                    right = float((outputs.argmax(-1) == targets).double().sum())
                yield losses, right

    def to_numpy(self, vector: torch.Tensor) -> Any:
        """The vector as a NumPy array, in torch's own order, so that runs move between devices."""
        return self.flat.standard(vector).cpu().numpy()

    def from_numpy(self, array: Any) -> torch.Tensor:
        """A NumPy array as a vector on the device."""
        return self.flat.internal(
            torch.from_numpy(np.array(array, dtype=np.float32)).to(self.device)
        )

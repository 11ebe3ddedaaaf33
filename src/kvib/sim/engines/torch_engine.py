"""Any torch module with any torch loss: one client after another, or all at once on a GPU."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

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


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of every sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


@earlier_names({"memory": "chunk_bytes"})
class TorchEngine(BaseEngine):
    """Trains clients of any `nn.Module`.

    On a CPU clients train one after another, with channels last for images: batching them over
    clients loses there. On a GPU the clients of a round train together (`BatchedTrainer`).
    Parameters that require no gradient are of the task, not of the model: all clients share them,
    and they are those of a module made with seed 0.

    Args:
        task: what to train.
        local: how clients train.
        device: "cpu", "cuda", "cuda:1", …
        precision: "float32", "tf32" or "bf16" for matrix products.
        batched: train clients together; by default on a GPU. A module that cannot is trained one
            client after another: `slow` says why, and a warning.
        chunk_bytes: bytes that the updates and activations of one chunk may take.
        graphs: replay the steps of clients that train one after another from CUDA graphs; by
            default on a GPU. Steps that cannot be recorded are taken one by one, likewise told.
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
        """Why clients train slower than was asked for; empty if they do not."""
        self._sequential = SequentialTrainer(self.flat, self.loss, local, self.x, self.y, graphs)
        self._batched: BatchedTrainer | None = None
        outputs = 3 * 4 * self._outputs()  # bytes: of a sample, twice more for their gradient
        large = len(self.flat.vector) >= LARGE
        together = batched if batched is not None else self.device.type == "cuda" and not large
        # A client's update, its copy of the model, its gradient, and activations: of similar size
        # as the model, and thrice that of frozen layers, which nothing else would make room for.
        client = 6 * 4 * len(self.flat.vector) + together * outputs * local.batch_size
        client += together * 3 * 4 * self.flat.frozen
        self.chunk = max(1, int(chunk_bytes / client))
        if together:
            room = min(self.chunk, len(task))
            trainer = BatchedTrainer(self.flat, self.loss, local, self.x, self.y, room)
            self._batched = trainer
            with self._training(2):
                why = trainer.cannot()
            self._batched = None if why else trainer
            self._tell(why)
        self._block = max(1, min(2048, int(chunk_bytes / 4 / outputs)))

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """On the device of this place, in the room that the last engine has left."""
        check_device(place.device or "cpu")
        if place.threads is not None:
            torch.set_num_threads(place.threads)
        torch.cuda.empty_cache()  # other processes may need it
        return cls(
            task, local, place.device or "cpu", place.precision, chunk_bytes=place.chunk_bytes
        )

    @property
    def graphs(self) -> bool:
        """Whether the steps of clients that train one after another are recorded."""
        return self._batched is None and self._sequential.graphs

    def _tell(self, why: str) -> None:
        """Nobody finds out from the results that they took ten times longer than they had to."""
        if why and not self.slow:
            self.slow = why
            warn(f"{SLOWLY}: {why}")

    @torch.no_grad()
    def _outputs(self) -> int:
        """Of one sample: nothing beside the model, unless every token has a vocabulary."""
        if self.y.ndim == 1:
            return 1
        return int(self.flat.module.eval()(prepared(self.test[0][:1])).numel())

    def initial(self, seed: int) -> torch.Tensor:
        """A fresh model, the same on every device; the last one is kept, large ones take long."""
        kept, vector = self._initial
        if kept != seed:
            parts = [t for named in moving(make(self.task, seed)) for t in named.values()]
            vector = self.flat.join([t.detach().float().to(self.device) for t in parts])
            self._initial = seed, vector
        return vector.clone()

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i, [m, d]."""
        with self._precision(), self._training(len(batches.steps)):
            if self._batched is not None:
                return self._batched.updates(model, batches)
            found = self._sequential.updates(model, batches)
        self._tell(self._sequential.why_eager)
        return found

    def summed(self, model: torch.Tensor, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms and Σ coefficient_i g_i; a chunk of updates at most is ever there."""
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
        self._tell(self._sequential.why_eager)
        lengths = torch.stack(norms).cpu().numpy() if norms else np.empty(0)
        return Summed(np.asarray(lengths), total.to(model))

    def _training(self, together: int) -> AbstractContextManager[None]:
        """Local training of so many clients, in the memory there is."""
        fewer = f"chunk_bytes (now {self.chunk_bytes:g} bytes, up to {self.chunk} clients together)"
        if self._batched is None or together == 1:
            fewer = "the length of samples, or precision to bf16"
        batch = f"batch_size (now {self.local.batch_size})"
        return self._memory_error("the local training", f"{batch}, or {fewer}")

    @contextlib.contextmanager
    def _memory_error(self, doing: str, lower: str) -> Iterator[None]:
        """Where memory runs out, which setting lowers it."""
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
        """Precision of matrix products, given back afterwards."""
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

    # Single precision: copies in double would be the largest things on the device.

    def norms(self, updates: torch.Tensor) -> FloatArray:
        """Row by row."""
        return np.asarray(torch.linalg.vector_norm(updates, dim=1).double().cpu().numpy())

    def combine(self, coefficients: FloatArray, updates: torch.Tensor) -> torch.Tensor:
        """Σ coefficient_i g_i."""
        return torch.from_numpy(coefficients).to(updates) @ updates

    def gram(self, updates: torch.Tensor, others: torch.Tensor | None = None) -> FloatArray:
        """g_i·g_j."""
        right = updates if others is None else others
        return np.asarray((updates @ right.T).double().cpu().numpy())

    def evaluate(self, model: torch.Tensor, split: str) -> Evaluation:
        """In batches that fit everywhere."""
        x, y = self.test if split == "test" else (self.x, self.y)
        loss, right = 0.0, 0.0
        for losses, hits in self._judged(model, x, y):
            loss += float(losses.sum())
            right += hits
        accuracy = right / len(x) if self.task.classes is not None else math.nan
        return Evaluation(loss / len(x), accuracy)

    def losses(self, model: torch.Tensor, ids: IntArray) -> FloatArray:
        """From the samples of these clients alone."""
        train = self.task.train
        at = torch.from_numpy(train.samples(ids)).to(self.device)
        judged = self._judged(model, self.x[at], self.y[at])
        parts = [losses.cpu().numpy() for losses, _ in judged]
        return train.means(ids, np.concatenate([np.empty(0), *parts]))

    @torch.no_grad()
    def _judged(
        self, model: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, float]]:
        """Losses of samples, and how many of their classes are right, block by block."""
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
        """To the host, in torch's own order, so that a run can move between devices."""
        return self.flat.standard(vector).cpu().numpy()

    def from_numpy(self, array: Any) -> torch.Tensor:
        """To the device."""
        return self.flat.internal(
            torch.from_numpy(np.array(array, dtype=np.float32)).to(self.device)
        )

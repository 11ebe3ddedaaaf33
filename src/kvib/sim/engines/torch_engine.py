"""Any torch module with any torch loss: one client after another, or all at once on a GPU."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

from kvib.cohort import FloatArray
from kvib.sim.engines.batched import BatchedTrainer
from kvib.sim.engines.engine import Evaluation
from kvib.sim.engines.flat import FlatModule, on_device, prepared, seeded
from kvib.sim.local import Batches, LocalSGD
from kvib.sim.models import make
from kvib.sim.task import Task

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PRECISIONS = ("float32", "tf32", "bf16")


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of every sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


class TorchEngine:
    """Trains clients of any `nn.Module`.

    On a CPU clients train one after another, with channels last for images: batching them over
    clients loses there. On a GPU the clients of a round train together (`BatchedTrainer`).

    Args:
        task: what to train.
        local: how clients train.
        device: "cpu", "cuda", "cuda:1", …
        precision: "float32", "tf32" or "bf16" for matrix products.
        batched: train clients together; by default on a GPU. A module that cannot is trained one
            client after another, and `why_sequential` says why.
        memory: bytes that the updates and activations of one chunk may take.
    """

    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        device: str = "cpu",
        precision: str = "float32",
        batched: bool | None = None,
        memory: float = 16e9,
    ) -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device {device!r} was asked for, but there is no CUDA here; use cpu")
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
        self.task, self.local, self.precision = task, local, precision
        self.device = torch.device(device)
        self.loss: Loss = task.loss or cross_entropy
        self.flat = FlatModule(make(task, seed=0), self.device)
        self.x, self.y = (on_device(a, self.device) for a in (task.train.x, task.train.y))
        self.test = tuple(on_device(a, self.device) for a in task.test)
        self.images = prepared(self.x[:1]).ndim == 4
        self.why_sequential = ""
        self._batched: BatchedTrainer | None = None
        if batched if batched is not None else self.device.type == "cuda":
            self._batched = BatchedTrainer(self.flat, self.loss, local, self.x, self.y)
            self.why_sequential = self._batched.cannot()
            if self.why_sequential:
                self._batched = None
        # a client's update, its copy of the model, its gradient, and activations of similar size
        self.chunk = max(1, int(memory / (6 * 4 * len(self.flat.vector))))

    def initial(self, seed: int) -> torch.Tensor:
        """A fresh model, the same on every device."""
        module = make(self.task, seed)
        floats = [b for b in module.buffers() if b.is_floating_point()]
        tensors = [t.detach().float().to(self.device) for t in (*module.parameters(), *floats)]
        return self.flat.join(tensors)

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i, [m, d]."""
        with self._precision():
            if self._batched is not None:
                return self._batched.updates(model, batches)
            return self._one_after_another(model, batches)

    def _one_after_another(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        flat, rate, prox = self.flat, self.local.learning_rate, self.local.prox
        flat.module.train()
        own: list[torch.Tensor] = [p for p in flat.parameters if p.requires_grad]
        index = torch.from_numpy(batches.samples).to(self.device)
        starts = flat.split(model)[: len(flat.parameters)]
        anchor = [a for a, p in zip(starts, flat.parameters, strict=True) if p.requires_grad]
        out = torch.empty(len(batches.steps), len(model), device=self.device)
        for c in range(len(out)):
            flat.restore(model)
            with seeded(int(batches.seeds[c]), self.device):
                for s in range(batches.first[c], batches.first[c + 1]):
                    at = index[batches.starts[s] : batches.starts[s] + batches.lengths[s]]
                    x = prepared(self.x[at])
                    if self.images and self.device.type == "cpu":
                        x = x.contiguous(memory_format=torch.channels_last)
                    loss = self.loss(flat.module(x), self.y[at]).mean()
                    found = torch.autograd.grad(loss, own, allow_unused=True)
                    with torch.no_grad():
                        if prox:
                            for here, start in zip(own, anchor, strict=True):
                                here.sub_(here - start, alpha=rate * prox)
                        pairs = [(p, g) for p, g in zip(own, found, strict=True) if g is not None]
                        moved, gradients = (list(part) for part in zip(*pairs, strict=True))
                        torch._foreach_add_(moved, gradients, alpha=-rate)
            torch.sub(model, flat.vector, out=out[c])
        return out

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

    @torch.no_grad()
    def evaluate(self, model: torch.Tensor, split: str) -> Evaluation:
        """In batches that fit everywhere."""
        x, y = self.test if split == "test" else (self.x, self.y)
        self.flat.restore(model)
        self.flat.module.eval()
        loss, right = 0.0, 0.0
        for low in range(0, len(x), 2048):
            targets = y[low : low + 2048]
            with self._precision():
                outputs = self.flat.module(prepared(x[low : low + 2048]))
            loss += float(self.loss(outputs.float(), targets).double().sum())
            if self.task.classes is not None:
                right += float((outputs.argmax(-1) == targets).double().sum())
        accuracy = right / len(x) if self.task.classes is not None else math.nan
        return Evaluation(loss / len(x), accuracy)

    def to_numpy(self, vector: torch.Tensor) -> Any:
        """To the host, in torch's own order, so that a run can move between devices."""
        return self.flat.standard(vector).cpu().numpy()

    def from_numpy(self, array: Any) -> torch.Tensor:
        """To the device."""
        return self.flat.internal(
            torch.from_numpy(np.array(array, dtype=np.float32)).to(self.device)
        )

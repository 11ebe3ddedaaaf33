"""Local training of one client after another.

It is for modules that cannot be batched, and for models so large that one client fills the device.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from kvib.sim.engines.flat import FlatModule, prepared, seeded
from kvib.sim.engines.graphs import graph
from kvib.sim.local import Batches, LocalSGD

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function (outputs, targets) that returns one loss per sample."""


class _Step(NamedTuple):
    """One SGD step for one size of batch, recorded."""

    replay: Callable[[], None]
    """Takes the step."""
    samples: torch.Tensor
    """The positions of the samples that the step reads, [B]."""


class SequentialTrainer:
    """Local SGD of one client after another, in the memory of one client.

    On a GPU the step for each size of batch is recorded once (CUDA graph) and replayed.

    Args:
        flat: The module.
        loss: The loss of each sample.
        local: How clients train.
        x: The inputs of all clients, on the device.
        y: The targets of all clients, on the device.
        graphs: Whether to record steps. The default is to do so on a GPU. Steps of modules that
            draw random numbers are never recorded.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Loss,
        local: LocalSGD,
        x: torch.Tensor,
        y: torch.Tensor,
        graphs: bool | None = None,
    ) -> None:
        self.flat, self.loss, self.local, self.x, self.y = flat, loss, local, x, y
        self.device = flat.vector.device
        self.images = prepared(x[:1]).ndim == 4
        wanted = self.device.type == "cuda" if graphs is None else graphs
        self.graphs = wanted and not draws(flat.module)
        self.why_eager = ""
        """The reason why steps could not be recorded. Empty if there is none."""
        self._own = flat.parameters
        self._anchor: list[torch.Tensor] = []
        self._steps: dict[int, _Step] = {}
        self._pool: Any = None

    def _step(self, at: torch.Tensor) -> None:
        """Take one SGD step on these samples: x_i ← x_i − η·(∇f_i + μ(x_i − x))."""
        flat, rate, prox = self.flat, self.local.learning_rate, self.local.prox
        x = prepared(self.x[at])
        if self.images and self.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        loss = self.loss(flat.module(x), self.y[at]).mean()
        found = torch.autograd.grad(loss, self._own, allow_unused=True)
        with torch.no_grad():
            if prox:
                for here, start in zip(self._own, self._anchor, strict=True):
                    here.sub_(here - start, alpha=rate * prox)
            pairs = [(p, g) for p, g in zip(self._own, found, strict=True) if g is not None]
            moved, gradients = (list(part) for part in zip(*pairs, strict=True))
            torch._foreach_add_(moved, gradients, alpha=-rate)

    def _record(self, sizes: set[int]) -> None:
        """Record steps for batches of these sizes. This changes the module's vector."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        for size in sorted(sizes - self._steps.keys(), reverse=True):
            samples = torch.zeros(size, dtype=torch.long, device=self.device)
            step: Callable[[], None] = partial(self._step, samples)
            self._steps[size] = _Step(graph(step, self._pool), samples)

    def _try_to_record(self, sizes: set[int]) -> None:
        """Record steps, or turn recording off.

        A module that waits for the device within a step cannot be recorded.
        """
        try:
            self._record(sizes)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.graphs, self.why_eager = False, str(error).splitlines()[0]
            self._steps.clear()

    def each(self, model: torch.Tensor, batches: Batches) -> Iterator[None]:
        """Train client after client. After each yield `flat.vector` is the x_i of that client."""
        flat = self.flat
        flat.module.train()
        # Sample positions, the anchor of FedProx, and recorded steps for all sizes of batches.
        index = torch.from_numpy(batches.samples).to(self.device)
        if self.local.prox:
            self._keep_anchor(model)
        if self.graphs:
            self._try_to_record({int(n) for n in np.unique(batches.lengths)})
        # Each client starts at the model and takes its steps.
        for c in range(len(batches.steps)):
            flat.restore(model)
            with seeded(int(batches.seeds[c]), self.device):
                for s in range(batches.first[c], batches.first[c + 1]):
                    at = index[batches.starts[s] : batches.starts[s] + batches.lengths[s]]
                    if self.graphs:
                        step = self._steps[len(at)]
                        step.samples.copy_(at)
                        step.replay()
                    else:
                        self._step(at)
            yield

    def _keep_anchor(self, model: torch.Tensor) -> None:
        """Copy the model for FedProx, always into the same tensors: graphs hold addresses."""
        fresh = self.flat.split(model)[: len(self._own)]
        if not self._anchor:
            self._anchor = [start.clone() for start in fresh]
        for kept, start in zip(self._anchor, fresh, strict=True):
            kept.copy_(start)

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i of every client, [m, d]."""
        out = torch.empty(len(batches.steps), len(model), device=self.device)
        for row, _ in zip(out, self.each(model, batches), strict=True):
            torch.sub(model, self.flat.vector, out=row)
        return out


def draws(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training (dropout that is not off)."""
    kind = nn.modules.dropout._DropoutNd
    return any(isinstance(m, kind) and m.p > 0 for m in module.modules())

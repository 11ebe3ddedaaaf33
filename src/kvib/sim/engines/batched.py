"""Many clients at once: vmap over stacked parameters, replayed from CUDA graphs."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from kvib.sim.engines.convolution import as_products
from kvib.sim.engines.flat import FlatModule, prepared
from kvib.sim.engines.graphs import graph
from kvib.sim.engines.sequential import draws
from kvib.sim.local import Batches, LocalSGD
from kvib.types import IntArray

FEW = 8
"""Clients that train with wider batches than theirs: padding costs less than steps of their own."""


class _Step(NamedTuple):
    """One SGD step of a number of clients, recorded."""

    replay: Callable[[], None]
    samples: torch.Tensor
    """[C, B] of each client's batch."""
    mask: torch.Tensor
    """[C, B] 1 for a sample, 0 for padding."""


class BatchedTrainer:
    """Local SGD of many clients, step by step.

    Clients are grouped by the width of their batches and sorted by their number of steps, so that
    those still training are the first rows of one matrix of parameters. A step is recorded once for
    each number of rows and width (CUDA graph), then replayed: launches do not dominate.

    Args:
        flat: the module.
        loss: of each sample.
        local: how clients train.
        x: inputs of all clients, on the device.
        y: targets likewise.
        room: for how many clients; more are taken in once, at the cost of new graphs.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        local: LocalSGD,
        x: torch.Tensor,
        y: torch.Tensor,
        room: int,
    ) -> None:
        self.flat, self.loss, self.local, self.x, self.y = flat, loss, local, x, y
        self.device = flat.vector.device
        self.room = room
        self._stack = torch.empty(0, len(flat.vector), device=self.device)
        self._anchor = flat.vector.clone()
        self._steps: dict[tuple[int, int], _Step] = {}
        self._pool: Any = None

    def cannot(self) -> str:
        """Why this module cannot be batched; empty if it can."""
        if self.flat.buffer_names:
            return (
                f"the module changes buffers ({self.flat.buffer_names[0]}, …) while it trains, as "
                "batch normalisation does; clients train one after another. GroupNorm or LayerNorm "
                "can be batched"
            )
        if draws(self.flat.module):
            return "the module draws random numbers (dropout); clients train one after another"
        # Two clients with the same first sample, and another one behind the mask.
        probe = torch.tensor([[0, 0], [0, len(self.x) - 1]], device=self.device)
        mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]], device=self.device)
        self.flat.module.train()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "There is a performance drop")  # a loop inside
                alike = self._gradients(self._anchor.repeat(2, 1), probe, mask)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning, ValueError) as error:
            why = str(error).splitlines()[0]
            return f"torch.func.vmap cannot take the module or its loss ({why})"
        if not torch.allclose(alike[0], alike[1], rtol=1e-3, atol=1e-6):
            return (
                "what the module does with a sample depends on the others of its batch (batch "
                "normalisation), so batches cannot be padded; clients train one after another"
            )
        return ""

    def _gradients(
        self, rows: torch.Tensor, index: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of each client's mean loss over its batch, [C, d]."""

        def loss_of(vector: torch.Tensor, at: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            values = dict(zip(self.flat.names, self.flat.split(vector), strict=True))
            outputs = functional_call(self.flat.module, values, (prepared(self.x[at]),))
            losses = self.loss(outputs, self.y[at])
            return (losses * weight).sum() / weight.sum().clamp(min=1)

        try:
            with as_products(self.flat.module):
                each = vmap(grad(loss_of), randomness="different")
                gradients: torch.Tensor = each(rows, index, mask)
            return gradients
        finally:
            self.flat.put_back()

    def _step(self, rows: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> None:
        """One step of the clients in these rows; those whose mask is 0 stay."""
        gradient = self._gradients(rows, index, mask)
        rate, prox = self.local.learning_rate, self.local.prox
        if prox:
            active = mask.amax(dim=1, keepdim=True)
            gradient = gradient + prox * active * (rows - self._anchor)
        rows.sub_(gradient, alpha=rate)

    def _recorded(self, clients: int, width: int) -> _Step:
        """The step for this many rows and samples, recorded when first needed."""
        key = (clients, width)
        if key not in self._steps:
            samples = torch.zeros(clients, width, dtype=torch.long, device=self.device)
            mask = torch.zeros(clients, width, device=self.device)
            step: Callable[[], None] = partial(self._step, self._stack[:clients], samples, mask)
            if self.device.type == "cuda":
                step = graph(step, self._pool)  # the mask is still empty: nothing moves
            self._steps[key] = _Step(step, samples, mask)
        return self._steps[key]

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i of every client, [m, d]."""
        out = torch.empty(len(batches.steps), len(model), device=self.device)
        self.flat.module.train()
        groups = _groups(batches, self.local.batch_size)
        self._reserve(max([self.room, *(len(members) for members, _ in groups)]))
        self._anchor.copy_(model)
        for members, width in groups:
            self._train(model, batches, members, width, out)
        return out

    def _reserve(self, clients: int) -> None:
        """Room for this many; graphs hold addresses, so a new room means new graphs."""
        rows = _rounded(clients)
        if len(self._stack) < rows:
            self._stack = torch.empty(rows, len(self.flat.vector), device=self.device)
            self._steps.clear()
            if self.device.type == "cuda":
                # Graphs are replayed one at a time and leave nothing behind: they share memory.
                self._pool = torch.cuda.graph_pool_handle()

    def _train(
        self,
        model: torch.Tensor,
        batches: Batches,
        members: IntArray,
        width: int,
        out: torch.Tensor,
    ) -> None:
        m = len(members)
        steps = batches.steps[members]
        self._stack[:m] = model
        index, mask = (t.to(self.device) for t in _padded(batches, members, width))
        for s in range(int(steps.max())):
            active = int(np.searchsorted(-steps, -s, "left"))  # clients with more than s steps
            rows = _rounded(active)
            step = self._recorded(rows, width)
            step.mask.zero_()
            step.samples[:active].copy_(index[s, :active])
            step.mask[:active].copy_(mask[s, :active])
            step.replay()
        out[torch.from_numpy(members).to(self.device)] = model - self._stack[:m]


def _groups(batches: Batches, largest: int) -> list[tuple[IntArray, int]]:
    """Clients of similar batch width, each group sorted by number of steps, most first."""
    steps = batches.steps
    widest = batches.lengths[batches.first[:-1]]  # the first batch of a pass is its largest
    # Powers of two: few groups, and the same ones in every round, so that graphs are used again.
    width = np.minimum(2 ** np.ceil(np.log2(widest)).astype(int), largest)
    groups, waiting = [], np.empty(0, np.int64)
    for w in np.unique(width):
        waiting = np.concatenate([waiting, np.flatnonzero(width == w)])
        if len(waiting) >= FEW or w == width.max():
            groups.append((waiting[np.argsort(-steps[waiting], kind="stable")], int(w)))
            waiting = waiting[:0]
    return groups


def _padded(batches: Batches, members: IntArray, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and mask of every step, [steps, m, width], clients in the order of `members`."""
    steps = batches.steps[members]
    T, m = int(steps.max()), len(members)
    index, mask = np.zeros((T, m, width), np.int64), np.zeros((T, m, width), np.float32)
    client = np.repeat(np.arange(m), steps)
    step = np.arange(len(client)) - np.repeat(np.cumsum(steps) - steps, steps)
    batch = np.repeat(batches.first[members], steps) + step
    offset = np.arange(width)
    inside = offset < batches.lengths[batch][:, None]
    position = np.where(inside, batches.starts[batch][:, None] + offset, 0)
    index[step, client] = batches.samples[position]
    mask[step, client] = inside
    return torch.from_numpy(index), torch.from_numpy(mask)


def _rounded(clients: int) -> int:
    """Few different numbers of rows, so that few graphs are recorded."""
    if clients <= 2:
        return max(clients, 1)
    step = 4 if clients <= 32 else 16
    return -(-clients // step) * step

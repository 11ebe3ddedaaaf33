"""Local training of many clients at once: vmap over stacked parameters, with CUDA graphs."""

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
"""Groups with fewer clients than this join the group with wider batches, since padding costs less
than steps of their own."""
RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""Gradients that differ by less than this differ by rounding only."""


class _Step(NamedTuple):
    """One SGD step for a number of clients and a width of batches, recorded."""

    replay: Callable[[], None]
    """Takes the step."""
    samples: torch.Tensor
    """The positions of the samples in each client's batch, [C, B]."""
    mask: torch.Tensor
    """1 for a sample, 0 for padding, [C, B]."""


class BatchedTrainer:
    """Local SGD of many clients together, step by step.

    Clients are grouped by the width of their batches and sorted by their number of steps, so that
    those still training are the first rows of one matrix of parameters. A step is recorded once for
    each number of rows and width (CUDA graph) and then replayed, so that launches do not dominate.

    Args:
        flat: The module.
        loss: The loss of each sample.
        local: How clients train.
        x: The inputs of all clients, on the device.
        y: The targets of all clients, on the device.
        room: The number of clients to make room for. A larger round makes more room once, at the
            cost of new graphs.
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
        """The reason why this module cannot be batched. Empty if it can."""
        if self.flat.buffer_names:
            return (
                f"the module changes buffers ({self.flat.buffer_names[0]}, …) while it trains, as "
                "batch normalisation does; clients train one after another. GroupNorm or LayerNorm "
                "can be batched"
            )
        if draws(self.flat.module):
            return "the module draws random numbers (dropout); clients train one after another"
        # Two clients train on the same sample, with different samples behind the mask. Their
        # gradients are equal if samples do not depend on the others of their batch.
        probe = torch.tensor([[0, 0], [0, len(self.x) - 1]], device=self.device)
        mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]], device=self.device)
        self.flat.module.train()
        try:
            with warnings.catch_warnings():
                # Torch warns where vmap falls back to a loop over clients.
                warnings.filterwarnings("error", "There is a performance drop")
                alike = self._gradients(self._anchor.repeat(2, 1), probe, mask)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning, ValueError) as error:
            why = str(error).splitlines()[0]
            return f"torch.func.vmap cannot take the module or its loss ({why})"
        if not torch.allclose(alike[0], alike[1], rtol=RELATIVE, atol=ABSOLUTE):
            return (
                "what the module does with a sample depends on the others of its batch (batch "
                "normalisation), so batches cannot be padded; clients train one after another"
            )
        return ""

    def _gradients(
        self, rows: torch.Tensor, index: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """The gradient of each client's mean loss over its batch, [C, d]."""

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
        """Take one step of the clients in these rows. Rows whose mask is 0 stay as they are."""
        gradient = self._gradients(rows, index, mask)
        rate, prox = self.local.learning_rate, self.local.prox
        if prox:
            active = mask.amax(dim=1, keepdim=True)
            gradient = gradient + prox * active * (rows - self._anchor)
        rows.sub_(gradient, alpha=rate)

    def _recorded(self, clients: int, width: int) -> _Step:
        """The step for this many rows and samples, recorded when it is first needed."""
        key = (clients, width)
        if key not in self._steps:
            samples = torch.zeros(clients, width, dtype=torch.long, device=self.device)
            mask = torch.zeros(clients, width, device=self.device)
            step: Callable[[], None] = partial(self._step, self._stack[:clients], samples, mask)
            if self.device.type == "cuda":
                step = graph(step, self._pool)  # the mask is still 0, so nothing moves
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
        """Make room for this many clients. Graphs hold addresses, so new room means new graphs."""
        rows = _rounded(clients)
        if len(self._stack) < rows:
            self._stack = torch.empty(rows, len(self.flat.vector), device=self.device)
            self._steps.clear()
            if self.device.type == "cuda":
                # Graphs are replayed one at a time and leave nothing behind, so they share memory.
                self._pool = torch.cuda.graph_pool_handle()

    def _train(
        self,
        model: torch.Tensor,
        batches: Batches,
        members: IntArray,
        width: int,
        out: torch.Tensor,
    ) -> None:
        """Train one group of clients, and write their updates into `out`."""
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
    """Groups of clients with their batch width, each sorted by number of steps, most first."""
    steps = batches.steps
    widest = batches.lengths[batches.first[:-1]]  # the first batch of a pass is its largest
    # Widths are powers of two. Groups are then few and alike in every round, so that graphs are
    # used again.
    width = np.minimum(2 ** np.ceil(np.log2(widest)).astype(int), largest)
    groups, pending = [], np.empty(0, np.int64)
    for w in np.unique(width):
        pending = np.concatenate([pending, np.flatnonzero(width == w)])
        if len(pending) >= FEW or w == width.max():
            groups.append((pending[np.argsort(-steps[pending], kind="stable")], int(w)))
            pending = pending[:0]
    return groups


def _padded(batches: Batches, members: IntArray, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and mask of every step, [steps, m, width], clients in the order of `members`."""
    steps = batches.steps[members]
    T, m = int(steps.max()), len(members)
    index, mask = np.zeros((T, m, width), np.int64), np.zeros((T, m, width), np.float32)
    # The client, the step and the batch of every (client, step).
    client = np.repeat(np.arange(m), steps)
    step = np.arange(len(client)) - np.repeat(np.cumsum(steps) - steps, steps)
    batch = np.repeat(batches.first[members], steps) + step
    # The samples of these batches, and 0 beyond their lengths.
    offset = np.arange(width)
    inside = offset < batches.lengths[batch][:, None]
    position = np.where(inside, batches.starts[batch][:, None] + offset, 0)
    index[step, client] = batches.samples[position]
    mask[step, client] = inside
    return torch.from_numpy(index), torch.from_numpy(mask)


def _rounded(clients: int) -> int:
    """The number of clients rounded up: few different numbers mean that few graphs are recorded.

    1 and 2 stay as they are. It is a multiple of 4 up to 32 clients, and of 16 beyond.
    """
    if clients <= 2:
        return max(clients, 1)
    step = 4 if clients <= 32 else 16
    return -(-clients // step) * step

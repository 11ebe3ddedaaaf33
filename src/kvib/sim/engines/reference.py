"""The slow readable loop that every engine must equal."""

from typing import Any

import numpy as np
import torch

from kvib.sim.engines.flat import prepared
from kvib.sim.engines.torch_engine import TorchEngine
from kvib.sim.local import Batches
from kvib.sim.models import make


class ReferenceEngine(TorchEngine):
    """Local training as a textbook writes it: a fresh module and `torch.optim.SGD` per client."""

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """One client after another."""
        rows = []
        for c in range(len(batches.steps)):
            module = make(self.task, seed=0).train()
            parameters = list(module.parameters())
            floats = [b for b in module.buffers() if b.is_floating_point()]
            with torch.no_grad():
                for tensor, start in zip(
                    [*parameters, *floats], self.flat.split(model), strict=True
                ):
                    tensor.copy_(start)
            anchor = [p.detach().clone() for p in parameters]
            optimiser = torch.optim.SGD(parameters, lr=self.local.learning_rate)
            for s in range(batches.first[c], batches.first[c + 1]):
                at = batches.samples[batches.starts[s] : batches.starts[s] + batches.lengths[s]]
                x, y = _samples(self.task.train.x, at), _samples(self.task.train.y, at)
                loss = self.loss(module(prepared(x)), y).mean()
                pull = sum(((p - a) ** 2).sum() for p, a in zip(parameters, anchor, strict=True))
                optimiser.zero_grad()
                (loss + self.local.prox / 2 * pull).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            trained = [t.detach().reshape(-1) for t in (*parameters, *floats)]
            rows.append(model - torch.cat(trained))
        return torch.stack(rows)


def _samples(values: Any, at: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values[at]))

"""The slow readable loop that every engine must equal."""

import torch

from kvib.sim.engines.flat import moving, on_device, prepared, seeded
from kvib.sim.engines.torch_engine import TorchEngine
from kvib.sim.local import Batches
from kvib.sim.models import make


class ReferenceEngine(TorchEngine):
    """Local training as a textbook writes it: a fresh module and `torch.optim.SGD` per client."""

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """g_i = x − x_i of each client, one client after another, [m, d]."""
        rows, train = [], self.task.train
        for c in range(len(batches.steps)):
            # A fresh module with the server's model.
            module = make(self.task, seed=0).train()
            parameters, floats = (list(named.values()) for named in moving(module))
            with torch.no_grad():
                for tensor, start in zip(
                    [*parameters, *floats], self.flat.split(model), strict=True
                ):
                    tensor.copy_(start)
            anchor = [p.detach().clone() for p in parameters]
            # Steps on the loss, and on the pull (μ/2)·‖x_i − x‖² of FedProx.
            optimiser = torch.optim.SGD(parameters, lr=self.local.learning_rate)
            with seeded(int(batches.seeds[c]), self.device):
                for s in range(batches.first[c], batches.first[c + 1]):
                    at = batches.samples[batches.starts[s] : batches.starts[s] + batches.lengths[s]]
                    x, y = (on_device(v[at], self.device) for v in (train.x, train.y))
                    loss = self.loss(module(prepared(x)), y).mean()
                    pull = sum(
                        ((p - a) ** 2).sum() for p, a in zip(parameters, anchor, strict=True)
                    )
                    optimiser.zero_grad()
                    total = loss + self.local.prox / 2 * pull
                    total.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            trained = [t.detach() for t in (*parameters, *floats)]
            rows.append(model - self.flat.join(trained))
        return torch.stack(rows)

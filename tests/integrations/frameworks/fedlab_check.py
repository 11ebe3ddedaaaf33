"""FedLab's standalone pipeline with kvib's handler. Run by test_frameworks.py."""

import logging
import sys
import types
from pathlib import Path

# FedLab imports torchvision for data sets not used here; the wheel would pull in another PyTorch.
vision = types.ModuleType("torchvision")
vision.transforms = types.ModuleType("torchvision.transforms")
sys.modules |= {"torchvision": vision, "torchvision.transforms": vision.transforms}

import numpy as np
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader

import kvib
from kvib.integrations.fedlab import UnbiasedHandler
from kvib.sim import synthetic

torch.set_num_threads(1)
T, N, K = 6, 20, 5
task = synthetic(clients=N)
ends = np.cumsum(task.train.sizes)


class Clients(FedDataset):
    def get_dataloader(self, id, batch_size):
        rows = slice(ends[id] - task.train.sizes[id], ends[id])
        x, y = torch.from_numpy(task.train.x[rows]), torch.from_numpy(task.train.y[rows]).long()
        return DataLoader(BaseDataset(x, y), batch_size=10**6)


def flat(module):
    return torch.cat([p.detach().ravel() for p in module.parameters()]).double().numpy()


def by_hand(i, parameters):
    """x − x_i of one full-batch gradient step."""
    torch.nn.utils.vector_to_parameters(torch.tensor(parameters, dtype=torch.float32), probe)
    [(x, y)] = Clients().get_dataloader(i, 0)
    loss = torch.nn.functional.cross_entropy(probe_model(x), y)
    grads = torch.autograd.grad(loss, probe)
    return 0.02 * torch.cat([g.ravel() for g in grads]).double().numpy()


class Pipeline(StandalonePipeline):
    """Checks every step against `kvib.estimate` of updates computed here."""

    def evaluate(self):
        global before
        cohort, after = handler.cohort, flat(handler.model)
        step = kvib.estimate(cohort, [by_hand(i, before) for i in cohort.ids])
        assert np.allclose(before - after, step, atol=1e-6), "not the estimate"
        before = after
        sizes.append(len(cohort))


probe_model = torch.nn.Linear(60, 10)
probe = list(probe_model.parameters())
for procedure in (kvib.pivotal, kvib.independent):
    model = torch.nn.Linear(60, 10)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    before, sizes = flat(model), []
    sampler = kvib.Sampler(kvib.Forecast(), task.weights, K, procedure, seed=2)
    handler = UnbiasedHandler(model, T, sampler)
    trainer = SGDSerialClientTrainer(model, num_clients=N)
    trainer.setup_dataset(Clients())
    trainer.setup_optim(1, 10**6, 0.02)
    logging.getLogger().setLevel(logging.WARNING)
    Pipeline(handler, trainer).main()
    assert sampler.round == T
    assert procedure is kvib.independent or sizes == [K] * T
    p = sampler.probabilities()
    assert p.max() > 3 * p.min(), "it has learned nothing"

# over a network: in any order, with bad ones among them, and one that was not asked
model = torch.nn.Linear(60, 10)
sampler = kvib.Sampler(kvib.Uniform(), [1.0] * 4, 4, response=kvib.EstimatedRate())
handler = UnbiasedHandler(model, 1, sampler, sender=lambda payload: int(payload[1]))
before = flat(handler.model)
assert handler.sample_clients() == [0, 1, 2, 3]
ones, start = torch.ones(610), handler.model_parameters.clone()
handler.global_update(
    [
        (start - 2 * ones, 2),
        (start * float("nan"), 1),
        (start - ones, 0),
        (ones[:7], 3),
        (start, 0),
        (start, 9),
    ]
)
assert np.allclose(before - flat(handler.model), 3 / 4, atol=1e-6), "not the estimate"
assert sorted(handler.refused) == [1, 3], handler.refused
assert "7 parameters, in the model 610" in handler.refused[3]
Path(sys.argv[1]).write_text("agrees")

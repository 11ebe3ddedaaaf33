"""pfl's FederatedAveraging with kvib's cohorts, in pfl's simulator; one worker or two (torchrun).

Writes the model after every round, and the cohorts. Run by tests/integrations/test_frameworks.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

import kvib
from kvib.integrations.pfl import DrawnUsers, UnbiasedWeighting
from kvib.sim import synthetic

torch.set_num_threads(1)
T, N = 6, 20
task = synthetic(clients=N)
ends = np.cumsum(task.train.sizes)
module = torch.nn.Linear(60, 10)
for parameter in module.parameters():
    torch.nn.init.zeros_(parameter)
module.loss = lambda x, y: torch.nn.functional.cross_entropy(module(x), y)
module.metrics = lambda x, y: {}


def make_dataset(i):
    rows = slice(ends[i] - task.train.sizes[i], ends[i])
    x, y = torch.from_numpy(task.train.x[rows]), torch.from_numpy(task.train.y[rows]).long()
    return PyTorchTensorDataset((x, y), user_id=i)


def flat():
    return torch.cat([p.detach().ravel() for p in module.parameters()]).double().numpy()


class Write(TrainingProcessCallback):
    def __init__(self):
        self.lines = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        cohort = users.cohort
        line = {
            "ids": cohort.ids.tolist(),
            "coefficients": cohort.coefficients.tolist(),
            "model": flat().tolist(),
            "p": sampler.probabilities().tolist(),
        }
        self.lines.append(line)
        return False, Metrics()


def full_gradient(i):
    """One step of a client, by hand."""
    x, y = make_dataset(i).raw_data
    grads = torch.autograd.grad(module.loss(x, y), list(module.parameters()))
    return 0.02 * torch.cat([g.ravel() for g in grads]).double().numpy()


for looks in ({"guard": kvib.Guard()}, {"sketch": 4}, {"estimator": kvib.Difference()}):
    sampler = kvib.Sampler(kvib.Forecast(), task.weights, 6, **looks)
    with pytest.raises(ValueError, match="before we see them"):
        DrawnUsers(make_dataset, sampler)

said = []
for K, procedure in ((6, kvib.pivotal), (1, kvib.independent)):  # one or none: fewer than workers
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    sampler = kvib.Sampler(kvib.Forecast(), task.weights, K, procedure, seed=1)
    users, write = DrawnUsers(make_dataset, sampler), Write()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=T,
            evaluation_frequency=T + 1,
            train_cohort_size=K,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users, postprocessors=[UnbiasedWeighting(users)]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.02, local_batch_size=10**6),
        callbacks=[write],
        send_metrics_to_platform=False,
    )
    said.append(write.lines)
    before = np.zeros(len(flat()))
    for line in write.lines:  # every step again
        torch.nn.utils.vector_to_parameters(torch.tensor(before).float(), module.parameters())
        drawn = zip(line["ids"], line["coefficients"], strict=True)
        step = sum(c * full_gradient(i) for i, c in drawn)
        assert np.allclose(line["model"], before - step, atol=1e-6), "not the estimate"
        before = np.array(line["model"])
if pytorch_ops.distributed.global_rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(said))
if torch.distributed.is_initialized():  # a worker that leaves its group to the end may abort there
    torch.distributed.destroy_process_group()

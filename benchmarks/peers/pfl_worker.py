# mypy: ignore-errors
"""pfl's FederatedAveraging on its SimulatedBackend, one process."""

import sys
from importlib.metadata import version
from itertools import chain

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch_work import final_loss, initial_model
from work import Stopwatch, read, write


class RoundEnded(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        watch.round_ended()
        return False, Metrics()


work = read(sys.argv[1])
x, y, rows = torch.from_numpy(work.x), torch.from_numpy(work.y), work.rows()
watch, module, (T, K) = Stopwatch(work), initial_model(work), work.cohorts.shape
module.loss = lambda x, y: torch.nn.functional.cross_entropy(module(x), y)
module.metrics = lambda x, y: {}  # pfl insists on evaluating the users of round 0
# A "user" here is one drawn client of one round, so that it brings its given order.
drawn = chain.from_iterable(rows)
clients = FederatedDataset(
    lambda samples: PyTorchTensorDataset((x[samples], y[samples])), drawn.__next__
)
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=T,
        evaluation_frequency=T + 1,
        train_cohort_size=K,
        val_cohort_size=0,
    ),
    SimulatedBackend(clients, clients, postprocessors=[WeightByUser()]),
    PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
    NNTrainHyperParams(
        local_num_epochs=work.epochs,
        local_learning_rate=work.learning_rate,
        local_batch_size=work.batch_size,
    ),
    callbacks=[RoundEnded()],
    send_metrics_to_platform=False,  # it would print them
)
note = f"torch {torch.__version__}, one process"
write("pfl", version("pfl"), watch, final_loss(module, work), note)

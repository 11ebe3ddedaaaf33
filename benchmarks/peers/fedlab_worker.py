# mypy: ignore-errors
"""FedLab's standalone pipeline: SyncServerHandler, SGDSerialClientTrainer, its DataLoaders."""

import logging
import sys
import types
from importlib.metadata import version
from itertools import chain

# FedLab imports torchvision for data sets not used here; the wheel would pull in another PyTorch.
vision = types.ModuleType("torchvision")
vision.transforms = types.ModuleType("torchvision.transforms")
sys.modules |= {"torchvision": vision, "torchvision.transforms": vision.transforms}

import torch  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch_work import final_loss, initial_model  # noqa: E402
from work import Stopwatch, read, write  # noqa: E402


class Clients(FedDataset):
    """FedLab asks for the drawn clients one after another; each gets its given order."""

    def __init__(self, work):
        self.data = BaseDataset(torch.from_numpy(work.x), torch.from_numpy(work.y))
        self.orders = chain.from_iterable(work.rows())

    def get_dataloader(self, id, batch_size):
        order = next(self.orders).tolist()
        return DataLoader(self.data, batch_size=batch_size, sampler=order)


class GivenCohorts(SyncServerHandler):
    def sample_clients(self):
        return work.cohorts[self.round].tolist()


class Pipeline(StandalonePipeline):
    def evaluate(self):
        watch.round_ended()


work = read(sys.argv[1])
watch, model, (T, K), N = Stopwatch(work), initial_model(work), work.cohorts.shape, len(work.sizes)
handler = GivenCohorts(model, global_round=T, sample_ratio=(K + 0.5) / N)
trainer = SGDSerialClientTrainer(model, num_clients=N)
trainer.setup_dataset(Clients(work))
trainer.setup_optim(work.epochs, work.batch_size, work.learning_rate)
logging.getLogger().setLevel(logging.WARNING)
Pipeline(handler, trainer).main()
note = f"torch {torch.__version__}, torchvision stubbed"
write("FedLab", version("fedlab"), watch, final_loss(handler.model, work), note)

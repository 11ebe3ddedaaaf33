"""Models of the experiments, as ordinary torch modules."""

from typing import Any

import torch
from torch import nn

from kvib.sim.engines.flat import seeded
from kvib.sim.task import SoftmaxRegression, Task


class FemnistCNN(nn.Module):
    """The CNN of the FEMNIST tasks: two convolutions and two dense layers.

    The layers are conv 5×5×32, pool, conv 5×5×64, pool, dense 512, outputs. With 10 classes they
    have 1,663,370 parameters.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images [batch, 1, 28, 28]."""
        out: torch.Tensor = self.head(self.features(x))
        return out


def make(task: Task, seed: int) -> nn.Module:
    """A fresh module of a task. The seed alone decides its random start."""
    model: Any = task.model
    with seeded(seed, torch.device("cpu")):
        if isinstance(model, SoftmaxRegression):
            linear = nn.Linear(model.features, model.classes)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
            return linear
        module = model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"the task's model makes a {type(module).__name__}, not a torch.nn.Module")
    return module

"""The data and the model: softmax regression on Synthetic(0, 0). There is nothing to download."""

from functools import cache

import torch
from torch import Tensor, nn

from kvib.sim import Task, synthetic


@cache
def task(clients: int) -> Task:
    """Synthetic(0, 0) with this many clients."""
    torch.set_num_threads(1)
    return synthetic(clients=max(clients, 2))


def data(client: int, clients: int) -> tuple[Tensor, Tensor]:
    """The inputs and labels of one client."""
    train = task(clients).train
    rows = slice(int(train.sizes[:client].sum()), int(train.sizes[: client + 1].sum()))
    return torch.from_numpy(train.x[rows]), torch.from_numpy(train.y[rows]).long()


def new_model() -> nn.Module:
    """A softmax regression whose parameters are all 0."""
    model = nn.Linear(60, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def train(model: nn.Module, x: Tensor, y: Tensor, learning_rate: float) -> float:
    """Train for one pass over the data in batches of 64. Returns the mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    total = 0.0
    for start in range(0, len(y), 64):
        batch, target = x[start : start + 64], y[start : start + 64]
        loss = nn.functional.cross_entropy(model(batch), target)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        total += loss.item() * len(target)
    return total / len(y)


def test_loss(model: nn.Module, clients: int) -> float:
    """The mean loss on the test data."""
    x, y = task(clients).test
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))
        return nn.functional.cross_entropy(outputs, torch.from_numpy(y).long()).item()

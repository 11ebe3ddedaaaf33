# mypy: ignore-errors
"""The two models in PyTorch, one epoch of local SGD, and the final loss."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from work import Work


def linear(work: Work) -> nn.Module:
    return nn.Linear(work.x.shape[1], work.classes)


def cnn(work: Work) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, work.classes),
    )


MODELS = {"linear": linear, "cnn": cnn}


def initial_model(work: Work) -> nn.Module:
    model = MODELS[work.model](work)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), work.weights, strict=True):
            start = torch.from_numpy(value)
            parameter.copy_(start.T if work.model == "linear" and start.ndim == 2 else start)
    return model


def train(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch_size: int, learning_rate: float
) -> None:
    """One epoch over x and y in the order given."""
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for i in range(0, len(y), batch_size):
        optimizer.zero_grad()
        cross_entropy(model(x[i : i + batch_size]), y[i : i + batch_size]).backward()
        optimizer.step()


@torch.no_grad()
def final_loss(model: nn.Module, work: Work) -> float:
    total, n = 0.0, 0
    for x, y in work.judged():
        total += float(
            cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y), reduction="sum")
        )
        n += len(y)
    return total / n

"""Simulate a task of your own: arrays of each client, a torch module and a loss.

python examples/own_task.py
"""

import numpy as np
import torch
from torch import nn

import kvib
from kvib.sim import ClientData, LocalSGD, Simulation, Task
from kvib.sim.engines.torch_engine import TorchEngine

rng = np.random.default_rng(0)
truth = rng.normal(size=8).astype(np.float32)
clients = []
for _ in range(30):  # each client has its own inputs and its own bias
    x = rng.normal(size=(rng.integers(5, 200), 8)).astype(np.float32)
    clients.append((x, (x @ truth + rng.normal()).astype(np.float32)))


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One loss per sample, [samples]."""
    return (outputs.squeeze(-1) - targets) ** 2


task = Task(
    name="regression",
    train=ClientData.of(clients),
    test=clients[0],
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
    loss=squared_error,
)
local = LocalSGD(learning_rate=0.05, batch_size=16)
sampler = kvib.Sampler(kvib.KVib(rounds=40), task.weights, budget=5, procedure=kvib.pivotal)
simulation = Simulation(task, TorchEngine(task, local), sampler, local)
losses = [record.loss for record in simulation.run(rounds=40)]
print(f"test loss {losses[0]:.2f} → {losses[-1]:.2f}")

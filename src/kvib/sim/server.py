"""What the server does with the estimated step d: frozen rules, their memory explicit."""

from dataclasses import dataclass
from typing import Protocol

from kvib.types import Tensor

OptimiserState = tuple[Tensor, ...]


class ServerOptimiser(Protocol):
    """Moves the model by an estimated step; works on NumPy arrays and torch tensors alike."""

    def start(self, model: Tensor) -> OptimiserState:
        """The memory before the first round."""

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """The next memory and model."""


@dataclass(frozen=True)
class ServerSGD:
    """x ← x − η_g·m with m ← momentum·m + d.

    Args:
        learning_rate: η_g.
        momentum: 0 for plain steps (FedAvg), 0.9 for FedAvgM.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def start(self, model: Tensor) -> OptimiserState:
        """Nothing moved yet."""
        return (model * 0,) if self.momentum else ()

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """One step."""
        if not self.momentum:
            return (), model - self.learning_rate * d
        m = self.momentum * optimiser_state[0] + d
        return (m,), model - self.learning_rate * m


@dataclass(frozen=True)
class ServerAdam:
    """FedAdam: x ← x − η·m/(√v + τ), m and v moving averages of d and d².

    Reddi et al., "Adaptive federated optimization", 2021.
    """

    learning_rate: float = 0.01
    decay: float = 0.9
    square_decay: float = 0.99
    adaptivity: float = 1e-3

    def start(self, model: Tensor) -> OptimiserState:
        """m = 0, v = τ²."""
        return model * 0, model * 0 + self.adaptivity**2

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        return self.square_decay * v + (1 - self.square_decay) * square

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """One step."""
        m = self.decay * optimiser_state[0] + (1 - self.decay) * d
        v = self._square(optimiser_state[1], d * d)
        return (m, v), model - self.learning_rate * m / (v**0.5 + self.adaptivity)


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi: v moves towards d² by steps of d² alone, so that it forgets slowly."""

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        step = (1 - self.square_decay) * square
        nearer: Tensor = v - step * (v > square) + step * (v < square)
        return nearer

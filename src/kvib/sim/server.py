"""Server optimisers: how the estimated step d moves the model.

An optimiser is frozen. Its moving averages are the optimiser state, which the caller keeps.
"""

from dataclasses import dataclass
from typing import Protocol

from kvib.types import Tensor

OptimiserState = tuple[Tensor, ...]
"""The moving averages of a server optimiser, each [d]."""


class ServerOptimiser(Protocol):
    """A rule that moves the model by an estimated step, for NumPy arrays and torch tensors."""

    def start(self, model: Tensor) -> OptimiserState:
        """The optimiser state before the first round."""

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """The next optimiser state and the next model."""


@dataclass(frozen=True)
class ServerSGD:
    """The server moves the model along the estimated step, as FedAvg and FedAvgM do.

    m ← momentum·m + d, x ← x − η_g·m.

    Args:
        learning_rate: The step size η_g.
        momentum: The share of the last m that is kept: 0 for plain steps (FedAvg), 0.9 for
            FedAvgM.

    Examples:
        >>> import numpy as np
        >>> from kvib.sim import ServerSGD
        >>> server = ServerSGD(learning_rate=0.5)
        >>> state = server.start(np.zeros(2))
        >>> state, model = server.step(state, np.zeros(2), np.array([1.0, -2.0]))
        >>> model
        array([-0.5,  1. ])
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def start(self, model: Tensor) -> OptimiserState:
        """Return the optimiser state before the first round: m = 0, or nothing without momentum.

        Args:
            model: The model x before the first round, [d].
        """
        return (model * 0,) if self.momentum else ()

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """Return the next optimiser state and the next model.

        Args:
            optimiser_state: The state (m,) after the last round, empty without momentum.
            model: The model x, [d].
            d: The estimated step, [d].
        """
        if not self.momentum:
            return (), model - self.learning_rate * d
        m = self.momentum * optimiser_state[0] + d
        return (m,), model - self.learning_rate * m


@dataclass(frozen=True)
class ServerAdam:
    """The server takes steps of similar size in every coordinate, as Adam does (FedAdam).

    m and v are moving averages of d and d²:
    m ← β₁m + (1 − β₁)d, v ← β₂v + (1 − β₂)d², x ← x − η·m/(√v + τ).

    Args:
        learning_rate: The step size η.
        decay: β₁, the share of the last m that is kept.
        square_decay: β₂, the share of the last v that is kept.
        adaptivity: τ, which bounds the steps where d is small. A large τ makes the steps more like
            those of `ServerSGD`.

    Examples:
        >>> import numpy as np
        >>> from kvib.sim import ServerAdam
        >>> server = ServerAdam(learning_rate=0.1)
        >>> state = server.start(np.zeros(2))
        >>> state, model = server.step(state, np.zeros(2), np.array([1.0, -20.0]))
        >>> model.round(3)
        array([-0.099,  0.1  ])

    References:
        Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """

    learning_rate: float = 0.01
    decay: float = 0.9
    square_decay: float = 0.99
    adaptivity: float = 1e-3

    def start(self, model: Tensor) -> OptimiserState:
        """Return the optimiser state before the first round: m = 0 and v = τ².

        Args:
            model: The model x before the first round, [d].
        """
        return model * 0, model * 0 + self.adaptivity**2

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, given d²."""
        return self.square_decay * v + (1 - self.square_decay) * square

    def step(
        self, optimiser_state: OptimiserState, model: Tensor, d: Tensor
    ) -> tuple[OptimiserState, Tensor]:
        """Return the next optimiser state and the next model.

        Args:
            optimiser_state: The state (m, v) after the last round.
            model: The model x, [d].
            d: The estimated step, [d].
        """
        m = self.decay * optimiser_state[0] + (1 - self.decay) * d
        v = self._square(optimiser_state[1], d * d)
        return (m, v), model - self.learning_rate * m / (v**0.5 + self.adaptivity)


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """The server steps as with `ServerAdam`, but v forgets large steps slowly (FedYogi).

    v moves towards d² by steps of size (1 − β₂)d², however large v is:
    v ← v − (1 − β₂)·d²·sign(v − d²).

    Args:
        learning_rate: The step size η.
        decay: β₁, the share of the last m that is kept.
        square_decay: β₂, where (1 − β₂)d² is how far v moves in one round.
        adaptivity: τ, which bounds the steps where d is small.

    Examples:
        >>> import numpy as np
        >>> from kvib.sim import ServerYogi
        >>> server = ServerYogi(learning_rate=0.1)
        >>> state = server.start(np.zeros(2))
        >>> state, model = server.step(state, np.zeros(2), np.array([1.0, -20.0]))
        >>> model.round(3)
        array([-0.099,  0.1  ])

    References:
        Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, given d²."""
        step = (1 - self.square_decay) * square
        nearer: Tensor = v - step * (v > square) + step * (v < square)
        return nearer

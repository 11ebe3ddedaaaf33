"""A task: what clients have, what they train, and how a model is judged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvib.cohort import FloatArray
from kvib.sim.data import Array, ClientData


@dataclass(frozen=True)
class SoftmaxRegression:
    """Logits xW + b; the linear engine trains it without torch."""

    features: int
    classes: int


@dataclass(frozen=True, eq=False)
class Task:
    """Data of N clients, a model, a loss, and test data.

    Args:
        name: what to call it.
        train: the clients' data.
        test: inputs and targets that no client trains on.
        model: `SoftmaxRegression(…)`, or a function that makes a fresh `torch.nn.Module`.
        classes: how many classes targets name; None if they are not classes.
        loss: (outputs, targets) → one loss per sample, [batch]; by default cross-entropy.
        weights: λ of every client; by default its number of samples.
    """

    name: str
    train: ClientData
    test: tuple[Array, Array]
    model: SoftmaxRegression | Callable[[], Any]
    classes: int | None = None
    loss: Callable[[Any, Any], Any] | None = None
    weights: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if len(self.weights) == 0:
            object.__setattr__(self, "weights", self.train.sizes.astype(np.float64))
        if self.classes is None:
            return
        for name, y in (("training", self.train.y), ("test", self.test[1])):
            bad = np.flatnonzero((y < 0) | (y >= self.classes))
            if len(bad):
                where = f"client {self.train.owner(int(bad[0]))}" if name == "training" else "one"
                raise ValueError(
                    f"label {y[bad[0]]} of {where} in the {name} data is not between 0 and "
                    f"{self.classes - 1}; give the right number of classes"
                )

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.train)

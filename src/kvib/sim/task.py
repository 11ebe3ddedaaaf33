"""A task: what clients have, what they train, and how a model is judged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from kvib.sim.data import Array, ClientData
from kvib.sim.data import finite as _finite
from kvib.types import FloatArray


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
        if len(self.weights) != len(self.train):
            raise ValueError(f"{len(self.weights)} weights for {len(self.train)} clients")
        if isinstance(self.model, SoftmaxRegression):
            self._check_softmax(self.model)
        x, y = self.test
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"the test data have {len(x)} inputs and {len(y)} targets")
        if not (_finite(x) and _finite(y)):
            raise ValueError("there is a NaN or infinity in the test data; clean it first")
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

    def _check_softmax(self, model: "SoftmaxRegression") -> None:
        if self.classes not in (None, model.classes):
            raise ValueError(f"{self.classes} classes, but a model of {model.classes}")
        object.__setattr__(self, "classes", model.classes)
        for name, x in (("training", self.train.x), ("test", self.test[0])):
            if np.shape(x)[1:] != (model.features,):
                raise ValueError(
                    f"{name} inputs have shape {np.shape(x)[1:]}, the model takes {model.features} "
                    "features"
                )

    @cached_property
    def fingerprint(self) -> int:
        """A number that other data would not have."""
        parts = (self.train.x, self.train.y, self.train.sizes, *self.test)
        check = 0
        for part in parts:
            check = crc32(np.ascontiguousarray(part).view(np.uint8).data, check)
        return check

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.train)

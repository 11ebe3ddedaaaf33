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
    """A linear model of classes, which `LinearEngine` trains without torch.

    The logits are xW + b, and the loss of a sample is −ln softmax(xW + b)_y.

    Examples:
        >>> from kvib.sim import SoftmaxRegression
        >>> SoftmaxRegression(features=60, classes=10)
        SoftmaxRegression(features=60, classes=10)
    """

    features: int
    """The number of entries of an input."""
    classes: int
    """The number of classes."""


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem joins the data of N clients, a model, a loss and test data.

    Args:
        name: The name of the task in records and messages.
        train: The data of the clients.
        test: Inputs and targets that no client trains on.
        model: A `SoftmaxRegression`, or a function that makes a fresh `torch.nn.Module`.
        classes: The number of classes that targets name. None means that targets are not classes.
        loss: A function (outputs, targets) that returns one loss per sample, [batch]. The default
            is cross-entropy.
        weights: λ of every client, [N]. The default is its number of samples.

    Examples:
        >>> import numpy as np
        >>> from kvib.sim import ClientData, SoftmaxRegression, Task
        >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
        >>> train = ClientData(x, y, sizes=[1, 3])
        >>> task = Task("tiny", train, test=(x, y), model=SoftmaxRegression(4, 2))
        >>> len(task), task.weights
        (2, array([1., 3.]))
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
        """A checksum of the training and test data."""
        parts = (self.train.x, self.train.y, self.train.sizes, *self.test)
        check = 0
        for part in parts:
            check = crc32(np.ascontiguousarray(part).view(np.uint8).data, check)
        return check

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.train)

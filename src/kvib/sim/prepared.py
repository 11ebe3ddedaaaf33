"""A task as one small file, for machines without the data, the network or numba.

Also the table of tasks that have a name.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvib.files import intact, storage
from kvib.sim import femnist, text
from kvib.sim.data import Array, ClientData
from kvib.sim.synthetic import synthetic
from kvib.sim.task import SoftmaxRegression, Task
from kvib.sim.text.models import PYTHIA_14M, next_token_loss

TASKS: dict[str, Callable[[], Task]] = {
    "synthetic": synthetic,
    "synthetic-1-1": partial(synthetic, 1.0, 1.0),
    "synthetic-iid": partial(synthetic, iid=True),
    "synthetic-flat": partial(synthetic, flat=True),
    "synthetic-equal": partial(synthetic, equal=True),
    "femnist-v1": partial(femnist.digits, "v1"),
    "femnist-v2": partial(femnist.digits, "v2"),
    "femnist-v3": partial(femnist.digits, "v3"),
    "femnist-iid": femnist.iid_digits,
    "femnist": femnist.femnist,
    "femnist-400": partial(femnist.femnist, writers=400),
    **{f"agnews-{sigma}": partial(text.agnews, sigma) for sigma in (1, 2, 3)},
    **{f"agnews-lora-{sigma}": partial(text.agnews, sigma, adapters=8) for sigma in (1, 2, 3)},
    **{f"newswire-{sigma}": partial(text.newswire, sigma) for sigma in (1, 2, 3)},
    **{
        # Clients of this small model train together, which only eager attention allows.
        f"newswire-14m-{sigma}": partial(
            text.newswire, sigma, model=text.NextToken(PYTHIA_14M, attention="eager")
        )
        for sigma in (1, 2, 3)
    },
    "shakespeare": text.shakespeare,
}
"""The tasks that kvib knows by name."""
ARRAYS = ("x", "y", "sizes", "test_x", "test_y", "weights", "model")
"""Parts of the file that `prepare` writes."""


def make_task(name: str) -> Task:
    """A task by its name, or from the file that `prepare` wrote."""
    if name in TASKS:
        return TASKS[name]()
    if Path(name).exists():
        return read(name)
    raise ValueError(f"task {name!r} is not one of {', '.join(TASKS)}, nor a prepared file")


def prepare(task: Task, path: str | os.PathLike[str]) -> None:
    """Write a task as one compressed file."""
    kind, description, weights = _described(task)
    about = {"name": task.name, "classes": task.classes, "model": {"kind": kind, **description}}
    arrays = {"x": task.train.x, "y": _small(task.train.y), "sizes": task.train.sizes}
    arrays |= {"test_x": task.test[0], "test_y": _small(task.test[1]), "weights": task.weights}
    arrays |= {f"model.{name}": array for name, array in weights.items()}
    storage.write(path, storage.headed("task", about, arrays), compressed=True)


def read(path: str | os.PathLike[str]) -> Task:
    """The task in a file that `prepare` wrote."""
    about, arrays = storage.read(path, "task", ARRAYS, compressed=True)
    with storage.whole("task", path):
        intact.has_entries(about, ("name", "classes", "model"))
        train = ClientData(arrays["x"], arrays["y"].astype(np.int64), arrays["sizes"])
        test = (arrays["test_x"], arrays["test_y"].astype(np.int64))
        description = dict(about["model"])
        kind = description.pop("kind", None)
        if kind not in MODELS:
            raise storage.OtherFileError(
                f"it holds a model of the kind {kind!r}, not one of {', '.join(MODELS)}; read it "
                "with the kvib that wrote it, or prepare it again"
            )
        model = MODELS[kind].make(**description, weights=storage.part(arrays, "model"))
        loss = MODELS[kind].loss
        return Task(about["name"], train, test, model, about["classes"], loss, arrays["weights"])


class TaskKind(NamedTuple):
    """A kind of model as it is written to a file."""

    describe: Callable[[Any], dict[str, Any] | None]
    """The arguments that `make` needs for a model. None if the model is of another kind."""
    make: Callable[..., Any]
    """A function that makes the model again, from its description and its weights."""
    loss: Callable[[Any, Any], Any] | None = None
    """The loss of a task with this model. None is the default of `Task`."""


# Each function describes a model of one kind, and returns None for any other.


def _softmax(model: Any) -> dict[str, Any] | None:
    if not isinstance(model, SoftmaxRegression):
        return None
    return {"features": model.features, "classes": model.classes}


def _cnn(model: Any) -> dict[str, Any] | None:
    ours = isinstance(model, partial) and model.func is femnist.cnn
    return {"classes": model.args[0]} if ours else None


def _classifier(model: Any) -> dict[str, Any] | None:
    if not isinstance(model, text.Classifier):
        return None
    config, attention = dict(model.config), model.attention
    return {"config": config, "classes": model.classes, "attention": attention}


def _adapted(model: Any) -> dict[str, Any] | None:
    """An adapted classifier. Adapted models of other kinds cannot be prepared."""
    inner = _classifier(model.model) if isinstance(model, text.Adapted) else None
    return None if inner is None else {**inner, "rank": model.rank, "scale": model.scale}


def _adapt(rank: int, scale: float, **classifier: Any) -> text.Adapted:
    """The adapted classifier with this description."""
    return text.Adapted(text.Classifier(**classifier), rank, scale)


def _next_token(model: Any) -> dict[str, Any] | None:
    if not isinstance(model, text.NextToken):
        return None
    return {"config": dict(model.config), "attention": model.attention}


MODELS: dict[str, TaskKind] = {
    "softmax": TaskKind(
        _softmax, lambda features, classes, weights: SoftmaxRegression(features, classes)
    ),
    "femnist-cnn": TaskKind(_cnn, lambda classes, weights: partial(femnist.cnn, classes)),
    "classifier": TaskKind(_classifier, text.Classifier),
    "adapted-classifier": TaskKind(_adapted, _adapt),
    "next-token": TaskKind(
        _next_token,
        lambda config, attention, weights: text.NextToken(config, attention),
        next_token_loss,
    ),
}
"""The kinds of models that a file can hold."""


def _described(task: Task) -> tuple[str, dict[str, Any], Mapping[str, Array]]:
    """The kind of a task's model, its description, and its weights."""
    for name, kind in MODELS.items():
        description = kind.describe(task.model)
        if description is not None and task.loss is kind.loss:
            return name, description, getattr(task.model, "weights", {})
    raise ValueError(
        f"only kvib's own models can be prepared, not that of {task.name!r}; save your arrays and "
        "make the Task where you run it"
    )


def _small(labels: Any) -> Any:
    """Labels in the smallest of uint8, uint16 and their own type that holds them."""
    most = labels.max(initial=0)
    return labels.astype(np.uint8 if most < 1 << 8 else np.uint16) if most < 1 << 16 else labels

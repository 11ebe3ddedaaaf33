"""A task as one small file, for machines without the data, the network or numba."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvib import storage
from kvib.cohort import Arrays
from kvib.sim import femnist, text
from kvib.sim.data import ClientData
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
    **{f"newswire-{sigma}": partial(text.newswire, sigma) for sigma in (1, 2, 3)},
    **{
        f"newswire-14m-{sigma}": partial(text.newswire, sigma, model=text.NextToken(PYTHIA_14M))
        for sigma in (1, 2, 3)
    },
    "shakespeare": text.shakespeare,
}
"""The tasks that kvib knows by name."""


def make_task(name: str) -> Task:
    """A task by its name, or from the file that `prepare` wrote."""
    if name in TASKS:
        return TASKS[name]()
    if Path(name).exists():
        return read(name)
    raise ValueError(f"task {name!r} is not one of {', '.join(TASKS)}, nor a prepared file")


def prepare(task: Task, path: str | os.PathLike[str]) -> None:
    """Write what a task needs as one compressed file."""
    about = {"name": task.name, "classes": task.classes, "model": _describe(task)}
    arrays = {"x": task.train.x, "y": _small(task.train.y), "sizes": task.train.sizes}
    arrays |= {"test_x": task.test[0], "test_y": _small(task.test[1]), "weights": task.weights}
    if isinstance(task.model, text.Classifier):
        arrays |= {f"model.{name}": array for name, array in task.model.weights.items()}
    storage.write(path, {"header": storage.header("task", about), **arrays}, compressed=True)


def _describe(task: Task) -> dict[str, Any]:
    if isinstance(task.model, SoftmaxRegression):
        return {"kind": "softmax", "features": task.model.features, "classes": task.model.classes}
    if isinstance(task.model, partial) and task.model.func is femnist.cnn and task.loss is None:
        return {"kind": "femnist-cnn", "classes": task.model.args[0]}
    if isinstance(task.model, text.Classifier) and task.loss is None:
        config, attention = dict(task.model.config), task.model.attention
        return {"kind": "classifier", "config": config, "attention": attention}
    if isinstance(task.model, text.NextToken) and task.loss is next_token_loss:
        config, attention = dict(task.model.config), task.model.attention
        return {"kind": "next-token", "config": config, "attention": attention}
    raise ValueError(
        f"only kvib's own models can be prepared, not that of {task.name!r}; save your arrays and "
        "make the Task where you run it"
    )


def read(path: str | os.PathLike[str]) -> Task:
    """The task that was prepared."""
    about, arrays = storage.read(path, "task")
    if not {"name", "classes", "model"} <= set(about):
        raise ValueError(f"{path} is not a whole kvib task file; prepare it again")
    train = ClientData(arrays["x"], arrays["y"].astype(np.int64), arrays["sizes"])
    test = (arrays["test_x"], arrays["test_y"].astype(np.int64))
    made, loss = _model(about, arrays)
    return Task(about["name"], train, test, made, about["classes"], loss, arrays["weights"])


def _model(about: dict[str, Any], arrays: Arrays) -> tuple[Any, Any]:
    """The model that was described, and its loss."""
    said = about["model"]
    if said["kind"] == "softmax":
        return SoftmaxRegression(said["features"], said["classes"]), None
    if said["kind"] == "classifier":
        weights = storage.part(arrays, "model")
        return text.Classifier(said["config"], about["classes"], weights, said["attention"]), None
    if said["kind"] == "next-token":
        return text.NextToken(said["config"], said["attention"]), next_token_loss
    return partial(femnist.cnn, said["classes"]), None


def _small(labels: Any) -> Any:
    most = labels.max(initial=0)
    return labels.astype(np.uint8 if most < 1 << 8 else np.uint16) if most < 1 << 16 else labels

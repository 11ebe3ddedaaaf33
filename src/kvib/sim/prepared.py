"""A task as one small file, for machines without the data, the network or numba."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvib import storage
from kvib.sim import femnist
from kvib.sim.data import ClientData
from kvib.sim.synthetic import synthetic
from kvib.sim.task import SoftmaxRegression, Task

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
    storage.write(path, {"header": storage.header("task", about), **arrays}, compressed=True)


def _describe(task: Task) -> dict[str, Any]:
    if isinstance(task.model, SoftmaxRegression):
        return {"kind": "softmax", "features": task.model.features, "classes": task.model.classes}
    if isinstance(task.model, partial) and task.model.func is femnist.cnn and task.loss is None:
        return {"kind": "femnist-cnn", "classes": task.model.args[0]}
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
    model = about["model"]
    made: Any = partial(femnist.cnn, model["classes"])
    if model["kind"] == "softmax":
        made = SoftmaxRegression(model["features"], model["classes"])
    return Task(about["name"], train, test, made, about["classes"], weights=arrays["weights"])


def _small(labels: Any) -> Any:
    return labels.astype(np.uint8) if labels.max(initial=0) < 256 else labels

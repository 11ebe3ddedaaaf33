"""The table of engines, and the function that makes an engine for a task."""

import gc
from importlib import import_module
from typing import Any, NamedTuple

from kvib.sim.engines.base import BaseEngine
from kvib.sim.engines.engine import Engine
from kvib.sim.engines.place import HERE, Place
from kvib.sim.local import LocalSGD
from kvib.sim.task import SoftmaxRegression, Task


class EngineKind(NamedTuple):
    """An engine class by name. It is imported when asked for: some need torch, numba or Ray."""

    module: str
    """The module of the class."""
    name: str
    """The name of the class, which extends `BaseEngine`."""
    remote: bool = False
    """Whether clients train on a cluster, not in this process and on its device."""

    @property
    def engine(self) -> Any:
        """The class itself."""
        return getattr(import_module(self.module), self.name)


ENGINES: dict[str, EngineKind] = {
    "linear": EngineKind("kvib.sim.engines.linear", "LinearEngine"),
    "torch": EngineKind("kvib.sim.engines.torch_engine", "TorchEngine"),
    "ray": EngineKind("kvib.sim.engines.ray_engine", "RayEngine", remote=True),
}
"""The engines by name. A new engine is registered here and nowhere else."""
AUTO = "auto"
"""The compiled engine for softmax regression where no device is given, torch for all else."""
NAMES = (AUTO, *ENGINES)
"""The names that `make_engine` takes."""


def check_engine(name: str, place: Place) -> None:
    """Refuse an engine or a place that this machine does not have, before a task is made."""
    (BaseEngine if name == AUTO else _kind(name).engine).check(place)


def is_remote(name: str) -> bool:
    """Whether clients of this engine train on a cluster."""
    return name != AUTO and _kind(name).remote


def make_engine(name: str, task: Task, local: LocalSGD, place: Place = HERE) -> Engine:
    """The engine of this name, made for a task.

    Args:
        name: One of `NAMES`.
        task: The task to train.
        local: How clients train.
        place: Where the engine trains, and what it may use there.
    """
    if name == AUTO:
        compiled = isinstance(task.model, SoftmaxRegression) and place.device is None
        name = "linear" if compiled else "torch"
    engine: Engine = _kind(name).engine.at(task, local, place)
    return engine


def _kind(name: str) -> EngineKind:
    """The engine of this name in the table."""
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is not one of {', '.join(NAMES)}")
    return ENGINES[name]


class EngineShelf:
    """The last engine that was made, kept for all runs that can use it.

    Two engines would hold the memory and the workers of two. The last engine is therefore dropped
    before the next is made.
    """

    def __init__(self) -> None:
        self._made_for: tuple[str, Task, LocalSGD, Place] | None = None
        self._engine: Engine | None = None

    def get(self, name: str, task: Task, local: LocalSGD, place: Place) -> Engine:
        """The last engine if it was made with the same arguments, else a new one."""
        wanted = name, task, local, place
        if self._engine is None or self._made_for != wanted:
            self.clear()
            self._engine, self._made_for = make_engine(*wanted), wanted
        return self._engine

    def clear(self) -> None:
        """Drop the last engine."""
        self._engine = self._made_for = None
        gc.collect()  # recorded steps and their engine hold each other

"""A run in one file: model, optimiser state, sampler and records are replaced together."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from kvib.files import storage
from kvib.sim import records, timings
from kvib.sim.chooser import Chooser
from kvib.sim.engines.engine import Engine, Vector
from kvib.sim.records import Record
from kvib.sim.server import OptimiserState
from kvib.types import Arrays


class Progress(NamedTuple):
    """The state of a run: all that its next round depends on, and its records."""

    model: Vector
    """The server's model, [d]."""
    optimiser_state: OptimiserState
    """The moving averages of the server's optimiser."""
    chooser: Chooser
    """The sampler or selector, with what it has learned."""
    records: list[Record]
    """The records of all rounds so far."""
    seconds: list[timings.Laps]
    """The timings of all rounds so far."""


def write(
    path: str | os.PathLike[str], about: dict[str, Any], engine: Engine, progress: Progress
) -> None:
    """Write a run to one file, atomically, and its timings to a file beside it.

    Args:
        path: The file.
        about: The settings that a run must share with the file to be continued from it.
        engine: The engine that holds the model.
        progress: The state of the run.
    """
    arrays: Arrays = {
        "model": engine.to_numpy(progress.model),
        **{f"memory.{k}": engine.to_numpy(v) for k, v in enumerate(progress.optimiser_state)},
        **{f"sampler.{name}": a for name, a in progress.chooser.packed().items()},
        **{f"records.{name}": a for name, a in records.packed(progress.records).items()},
    }
    storage.write(path, storage.headed("simulation", about, arrays))
    timings.write(_beside(path), progress.seconds)


def read(
    path: str | os.PathLike[str], about: dict[str, Any], engine: Engine, chooser: Chooser
) -> Progress:
    """The state of a run that was written, if its settings are the same.

    Args:
        path: The file.
        about: The settings that a run must share with the file to be continued from it.
        engine: The engine that will hold the model.
        chooser: A chooser with the options of the one that was saved.
    """
    header, arrays = storage.read(path, "simulation", records.CHECKPOINT)
    settings = {k: v for k, v in header.items() if k not in ("format", "version")}
    if settings != about:
        differs = [k for k in {**about, **settings} if settings.get(k) != about.get(k)]
        raise ValueError(
            f"{path} is of another run: {', '.join(differs)} differ; use another folder"
        )
    with storage.whole("simulation", path):
        optimiser_state = storage.part(arrays, "memory")
        past = records.unpacked(storage.part(arrays, "records"))
        return Progress(
            model=engine.from_numpy(arrays["model"]),
            optimiser_state=tuple(
                engine.from_numpy(optimiser_state[str(k)]) for k in range(len(optimiser_state))
            ),
            chooser=chooser.unpacked(storage.part(arrays, "sampler")),
            records=past,
            seconds=timings.read(_beside(path), len(past)),
        )


def _beside(path: str | os.PathLike[str]) -> Path:
    """The file of timings that belongs to a checkpoint."""
    return Path(path).with_name("timings.npz")

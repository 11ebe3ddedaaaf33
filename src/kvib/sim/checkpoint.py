"""A run in one file: model, server memory, sampler and records are replaced together."""

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
    """How far a run is: all that its next round depends on, and its records."""

    model: Vector
    optimiser_state: OptimiserState
    """Of the server's optimiser."""
    chooser: Chooser
    records: list[Record]
    seconds: list[timings.Laps]


def write(
    path: str | os.PathLike[str], about: dict[str, Any], engine: Engine, progress: Progress
) -> None:
    """To one file, atomically; timings beside it.

    Args:
        path: of the file.
        about: what makes a run the same run.
        engine: which holds the model.
        progress: what to write.
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
    """What was written, if it is of the same run.

    Args:
        path: of the file.
        about: what makes a run the same run.
        engine: which shall hold the model.
        chooser: configured as the one that was saved.
    """
    said, arrays = storage.read(path, "simulation", records.CHECKPOINT)
    said = {k: v for k, v in said.items() if k not in ("format", "version")}
    if said != about:
        differs = [k for k in {**about, **said} if said.get(k) != about.get(k)]
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
    return Path(path).with_name("timings.npz")

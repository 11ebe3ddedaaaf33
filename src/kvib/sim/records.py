"""What a simulation reports of every round, and how that becomes a file."""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from kvib.checks import earlier_names
from kvib.files import storage
from kvib.types import Arrays, FloatArray, IntArray

RENAMED = {"cost": "sampling_cost", "optimal_cost": "optimal_sampling_cost"}
"""Numbers of a record in version 0.1, and their names today."""


@earlier_names(RENAMED)
@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """One round. No clocks: a resumed run must report the same. NaN: not measured."""

    round: int
    clients: int
    """How many different clients were drawn."""
    available: float = math.nan
    """How many could be: those who were there and did not wait."""
    answered: float = math.nan
    """How many of the drawn answered."""
    asked: float = math.nan
    """How many clients worked for the draw itself, drawn or not: candidates of Power-of-Choice
    evaluate the model on all of their data, and all clients train for policies that draw by the
    norms of all. The server sends the model to these and to the drawn."""
    loss: float = math.nan
    """On the test data, before the round."""
    accuracy: float = math.nan
    train_loss: float = math.nan
    """Over the data of all clients, before the round."""
    estimated_variance: float = math.nan
    """From the cohort alone; NaN for selectors, whose choices have no probabilities. So are all
    exact metrics below."""
    variance: float = math.nan
    """E‖d − E[d]‖², exact, from all clients' updates; `variance_error` is its standard error where
    drawn. Of draw and silence it is that among those who are there in this round. What their coming
    and going adds is its mean: so the mean over rounds like this one is the variance."""
    variance_error: float = math.nan
    bias: float = math.nan
    """‖E[d] − D‖, exact: 0 where the estimate is divided by the true rates and no client waits.
    What a guard cuts off is not in it."""
    sampling_cost: float = math.nan
    """ℓ(p) = Σπ²/(q·p) of those who can be drawn, with π = λ‖g‖/a; q = a = 1 without stragglers."""
    optimal_sampling_cost: float = math.nan
    """min ℓ: their difference is the regret of the round."""
    optimal_variance: float = math.nan
    """Of independent draws with the best probabilities."""
    quality: float = math.nan
    optimal_factor: float = math.nan
    step_norm: float = math.nan
    """‖d‖."""
    cut: float = 0.0
    """What the guard cut off Σ coefficient·‖g‖: a bound on the bias of this round."""
    ids: IntArray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    norms: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)
    """‖g‖ of the drawn; NaN of those who did not answer."""


RAGGED = ("ids", "norms")
SCALARS = [f.name for f in fields(Record) if f.name not in RAGGED]
CHECKPOINT = ("model", "memory", "sampler", "records")
"""Parts of the file that `Simulation.save` writes."""


def packed(records: Sequence[Record]) -> Arrays:
    """Columns, and the drawn clients of all rounds one after another."""
    arrays: Arrays = {n: np.array([getattr(r, n) for r in records]) for n in SCALARS}
    for name in RAGGED:
        parts = [getattr(r, name) for r in records]
        arrays[name] = np.concatenate(parts) if parts else getattr(Record(round=0, clients=0), name)
    return arrays


def unpacked(arrays: Arrays) -> list[Record]:
    """The records again, also those of version 0.1."""
    arrays = {RENAMED.get(name, name): array for name, array in arrays.items()}
    ends = np.cumsum(arrays["clients"]).astype(int)
    starts = ends - arrays["clients"].astype(int)
    rows = []
    for k in range(len(ends)):
        values: dict[str, Any] = {n: arrays[n][k].item() for n in SCALARS if n in arrays}
        values |= {name: arrays[name][starts[k] : ends[k]] for name in RAGGED}
        rows.append(Record(**values))
    return rows


def read(folder: str | os.PathLike[str]) -> list[Record]:
    """The records of the run that `Simulation.run(rounds, folder)` has kept there."""
    path = Path(folder) / "checkpoint.npz"
    _, arrays = storage.read(path, "simulation", CHECKPOINT)
    with storage.whole("simulation", path):
        return unpacked(storage.part(arrays, "records"))


def write_csv(path: str | os.PathLike[str], records: Sequence[Record]) -> None:
    """A line per round: every number of a record; drawn clients and their norms side by side."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*SCALARS, *RAGGED])
        for record in records:
            drawn = (" ".join(map(repr, getattr(record, name).tolist())) for name in RAGGED)
            out.writerow([*(getattr(record, name) for name in SCALARS), *drawn])

"""Records: what a simulation reports of every round, and how records become a file."""

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
"""Names of a record's fields in version 0.1, and their names today."""


@earlier_names(RENAMED)
@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """A simulation reports every round as one record. NaN means that a number was not measured.

    Records hold no clock times, since a resumed run must report the same records.

    Examples:
        >>> from kvib.sim import Record
        >>> record = Record(round=3, clients=10, sampling_cost=5.0, optimal_sampling_cost=4.0)
        >>> record.sampling_cost - record.optimal_sampling_cost  # the regret of the round
        1.0
        >>> record.loss
        nan
    """

    round: int
    """The number of the round, from 0."""
    clients: int
    """The number of different clients that were drawn."""
    available: float = math.nan
    """The number of clients that could be drawn: they were available and not waiting."""
    answered: float = math.nan
    """The number of drawn clients that answered."""
    asked: float = math.nan
    """The number of clients that worked for the draw itself, drawn or not. Candidates of
    Power-of-Choice evaluate the model on all of their data. All clients train for policies that
    draw by the norms of all. The server sends the model to these and to the drawn."""
    loss: float = math.nan
    """The mean loss on the test data, before the round."""
    accuracy: float = math.nan
    """The share of right classes in the test data, before the round."""
    train_loss: float = math.nan
    """The mean loss on the training data of all clients, before the round."""
    estimated_variance: float = math.nan
    """The variance as estimated from the cohort alone. It is NaN for selectors, whose choices have
    no probabilities, and so are all exact metrics below."""
    variance: float = math.nan
    """E‖d − E[d]‖², exact, from the updates of all clients. The part of draw and silence is that
    among the clients that are available in this round. The part of availability is its mean. The
    mean over rounds like this one is therefore the variance."""
    variance_error: float = math.nan
    """The standard error of `variance` where it was measured from draws, else 0."""
    bias: float = math.nan
    """‖E[d] − D‖, exact, where D is the step of all clients. It is 0 where the estimate is divided
    by the true rates and no client waits. What a guard cuts off is not in it."""
    sampling_cost: float = math.nan
    """ℓ(p) = Σπ²/(q·p) of the clients that can be drawn, with π = λ‖g‖/a. Without stragglers
    q = a = 1."""
    optimal_sampling_cost: float = math.nan
    """min ℓ over the probabilities. The regret of the round is `sampling_cost` minus this."""
    optimal_variance: float = math.nan
    """The variance of independent draws with the best probabilities."""
    quality: float = math.nan
    """The distance of the estimate from the optimal one: see `kvib.metrics.quality`."""
    optimal_factor: float = math.nan
    """The optimal variance divided by that of uniform draws: see `kvib.metrics.optimal_factor`."""
    step_norm: float = math.nan
    """The norm ‖d‖ of the estimated step."""
    cut: float = 0.0
    """What the guard cut off Σ coefficient·‖g‖: a bound on the bias of this round."""
    ids: IntArray = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    """The drawn clients, [m]."""
    norms: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)
    """‖g‖ of the drawn clients, [m], and NaN of those that did not answer."""


RAGGED = ("ids", "norms")
"""Fields whose length is the number of drawn clients."""
SCALARS = [f.name for f in fields(Record) if f.name not in RAGGED]
"""Fields that are one number per round."""
CHECKPOINT = ("model", "memory", "sampler", "records")
"""Parts of the file that `Simulation.save` writes."""


def packed(records: Sequence[Record]) -> Arrays:
    """The records as columns, the drawn clients of all rounds one after another."""
    arrays: Arrays = {n: np.array([getattr(r, n) for r in records]) for n in SCALARS}
    for name in RAGGED:
        parts = [getattr(r, name) for r in records]
        arrays[name] = np.concatenate(parts) if parts else getattr(Record(round=0, clients=0), name)
    return arrays


def unpacked(arrays: Arrays) -> list[Record]:
    """The records that were packed, also those of version 0.1."""
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
    """Write one line per round: every field of its record, arrays as numbers between spaces."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*SCALARS, *RAGGED])
        for record in records:
            drawn = (" ".join(map(repr, getattr(record, name).tolist())) for name in RAGGED)
            out.writerow([*(getattr(record, name) for name in SCALARS), *drawn])

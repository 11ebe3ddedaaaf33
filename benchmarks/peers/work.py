"""The common work of all peers: one .npz file in, one .json file out."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Work:
    """The data of every peer, and the order of training. A peer draws no random numbers itself."""

    x: np.ndarray  # [n, ...] float32, the clients one after another
    y: np.ndarray  # [n] int64
    sizes: np.ndarray  # [N] samples per client
    cohorts: np.ndarray  # [T, K] the clients of each round
    orders: np.ndarray  # permutations of the drawn clients' samples, one after another
    weights: list[np.ndarray]  # the initial model, in PyTorch's layout
    model: str
    classes: int
    learning_rate: float
    batch_size: int
    epochs: int
    warmup: int  # the first rounds, not timed
    seed: int  # of kvib's plan, which the orders are from

    def __post_init__(self) -> None:
        assert self.epochs == 1, "one order per drawn client is one epoch"

    @property
    def starts(self) -> np.ndarray:  # [N + 1]
        return np.concatenate(([0], np.cumsum(self.sizes)))

    @property
    def rounds(self) -> int:
        return len(self.cohorts) - self.warmup

    def rows(self) -> list[list[np.ndarray]]:
        """The rows of x and y of every round and drawn client, in the order of training."""
        drawn, starts = self.cohorts.ravel(), self.starts
        ends = np.cumsum(self.sizes[drawn])[:-1]
        flat = [
            starts[client] + order
            for client, order in zip(drawn, np.split(self.orders, ends), strict=True)
        ]
        K = self.cohorts.shape[1]
        return [flat[i : i + K] for i in range(0, len(flat), K)]

    def judged(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The samples of the first 20 clients in pieces, over which the final loss is computed."""
        n = int(self.starts[min(20, len(self.sizes))])
        for i in range(0, n, 500):
            yield self.x[i : min(i + 500, n)], self.y[i : min(i + 500, n)]


def read(path: str) -> Work:
    with np.load(path) as file:
        return Work(
            x=file["x"],
            y=file["y"],
            sizes=file["sizes"],
            cohorts=file["cohorts"],
            orders=file["orders"],
            weights=[file[f"w{i}"] for i in range(sum(n[1:].isdigit() for n in file.files))],
            model=str(file["model"]),
            classes=int(file["classes"]),
            learning_rate=float(file["learning_rate"]),
            batch_size=int(file["batch_size"]),
            epochs=int(file["epochs"]),
            warmup=int(file["warmup"]),
            seed=int(file["seed"]),
        )


class Stopwatch:
    """A stopwatch for the rounds after the warm-up. Each round ends with `round_ended`."""

    def __init__(self, work: Work) -> None:
        self.work, self.ended = work, 0

    def round_ended(self) -> None:
        self.ended += 1
        if self.ended == self.work.warmup:
            self.start = time.perf_counter()
        if self.ended == len(self.work.cohorts):
            self.seconds = time.perf_counter() - self.start


def write(name: str, version: str, watch: Stopwatch, loss: float, note: str) -> None:
    """Write the result to the path that is the second argument of every worker."""
    result: dict[str, Any] = {
        "name": name,
        "version": version,
        "seconds": watch.seconds,
        "rounds": watch.work.rounds,
        "loss": loss,
        "note": note,
    }
    Path(sys.argv[2]).write_text(json.dumps(result) + "\n")

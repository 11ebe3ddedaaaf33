"""Measure what the Flower adapter costs a server: the CPU time of a round.

Stock FedAvg, wrapped FedAvg and wrapped FedAvg with a journal are compared.

python benchmarks/flower.py --out benchmarks/results
python benchmarks/flower.py --parameters 1000 100000 --clients 20 --rounds 5 --out /tmp/quick
"""

import argparse
import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import FLOWER_LOGGER
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

import tables
from kvib.integrations.flower import UnbiasedSampling
from tables import Row

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

ROOM = 10**9
"""Bytes of all different replies. If the replies of a round need more, some clients send the same
bytes. That changes no time: no cache holds so much, and strategies do not compare replies."""
LAYERS, BIASES = 2, 16
"""The number of layers, each a matrix with a few biases. Stock FedAvg takes 20 µs more for every
array of a reply, so a model of many arrays would favour us."""
CLIENTS = 5
"""The number of clients in all for each drawn client."""
WARM = 3
"""The number of rounds that are not timed. The first one meets all clients and compiles."""


def model(parameters: int, rng: np.random.Generator) -> dict[str, Any]:
    """The arrays of a model in single precision, which have this many numbers together."""
    sizes = np.diff(np.linspace(0, parameters, LAYERS + 1).astype(int))
    arrays: dict[str, Any] = {}
    for layer, size in enumerate(sizes):
        arrays[f"{layer}.weight"] = rng.normal(size=size - BIASES)
        arrays[f"{layer}.bias"] = rng.normal(size=BIASES)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def trained(arrays: dict[str, Any], rng: np.random.Generator) -> ArrayRecord:
    """The model of a client, at a small distance from the server's."""
    return as_record(
        {
            name: array + np.float32(0.01) * rng.standard_normal(array.shape, np.float32)
            for name, array in arrays.items()
        }
    )


def as_record(arrays: dict[str, Any]) -> ArrayRecord:
    """The arrays as a record of Flower."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Replying:
    """A grid of nodes that answer at once with prepared models."""

    def __init__(self, nodes: int, replies: list[ArrayRecord]) -> None:
        self._nodes, self._replies, self._sent = nodes, replies, 0

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self._nodes + 1)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        self._sent += 1
        message.metadata.__dict__["_message_id"] = f"message {self._sent}"
        node = message.metadata.dst_node_id
        if message.metadata.message_type.startswith("query"):
            identity = ConfigRecord({"key": node, "size": 10.0 + node % 7})
            return Message(RecordDict({"kvib": identity}), reply_to=message)
        metrics = MetricRecord({"num-examples": 10 + node % 7, "loss": 0.5})
        content = {"arrays": self._replies[node % len(self._replies)], "metrics": metrics}
        return Message(RecordDict(cast(Any, content)), reply_to=message)


class Run:
    """A strategy in a run, and the CPU time of its rounds."""

    def __init__(self, strategy: Strategy, grid: Replying, arrays: ArrayRecord) -> None:
        self._strategy, self._grid, self._arrays = strategy, cast(Grid, grid), arrays
        self._seconds: list[float] = []

    def play(self) -> None:
        """Run one round, and keep its CPU time of all threads outside the grid."""
        round, arrays = len(self._seconds) + 1, self._arrays
        begun = time.process_time()
        messages = self._strategy.configure_train(round, arrays, ConfigRecord(), self._grid)
        messages = list(messages)
        configured = time.process_time()
        replies = self._grid.send_and_receive(messages)
        received = time.process_time()
        moved, _ = self._strategy.aggregate_train(round, replies)
        self._seconds.append(configured - begun + time.process_time() - received)
        assert moved is not None
        self._arrays = moved

    def peak(self) -> int:
        """The peak of bytes while the replies of one more round are added up."""
        messages = self._strategy.configure_train(99, self._arrays, ConfigRecord(), self._grid)
        replies = self._grid.send_and_receive(list(messages))
        tracemalloc.start()
        try:
            self._strategy.aggregate_train(99, replies)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    @property
    def milliseconds(self) -> float:
        """The median CPU time of a round."""
        return 1e3 * float(np.median(self._seconds[WARM:]))


@contextmanager
def silent() -> Iterator[None]:
    """Switch off Flower's log lines, whose CPU time is the same for all strategies."""
    before = FLOWER_LOGGER.level
    FLOWER_LOGGER.setLevel(ERROR)
    try:
        yield
    finally:
        FLOWER_LOGGER.setLevel(before)


def compared(parameters: int, drawn: int, rounds: int, folder: Path) -> Row:
    """The CPU times of the three strategies, which take turns."""
    rng = np.random.default_rng([parameters, drawn])
    arrays = model(parameters, rng)
    different = max(2, min(drawn, ROOM // (4 * parameters)))
    grid = Replying(CLIENTS * drawn, [trained(arrays, rng) for _ in range(different)])
    with silent():
        stock, inner, durable = (
            FedAvg(drawn / (CLIENTS * drawn), 0.0, drawn, 0, drawn) for _ in range(3)
        )
        journalled = UnbiasedSampling(durable, journal=folder / f"{parameters}-{drawn}.kvib")
        strategies = [stock, UnbiasedSampling(inner), journalled]
        runs = [Run(strategy, grid, as_record(arrays)) for strategy in strategies]
        for _ in range(WARM + rounds):
            for run in runs:
                run.play()
        journalled.close()
    plain, wrapped, kept = (run.milliseconds for run in runs)
    return {
        "parameters": parameters,
        "K": drawn,
        "stock ms": plain,
        "wrapped ms": wrapped,
        "journalled ms": kept,
        "wrapped / stock": wrapped / plain,
        "journalled / stock": kept / plain,
        "rounds": rounds,
        "different replies": different,
    }


def without_numba(parameters: int, drawn: int, rounds: int, folder: Path) -> Row:
    """The row of `compared` if numba is missing: NumPy then makes both passes over the replies."""
    with patch("kvib.compiled.available", lambda: False):
        return compared(parameters, drawn, rounds, folder)


def memory(parameters: int, drawn: int) -> Row:
    """The peak bytes of `aggregate_train` beyond the replies, in models of single precision."""
    rng = np.random.default_rng(parameters)
    arrays = model(parameters, rng)
    grid = Replying(CLIENTS * drawn, [trained(arrays, rng) for _ in range(drawn)])
    peaks = {}
    with silent():
        for name, strategy in {
            "stock": FedAvg(1 / CLIENTS, 0.0, drawn, 0, drawn),
            "wrapped": UnbiasedSampling(FedAvg(1 / CLIENTS, 0.0, drawn, 0, drawn)),
        }.items():
            run = Run(strategy, grid, as_record(arrays))
            run.play()
            peaks[name] = run.peak() / (4 * parameters)
    return {"parameters": parameters, "K": drawn, **{f"{n}, models": p for n, p in peaks.items()}}


def main() -> None:
    """Measure, and write flower.json and flower.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    add, sizes = parser.add_argument, [10**k for k in range(3, 8)]
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--parameters", type=int, nargs="+", default=sizes, help="Numbers of parameters.")
    add("--clients", type=int, nargs="+", default=[20, 100], help="Numbers of drawn clients K.")
    add("--rounds", type=int, default=21, help="Timed rounds of each strategy.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plain").mkdir()
        rows = [
            compared(parameters, drawn, given.rounds, Path(folder))
            for drawn in given.clients
            for parameters in given.parameters
        ]
        plain = [
            without_numba(parameters, 20, given.rounds, Path(folder) / "plain")
            for parameters in given.parameters
            if 10**5 <= parameters <= 10**6
        ]
    results = {
        "CPU of a round: stock FedAvg, wrapped, and with a journal": rows,
        "The same without numba": plain,
        "Peak of memory beyond the replies": [memory(10**6, drawn) for drawn in given.clients],
    }
    tables.publish(given.out / "flower", tables.environment(), results)


if __name__ == "__main__":
    main()

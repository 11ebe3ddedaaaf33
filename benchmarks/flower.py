"""What the Flower adapter costs a server: CPU per round of stock, wrapped and journalled FedAvg.

python benchmarks/flower.py --out benchmarks/results
python benchmarks/flower.py --parameters 1000 100000 --clients 20 --rounds 5 --out /tmp/quick
"""

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

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

ROOM = 10**9
"""Bytes of the different replies. Where all of a round have more, clients send the same objects
again: no cache holds them, and strategies look at bytes, not at who sent them."""
LAYERS = 2
"""Arrays of a model: as many matrices as vectors, and nearly all numbers are in matrices."""


def model(parameters: int, rng: np.random.Generator) -> dict[str, Any]:
    """Of arrays in single precision that have this many numbers together."""
    width = 16
    arrays: dict[str, Any] = {}
    for layer in range(LAYERS):
        arrays[f"layer{layer}.bias"] = rng.normal(size=width)
        left = (
            parameters // LAYERS - width
            if layer
            else parameters - (LAYERS - 1) * (parameters // LAYERS) - width
        )
        arrays[f"layer{layer}.weight"] = rng.normal(size=left)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def as_record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Replying:
    """A grid of nodes that send prepared models, at once."""

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
            said = ConfigRecord({"key": node, "size": 10.0 + node % 7})
            return Message(RecordDict({"kvib": said}), reply_to=message)
        content = {
            "arrays": self._replies[node % len(self._replies)],
            "metrics": MetricRecord({"num-examples": 10 + node % 7, "loss": 0.5}),
        }
        return Message(RecordDict(cast(Any, content)), reply_to=message)


class Run:
    """A strategy at work, and what its rounds take."""

    def __init__(self, strategy: Strategy, grid: Replying, arrays: ArrayRecord) -> None:
        self._strategy, self._grid, self._arrays = strategy, cast(Grid, grid), arrays
        self._round = 0
        self.seconds: list[float] = []

    def step(self) -> None:
        """One round; its CPU time outside the grid, of all threads."""
        self._round += 1
        begun = time.process_time()
        messages = self._strategy.configure_train(
            self._round, self._arrays, ConfigRecord(), self._grid
        )
        messages = list(messages)
        configured = time.process_time()
        replies = self._grid.send_and_receive(messages)
        received = time.process_time()
        arrays, _ = self._strategy.aggregate_train(self._round, replies)
        self.seconds.append(configured - begun + time.process_time() - received)
        assert arrays is not None
        self._arrays = arrays

    @property
    def typical(self) -> float:
        """Median, in ms, without the first rounds: those meet all clients, and compile."""
        return 1e3 * float(np.median(self.seconds[WARM:]))


WARM = 3


def compared(parameters: int, clients: int, rounds: int, folder: Path) -> Row:
    """Three strategies, in turns."""
    rng = np.random.default_rng(parameters + clients)
    arrays = model(parameters, rng)
    different = max(2, min(clients, ROOM // (4 * parameters)))
    replies = []
    for _ in range(different):
        moved = {
            name: array + 0.01 * rng.normal(size=array.shape).astype(np.float32)
            for name, array in arrays.items()
        }
        replies.append(as_record(moved))

    def stock() -> FedAvg:
        return FedAvg(0.0001, 0.0, clients, 0, clients)

    journal = folder / f"{parameters}-{clients}.kvib"
    strategies = [stock(), UnbiasedSampling(stock()), UnbiasedSampling(stock(), journal=journal)]
    grid = Replying(5 * clients, replies)
    runs = [Run(strategy, grid, as_record(arrays)) for strategy in strategies]
    for _ in range(WARM + rounds):
        for run in runs:
            run.step()
    for strategy in strategies[1:]:
        cast(UnbiasedSampling, strategy).close()
    plain, wrapped, durable = (run.typical for run in runs)
    return {
        "parameters": parameters,
        "K": clients,
        "rounds": rounds,
        "different replies": different,
        "stock ms": plain,
        "wrapped ms": wrapped,
        "journalled ms": durable,
        "wrapped / stock": wrapped / plain,
        "journalled / stock": durable / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--parameters", type=int, nargs="+", default=[10**k for k in range(3, 8)])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--rounds", type=int, default=21, help="timed, of each strategy")
    given = parser.parse_args()
    logging.getLogger(FLOWER_LOGGER.name).setLevel(logging.WARNING)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            compared(parameters, clients, given.rounds, Path(folder))
            for clients in given.clients
            for parameters in given.parameters
        ]
    tables.publish(given.out / "flower", tables.environment(), {"CPU of a round": rows})


if __name__ == "__main__":
    main()

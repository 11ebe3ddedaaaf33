"""The two requests to the wrapped strategy: a message to send, and a step to take."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, LogRecord
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import FLOWER_LOGGER
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from kvib.integrations.flower.records import unwritten, written

SMALLEST_SHARE = 1e-4
"""The smallest `fraction_train` for which a strategy is shown enough nodes to pick two."""
MOST_NODES = 2**16
"""Nodes that a strategy sees at most, if it does not ask for more by its own minimum."""


class _Pretended:
    """A grid that shows a strategy as many nodes as it wants.

    The strategy decides what is sent, and not to which nodes. A strategy that waits for more nodes
    looks again, and every further look shows twice as many.
    """

    def __init__(self, grid: Grid, nodes: int) -> None:
        self._grid, self._nodes = grid, nodes
        self._most = max(MOST_NODES, 2 * nodes)  # FedAvg itself looks twice

    def get_node_ids(self) -> Iterable[int]:
        """Node ids that do not exist, twice as many at every call."""
        if self._nodes > self._most:
            raise ValueError(
                f"the wrapped strategy saw {self._nodes // 2} nodes and still looks for more, so "
                "it waits for more nodes than a fleet can have; lower the minimum in its "
                "configure_train"
            )
        nodes, self._nodes = self._nodes, 2 * self._nodes
        return list(range(1, nodes + 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _enough_for(strategy: FedAvg) -> int:
    """A number of nodes of which a strategy picks at least two, so that differences show."""
    of_two = math.ceil(2 / max(strategy.fraction_train, SMALLEST_SHARE)) + 1
    return max(of_two, strategy.min_available_nodes, strategy.min_train_nodes)


@contextmanager
def _without_its_counts() -> Iterator[None]:
    """Keep back the lines in which the wrapped strategy counts nodes and results.

    It would count pretended nodes and one result, which stand in for the real ones. Flower writes
    to one logger, so the lines can be kept back only there.
    """

    def more_than_informed(record: LogRecord) -> bool:
        return record.levelno > INFO

    FLOWER_LOGGER.addFilter(more_than_informed)
    try:
        yield
    finally:
        FLOWER_LOGGER.removeFilter(more_than_informed)


def message_of(
    strategy: FedAvg, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> Message | None:
    """The message that a strategy sends to every node. None in a round without training."""
    pretended = cast(Grid, _Pretended(grid, _enough_for(strategy)))
    with _without_its_counts():
        messages = list(strategy.configure_train(server_round, arrays, config, pretended))
    if not messages:
        return None
    first = messages[0].content
    if any(m.content is not first and m.content != first for m in messages):
        raise ValueError(
            f"{type(strategy).__name__} sends each node something else, so its messages "
            "cannot be sent to others; put what differs into the ClientApp"
        )
    return messages[0]


def step_of(
    strategy: FedAvg,
    server_round: int,
    asked: Message,
    arrays: Mapping[str, NDArray[Any]],
    metrics: Mapping[str, Any],
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """The arrays and metrics that a strategy returns for one reply with averaged metrics."""
    record = MetricRecord({**metrics, strategy.weighted_by_key: 1.0})
    content = RecordDict({strategy.arrayrecord_key: unwritten(arrays), "metrics": record})
    with _metrics_as_given(strategy), _without_its_counts():
        reply = Message(content, reply_to=asked)
        stepped, returned = strategy.aggregate_train(server_round, [reply])
    return None if stepped is None else written(stepped), returned


@contextmanager
def _metrics_as_given(strategy: FedAvg) -> Iterator[None]:
    """Replace the strategy's function for metrics, which has seen the clients' records already.

    The function is an attribute that `aggregate_train` reads, so it is replaced there for a while.
    """
    before = strategy.train_metrics_aggr_fn
    strategy.train_metrics_aggr_fn = _as_given
    try:
        yield
    finally:
        strategy.train_metrics_aggr_fn = before


def _as_given(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """The metrics of the only reply, without its weight."""
    [content] = contents
    record = next(iter(content.metric_records.values()))
    del record[weighted_by_key]
    return record

"""What the wrapped strategy is asked for: a message to send, and a step to take."""

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

MOST_NODES = 2**16
"""Nodes that a pretended fleet has at most."""


class _Pretended:
    """A grid of two nodes: enough to see what a strategy sends, and whether it sends it to all.

    A strategy that waits for more nodes looks again, and every further look shows twice as many.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._nodes = grid, 1

    def get_node_ids(self) -> Iterable[int]:
        self._nodes *= 2
        if self._nodes > MOST_NODES:
            raise ValueError(
                f"the wrapped strategy saw {MOST_NODES} nodes and still looks for more, so it "
                "waits for more nodes than a fleet can have; lower the minimum in its "
                "configure_train"
            )
        return list(range(1, self._nodes + 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@contextmanager
def _content_with_two(strategy: FedAvg) -> Iterator[None]:
    """The strategy is content with those two."""
    wanted = strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes
    if strategy.fraction_train > 0:
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = 1.0, 2, 2
    try:
        yield
    finally:
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = wanted


@contextmanager
def _without_its_counts() -> Iterator[None]:
    """Its log would count pretended nodes and one result, which stand in for all there are."""

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
    """What it sends, to whomever; None where it does not train."""
    pretended = cast(Grid, _Pretended(grid))
    with _content_with_two(strategy), _without_its_counts():
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
    """What it makes of one reply, with metrics that were averaged already."""
    given = MetricRecord({**metrics, strategy.weighted_by_key: 1.0})
    content = RecordDict({strategy.arrayrecord_key: unwritten(arrays), "metrics": given})
    with _metrics_as_given(strategy), _without_its_counts():
        reply = Message(content, reply_to=asked)
        stepped, told = strategy.aggregate_train(server_round, [reply])
    return None if stepped is None else written(stepped), told


@contextmanager
def _metrics_as_given(strategy: FedAvg) -> Iterator[None]:
    before = strategy.train_metrics_aggr_fn
    strategy.train_metrics_aggr_fn = _as_given
    try:
        yield
    finally:
        strategy.train_metrics_aggr_fn = before


def _as_given(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    [content] = contents
    given = next(iter(content.metric_records.values()))
    del given[weighted_by_key]
    return given

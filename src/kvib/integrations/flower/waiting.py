"""Waiting for nodes, as stock Flower does, with a line in the log once a minute."""

import time
from collections.abc import Callable
from logging import INFO

from flwr.common.logger import log
from flwr.serverapp import Grid

LONGEST_PAUSE = 5.0
"""The most seconds between two looks at the nodes."""
LINE_EVERY = 60.0
"""Seconds between two lines in the log."""
TOO_FEW = "they are too few: start more, or lower min_available_nodes and min_train_nodes"


def nodes_online(grid: Grid, wanted: int, lacking: Callable[[set[int]], str | None]) -> set[int]:
    """The ids of the nodes online, as soon as they are enough for a round.

    Args:
        grid: The grid that lists the nodes.
        wanted: The number of nodes that a round needs. 0 means that it does not wait.
        lacking: A function of the ids that returns why these nodes are not enough, or None if they
            are. It is called when `wanted` nodes are online.
    """
    began, due, looks = now(), 0.0, 0
    while True:
        online = set(grid.get_node_ids())
        problem = lacking(online) if len(online) >= wanted else TOO_FEW
        if problem is None or wanted == 0:
            return online
        waited = now() - began
        if waited >= due:
            due = waited + LINE_EVERY
            log(
                INFO,
                "kvib: waiting for nodes for %.0f s; %d are online, a round needs %d; %s",
                *(waited, len(online), wanted, problem),
            )
        pause(looks)
        looks += 1


def now() -> float:
    """The seconds on a clock that never goes back."""
    return time.monotonic()


def pause(earlier: int) -> None:
    """Pause for 1, 2, 4, 5, 5, … seconds, by the number of earlier pauses."""
    time.sleep(min(2.0 ** min(earlier, 10), LONGEST_PAUSE))

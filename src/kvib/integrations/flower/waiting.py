"""Waiting for nodes, as stock Flower does, with a line in the log now and then."""

import time
from collections.abc import Callable
from logging import INFO

from flwr.common.logger import log
from flwr.serverapp import Grid

LONGEST_PAUSE = 5.0
"""Seconds between two looks at the nodes."""
LINE_EVERY = 60.0
"""Seconds between two lines in the log."""
TOO_FEW = "they are too few: start more, or lower min_available_nodes and min_train_nodes"


def nodes_online(grid: Grid, wanted: int, lacking: Callable[[set[int]], str | None]) -> set[int]:
    """Ids of the nodes, once there are this many and they are enough for a round.

    Args:
        grid: where to look.
        wanted: nodes that a round needs; 0: it does not wait.
        lacking: says why that many are not enough; None: they are.
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
        rest(looks)
        looks += 1


def now() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def rest(times: int) -> None:
    """Pause for 1, 2, 4, 5, 5, … seconds, after this many pauses before."""
    time.sleep(min(2.0 ** min(times, 10), LONGEST_PAUSE))

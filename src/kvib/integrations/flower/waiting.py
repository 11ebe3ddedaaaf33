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


def nodes_online(grid: Grid, wanted: int, is_enough: Callable[[set[int]], bool]) -> set[int]:
    """Ids of the nodes, once there are this many and they are enough for a round.

    Args:
        grid: where to look.
        wanted: nodes that a round needs; 0: it does not wait.
        is_enough: asked only when that many are there.
    """
    began, due, pause = time.monotonic(), 0.0, 1.0
    while True:
        online = set(grid.get_node_ids())
        if len(online) >= wanted and (is_enough(online) or wanted == 0):
            return online
        waited = time.monotonic() - began
        if waited >= due:
            due = waited + LINE_EVERY
            missing = "none of them is a client" if len(online) >= wanted else "too few"
            way_out = "start more, or lower min_available_nodes and min_train_nodes"
            log(
                INFO,
                "kvib: waiting for nodes for %.0f s, %d of %d online, %s: %s",
                *(waited, len(online), wanted, missing, way_out),
            )
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)

"""A training step as a CUDA graph: recorded once and replayed, so that launches do not dominate."""

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 2
"""Runs before the recording: torch wants a step to be warm before it is recorded."""


def graph(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A function that replays the step from a CUDA graph.

    The step is run twice to warm up. It must therefore change nothing yet, or the caller must
    restore what it changes.

    Args:
        step: The step to record.
        pool: The memory pool of the graph.
    """
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    recorded: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, pool=pool):
        step()
    replay: Callable[[], None] = recorded.replay
    return replay

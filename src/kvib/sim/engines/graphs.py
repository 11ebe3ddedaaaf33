"""A step recorded once and replayed: launches do not dominate."""

from collections.abc import Callable
from typing import Any

import torch


def graph(step: Callable[[], None], pool: Any) -> Callable[[], None]:
    """The step as a CUDA graph; it is taken twice to warm up, so it must move nothing yet, or what
    it moves must be put back."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    recorded: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, pool=pool):
        step()
    replay: Callable[[], None] = recorded.replay
    return replay

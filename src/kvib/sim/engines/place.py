"""Places: where an engine trains, and whether this machine has it."""

from typing import NamedTuple

PRECISIONS = ("float32", "tf32", "bf16")
"""Precisions of torch's matrix products."""
DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices of torch."""


class Place(NamedTuple):
    """Where an engine trains, and what it may use there. Each engine reads the fields it needs."""

    device: str | None = None
    """The torch device. None means the CPU, and the compiled engine where it can train the task."""
    precision: str = "float32"
    """The precision of torch's matrix products."""
    threads: int | None = None
    """The number of threads. None means all."""
    chunk_bytes: float = 16e9
    """The bytes that the updates and activations of clients trained together may take."""
    address: str | None = None
    """The address of a cluster. None starts one on this machine."""
    workers: int | None = None
    """The number of processes on the cluster. None means as many as fit."""
    patience: float | None = None
    """The seconds that a worker may take for its work. None means no limit."""


HERE = Place()
"""All of this machine."""


def check_precision(name: str) -> None:
    """Refuse a precision that torch's matrix products do not have."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not one of {', '.join(PRECISIONS)}")


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or that this machine does not have."""
    if name.partition(":")[0] not in DEVICES:
        raise ValueError(
            f"device {name!r} cannot be used here: it is not one of {', '.join(DEVICES)}, nor one "
            "of several, as cuda:1; leave it out for the CPU"
        )
    import torch

    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device {name!r} cannot be used here: {reason}; leave it out for the CPU"
        ) from error

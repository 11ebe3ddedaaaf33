"""Where an engine trains, and whether that is here."""

from typing import NamedTuple

PRECISIONS = ("float32", "tf32", "bf16")
DEVICES = ("cpu", "cuda", "mps", "xpu")


class Place(NamedTuple):
    """Where an engine trains, and what it may take there. Engines use what concerns them."""

    device: str | None = None
    """Of torch; None for the CPU, and for the compiled engine where it can train the task."""
    precision: str = "float32"
    """Of torch's matrix products."""
    threads: int | None = None
    """To use; None for all."""
    chunk_bytes: float = 16e9
    """Bytes that the updates and activations of clients trained together may take."""
    address: str | None = None
    """Of a cluster; None starts one here."""
    workers: int | None = None
    """Processes on the cluster; None for as many as fit."""
    patience: float | None = None
    """Seconds for the work of one of them; None to wait."""


HERE = Place()
"""This machine, all of it."""


def check_precision(name: str) -> None:
    """That torch's matrix products have it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not one of {', '.join(PRECISIONS)}")


def check_device(name: str) -> None:
    """That torch knows it, and that it is here."""
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

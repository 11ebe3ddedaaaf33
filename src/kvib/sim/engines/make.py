"""Which engine trains a task in this process."""

from kvib.sim.engines.engine import Engine
from kvib.sim.local import LocalSGD
from kvib.sim.task import SoftmaxRegression, Task

DEVICES = ("cpu", "cuda", "mps", "xpu")


def make_engine(
    task: Task,
    local: LocalSGD,
    device: str | None = None,
    precision: str = "float32",
    *,
    threads: int | None = None,
    memory: float = 16e9,
) -> Engine:
    """The compiled engine for softmax regression, torch for everything else.

    Args:
        task: what to train.
        local: how clients train.
        device: of torch; None for the compiled engine where it can, else for the CPU.
        precision: of torch.
        threads: to use; None for all.
        memory: see `TorchEngine`.
    """
    if isinstance(task.model, SoftmaxRegression) and device is None:
        from kvib.sim.engines.linear import LinearEngine

        if precision != "float32":
            raise ValueError(
                f"precision {precision!r} is of torch, but {task.name} is trained by the compiled "
                "engine; give a device too, cpu or cuda"
            )
        return LinearEngine(task, local, threads)
    import torch

    from kvib.sim.engines.torch_engine import TorchEngine

    check_device(device or "cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchEngine(task, local, device or "cpu", precision, memory=memory)


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

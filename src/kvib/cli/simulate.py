"""`kvib prepare` and `kvib simulate`: one task, one run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import kvib
from kvib.cli.screen import progress_bar, say
from kvib.lab.runs import check_device
from kvib.names import POLICIES, PROCEDURES
from kvib.sim import LinearEngine, LocalSGD, Simulation, SoftmaxRegression, Task, prepared
from kvib.sim.engines.ray_engine import RayEngine, Workers


def chosen(table: dict[str, Any], name: str, kind: str) -> Any:
    """An entry of a table by its name, whatever its case."""
    for known, value in table.items():
        if known.lower() == name.lower():
            return value
    raise ValueError(f"{kind} {name!r} is not one of {', '.join(table)}")


def prepare(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(prepared.TASKS)}.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; TASK.npz here.")] = None,
) -> None:
    """Write what a task needs as one small file, for a machine without data or network."""
    path = out or Path(f"{task}.npz")
    made = prepared.TASKS[task]() if task in prepared.TASKS else prepared.make_task(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    prepared.prepare(made, path)
    size = path.stat().st_size / 1e6
    say(f"{path}: {made.name}, {len(made)} clients, {size:.1f} MB")


def make_engine(
    task: Task, local: LocalSGD, device: str | None, precision: str, memory: float = 16e9
) -> Any:
    """The compiled engine for softmax regression, torch for everything else."""
    if isinstance(task.model, SoftmaxRegression) and device is None:
        return LinearEngine(task, local)
    from kvib.sim.engines.torch_engine import TorchEngine

    check_device(device or "cpu")
    return TorchEngine(task, local, device or "cpu", precision, memory=memory)


def make_ray_engine(
    task: Task, local: LocalSGD, address: str | None, device: str | None, workers: Workers
) -> Any:
    """Actors of a Ray cluster; with `device` cuda each has a GPU."""
    gpus = 1.0 if device is not None and device.startswith("cuda") else 0.0
    return RayEngine(task, local, address, replace(workers, gpus=gpus))


def simulate(
    task: Annotated[str, typer.Argument(help="A task by name, or a file made by `kvib prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; a run found there goes on.")],
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")] = "KVib",
    procedure: Annotated[str | None, typer.Option(help=f"{', '.join(PROCEDURES)}.")] = None,
    budget: Annotated[float, typer.Option(help="Clients per round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds in all.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Of local SGD.")] = 0.02,
    batch_size: Annotated[int, typer.Option(help="Of local SGD.")] = 64,
    epochs: Annotated[int, typer.Option(help="Of local SGD.")] = 1,
    exact_every: Annotated[int, typer.Option(help="Rounds between exact metrics; 0: none.")] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between tests.")] = 1,
    seed: Annotated[int, typer.Option(help="Of draws, batches and the first model.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; none: compiled.")] = None,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16 on a GPU.")] = "float32",
    stop_after: Annotated[float, typer.Option(help="Seconds; then save and stop.")] = math.inf,
    engine: Annotated[str, typer.Option(help="auto, or ray: clients on a Ray cluster.")] = "auto",
    address: Annotated[str | None, typer.Option(help="Of the cluster; none: one here.")] = None,
    workers: Annotated[int | None, typer.Option(help="Ray actors; none: as many as fit.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds for a Ray actor's work.")] = None,
    memory: Annotated[float, typer.Option(help="Bytes for clients trained together.")] = 16e9,
) -> None:
    """Simulate federated rounds; killed or stopped, it goes on where it was."""
    made = prepared.make_task(task)
    local = LocalSGD(learning_rate, batch_size, epochs)
    sampler = kvib.Sampler(
        chosen(POLICIES, policy, "policy")(),
        made.weights,
        budget,
        None if procedure is None else chosen(PROCEDURES, procedure, "procedure"),
        seed=seed,
    )
    trainer: Any
    if chosen({"auto": False, "ray": True}, engine, "engine"):
        spread = Workers(workers, patience=patience, precision=precision, memory=memory)
        trainer = make_ray_engine(made, local, address, device, spread)
    elif address is not None or workers is not None or patience is not None:
        raise ValueError("--address, --workers and --patience are of the Ray engine: --engine ray")
    else:
        trainer = make_engine(made, local, device, precision, memory)
    simulation = Simulation(
        made,
        trainer,
        sampler,
        local,
        evaluate_every=evaluate_every,
        exact_every=exact_every,
        seed=seed,
    )
    with progress_bar() as progress:
        bar = progress.add_task(made.name, total=rounds, told="")
        for record in simulation.run(rounds, out, stop_after=stop_after):
            speed = progress.tasks[bar].speed or 0.0
            shown = f"{speed:.1f} rounds/s"
            if not math.isnan(record.loss):
                shown += f", loss {record.loss:.4f}"
            progress.update(bar, completed=record.round + 1, told=shown)
    done = len(simulation.records)
    loss = next((r.loss for r in reversed(simulation.records) if not math.isnan(r.loss)), math.nan)
    state = "finished" if done >= rounds else "stopped; run the same command to go on"
    say(f"{out}: {done} of {rounds} rounds, last test loss {loss:.4f}, {state}")

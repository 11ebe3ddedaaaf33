"""One run of an experiment: a folder that says what it is, goes on where it was, and ends once."""

import gc
import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import kvib
from kvib.lab.experiment import Experiment, Run
from kvib.lab.tables import read_part, torn_run, write_rounds
from kvib.sim import (
    DivergedError,
    LinearEngine,
    LocalSGD,
    Simulation,
    SoftmaxRegression,
    Task,
    prepared,
)
from kvib.sim.engines.engine import Engine, MemoryShortError, memory_short
from kvib.sim.engines.make import check_device
from kvib.sim.engines.ray_engine import RayEngine, Workers

FORMAT = 1
"""Of run folders and result tables; another one is not read."""


@dataclass(frozen=True)
class Machine:
    """Where runs are played.

    Args:
        device: of torch; None for the CPU.
        threads: that one run may use; None for all.
        tasks: a folder with prepared tasks, for a machine without the data.
        address: of a Ray cluster, for the engine `ray`; None starts one here.
        patience: seconds for the work of a Ray actor; None to wait.
        memory: bytes that the updates and activations of clients trained together may take.
    """

    device: str | None = None
    threads: int | None = None
    tasks: Path | None = None
    address: str | None = None
    patience: float | None = None
    memory: float = 16e9


HERE = Machine()


@dataclass(frozen=True)
class Outcome:
    """How far a run came."""

    rounds: int
    finished: bool
    diverged: str | None = None
    """What the simulation said when training left the numbers, and in which round."""
    seconds: float = 0.0
    """Of playing, over all starts."""
    short: str | None = None
    """What the engine said when memory was short: the run can go on where there is more."""


def play(
    run: Run,
    out: Path,
    machine: Machine = HERE,
    *,
    deadline: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Play a run to its end, or to the deadline; a finished one is not repeated.

    Args:
        run: which.
        out: the folder of the experiment's runs.
        machine: where.
        deadline: of `time.monotonic`; then the run stops, to go on later.
        stop: asked after every round whether to do so now.
        report: told of the rounds done, now and then.
    """
    folder = out / run.name
    done = outcome(folder, run)
    if done is not None and done.finished:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", {"format": FORMAT, "label": run.sampler.label, **run.config()})
    _write(folder / "environment.json", _starts(folder, {**environment(machine), **_how(run)}))
    diverged = None
    try:
        simulation = _simulation(run, machine)
        left = deadline - time.monotonic()
        with _silence_as_said(run):
            for record in simulation.run(run.experiment.rounds, folder, stop_after=left):
                report(record.round + 1)
                if stop():
                    simulation.save(folder / "checkpoint.npz")
                    break
    except DivergedError as error:
        diverged = str(error).partition(";")[0]  # what follows is of the checkpoint, removed below
    except (MemoryShortError, RuntimeError) as error:
        if not memory_short(error):
            raise
        _engines.clear()  # it holds what the next run may need
        return replace(done or Outcome(0, finished=False), short=str(error).splitlines()[0])
    rounds = len(simulation.records)
    finished = diverged is not None or rounds >= run.experiment.rounds
    seconds = float(np.nansum([list(laps.values()) for laps in simulation.seconds]))
    if finished:
        write_rounds(folder, simulation.records)
    ended = Outcome(rounds, finished, diverged, seconds)
    _write(folder / "outcome.json", vars(ended))
    if finished:
        (folder / "checkpoint.npz").unlink(missing_ok=True)
    return ended


@contextmanager
def _silence_as_said(run: Run) -> Iterator[None]:
    """No warnings of silence that the experiment itself asks for."""
    with warnings.catch_warnings():
        if run.experiment.response != Experiment.response:
            warnings.filterwarnings("ignore", ".*did not answer")
        yield


def outcome(folder: Path, run: Run) -> Outcome | None:
    """What a folder says of this run; None if it was not begun."""
    if not (folder / "config.json").exists():
        return None
    config = read_part(folder / "config.json")
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder} is of another version of kvib; give another --out")
    wanted = {**run.config(), **_how(run)}
    said = {**_how(run), **read_part(folder / "environment.json"), **config}  # older: not said
    differs = [key for key, value in wanted.items() if said.get(key) != value]
    if differs:
        raise ValueError(
            f"{folder} is of another configuration ({', '.join(differs)} differ); give another "
            "--out, or remove it"
        )
    try:
        return Outcome(**{"rounds": 0, "finished": False, **read_part(folder / "outcome.json")})
    except TypeError as error:
        raise torn_run(folder, error) from error


def _how(run: Run) -> dict[str, str]:
    """What changes the last digits of a run's records, and says nothing of what it is."""
    return {"engine": run.experiment.engine, "precision": run.experiment.precision}


def check(experiment: Experiment, machine: Machine = HERE) -> None:
    """What only machine and task can tell: that they are here, that there are enough clients."""
    if experiment.elsewhere:
        _workers(machine, experiment.precision)
    elif machine.address is not None or machine.patience is not None:
        raise ValueError(
            'address and patience are of the Ray engine: engine = "ray" in the file, or --set '
            "engine=ray"
        )
    elif machine.device is not None:
        check_device(machine.device)
    clients = len(make_task(experiment.task, machine.tasks))
    for budget in experiment.budgets:
        if not 0 < budget <= clients:
            raise ValueError(
                f"budgets: {budget:g} is not between 0 and the {clients} clients of "
                f"{experiment.task}; change it"
            )


def environment(machine: Machine) -> dict[str, Any]:
    """Versions, machine, commit."""
    about: dict[str, Any] = {
        "kvib": kvib.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "threads": machine.threads,
        "device": machine.device or "cpu",
    }
    for package in ("numpy", "numba", "torch", "transformers"):
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    if about["device"].startswith("cuda"):
        import torch

        about["device"] = torch.cuda.get_device_name(machine.device)
    return about


def _starts(folder: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The environment in which a run was first started, and of later starts those that differ."""
    first = read_part(folder / "environment.json")
    if not first:
        return now
    later = first.pop("later", [])
    if now not in (first, *later):
        later.append(now)
    return {**first, "later": later} if later else first


def _commit() -> str:
    """Of the code; -dirty where the code or an experiment is not what the commit says."""
    try:
        dirty = "-dirty" if _git("status", "--porcelain", "--", ":/src", ":/experiments") else ""
        return _git("describe", "--always") + dirty
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()


def _simulation(run: Run, machine: Machine) -> Simulation:
    experiment = run.experiment
    task = make_task(experiment.task, machine.tasks)
    local, sampler = run.local, run.sampler_of(task.weights, task.train.sizes)
    kind = experiment.engine
    if kind == "auto":
        kind = "linear" if isinstance(task.model, SoftmaxRegression) else "torch"
    return Simulation(
        task,
        _engine(kind, task, local, machine, experiment.precision),
        sampler,
        local,
        run.server(),
        coefficients=run.coefficients,
        evaluate_every=experiment.evaluate_every,
        train_loss_every=experiment.train_loss_every,
        exact_every=experiment.exact_every,
        seed=run.seed,
        **run.rates(task.train.sizes),
    )


@lru_cache(maxsize=2)
def make_task(name: str, folder: Path | None) -> Task:
    """A task by its name, from the folder of prepared ones if it is there."""
    file = None if folder is None else folder / f"{name}.npz"
    return prepared.make_task(str(file) if file is not None and file.exists() else name)


def _linear(task: Task, local: LocalSGD, machine: Machine, precision: str) -> Engine:
    return LinearEngine(task, local, machine.threads)


def _torch(task: Task, local: LocalSGD, machine: Machine, precision: str) -> Engine:
    import torch

    from kvib.sim.engines.torch_engine import TorchEngine

    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    torch.cuda.empty_cache()  # of the last engine: other processes may need it
    return TorchEngine(task, local, machine.device or "cpu", precision, memory=machine.memory)


def _ray(task: Task, local: LocalSGD, machine: Machine, precision: str) -> Engine:
    return RayEngine(task, local, machine.address, _workers(machine, precision))


def _workers(machine: Machine, precision: str) -> Workers:
    return Workers.on(
        machine.device,
        cpus=float(machine.threads or 1),
        patience=machine.patience,
        precision=precision,
        memory=machine.memory,
    )


ENGINES: dict[str, Callable[[Task, LocalSGD, Machine, str], Engine]] = {
    "linear": _linear,
    "torch": _torch,
    "ray": _ray,
}
_engines: dict[Any, Engine] = {}
"""The last one, for all runs that can use it."""


def _engine(kind: str, *given: Any) -> Engine:
    """The last engine goes before the next comes: two would hold the memory and workers of two."""
    if (kind, *given) not in _engines:
        _engines.clear()
        gc.collect()  # recorded steps and their engine hold each other
        _engines[kind, *given] = ENGINES[kind](*given)
    return _engines[kind, *given]


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)

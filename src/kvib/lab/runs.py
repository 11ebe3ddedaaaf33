"""One run of an experiment: a folder that says what it is, goes on where it was, and ends once."""

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
from kvib.lab import parts
from kvib.lab.experiment import Experiment, Run
from kvib.lab.folders import FORMAT, read_part, torn_run, write_part, write_rounds
from kvib.lab.rehearsal import rehearse
from kvib.sim import DivergedError, Simulation, Task, prepared
from kvib.sim.engines.engine import MemoryShortError, memory_short
from kvib.sim.engines.make import EngineShelf, check_engine
from kvib.sim.engines.place import Place


@dataclass(frozen=True)
class Machine:
    """Where runs are played.

    Args:
        device: of torch; None for the CPU.
        threads: that one run may use; None for all.
        tasks: a folder with prepared tasks, for a machine without the data.
        address: of a Ray cluster, for the engine `ray`; None starts one here.
        patience: seconds for the work of a Ray actor; None to wait.
        chunk_bytes: bytes that the updates and activations of clients trained together may take.
    """

    device: str | None = None
    threads: int | None = None
    tasks: Path | None = None
    address: str | None = None
    patience: float | None = None
    chunk_bytes: float = 16e9

    def place(self, precision: str) -> Place:
        """For an engine of this precision."""
        return Place(
            device=self.device,
            precision=precision,
            threads=self.threads,
            chunk_bytes=self.chunk_bytes,
            address=self.address,
            patience=self.patience,
        )


HERE = Machine()


@dataclass(frozen=True)
class RunOutcome:
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
    shelf: EngineShelf | None = None,
    deadline: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[int], None] = lambda _: None,
) -> RunOutcome:
    """Play a run to its end, or to the deadline; a finished one is not repeated.

    Args:
        run: which.
        out: the folder of the experiment's runs.
        machine: where.
        shelf: the engine of the last run, for a run that can use it too.
        deadline: of `time.monotonic`; then the run stops, to go on later.
        stop: asked after every round whether to do so now.
        report: told of the rounds done, now and then.
    """
    folder = out / run.name
    done = outcome(folder, run)
    if done is not None and done.finished:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "label": run.sampler.label, **run.config()}
    write_part(folder / "config.json", config)
    write_part(folder / "environment.json", _starts(folder, {**environment(machine), **_how(run)}))
    diverged, shelf = None, EngineShelf() if shelf is None else shelf
    try:
        simulation = _simulation(run, machine, shelf)
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
        shelf.clear()  # the engine holds what the next run may need
        return replace(done or RunOutcome(0, finished=False), short=str(error).splitlines()[0])
    rounds = len(simulation.records)
    finished = diverged is not None or rounds >= run.experiment.rounds
    seconds = float(np.nansum([list(laps.values()) for laps in simulation.seconds]))
    if finished:
        write_rounds(folder, simulation.records)
    ended = RunOutcome(rounds, finished, diverged, seconds)
    write_part(folder / "outcome.json", vars(ended))
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


def outcome(folder: Path, run: Run) -> RunOutcome | None:
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
        return RunOutcome(**{"rounds": 0, "finished": False, **read_part(folder / "outcome.json")})
    except TypeError as error:
        raise torn_run(folder, error) from error


def _how(run: Run) -> dict[str, str]:
    """What changes the last digits of a run's records, and says nothing of what it is."""
    return {"engine": run.experiment.engine, "precision": run.experiment.precision}


def check(experiment: Experiment, machine: Machine = HERE) -> None:
    """That an experiment can be played: its parts go together, machine and task are here, and there
    are enough clients."""
    rehearse(experiment)
    check_engine(experiment.engine, machine.place(experiment.precision))
    task = make_task(experiment.task, machine.tasks)
    clients = len(task)
    for budget in experiment.budgets:
        if not 0 < budget <= clients:
            raise ValueError(
                f"budgets: {budget:g} is not between 0 and the {clients} clients of "
                f"{experiment.task}; change it"
            )
    for run in experiment.runs():
        if run.sampler.selector is not None:
            parts.selector(run, task.weights)


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
    """Of the code; -dirty where the code or an experiment is not what the commit says.

    Empty where the code was installed: a repository around it is not its own.
    """
    try:
        if not _git("ls-files", "--", __file__):
            return ""
        dirty = "-dirty" if _git("status", "--porcelain", "--", ":/src", ":/experiments") else ""
        return _git("describe", "--always") + dirty
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()


def _simulation(run: Run, machine: Machine, shelf: EngineShelf) -> Simulation:
    experiment = run.experiment
    task = make_task(experiment.task, machine.tasks)
    local, sampler = parts.local(run), parts.chooser(run, task.weights, task.train.sizes)
    place = machine.place(experiment.precision)
    return Simulation(
        task,
        shelf.get(experiment.engine, task, local, place),
        sampler,
        local,
        parts.server(run),
        coefficients=parts.coefficients(run),
        evaluate_every=experiment.evaluate_every,
        train_loss_every=experiment.train_loss_every,
        exact_every=experiment.exact_every,
        seed=run.seed,
        **parts.rates(run, task.train.sizes),
    )


@lru_cache(maxsize=2)
def make_task(name: str, folder: Path | None) -> Task:
    """A task by its name, from the folder of prepared ones if it is there."""
    file = None if folder is None else folder / f"{name}.npz"
    return prepared.make_task(str(file) if file is not None and file.exists() else name)

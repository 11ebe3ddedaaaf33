"""Carries out one run of an experiment in a folder, from which an interrupted run continues."""

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
    """The machine that carries out runs.

    Args:
        device: The device of torch. None means the CPU.
        threads: The number of threads that one run may use. None means all.
        tasks: The folder of prepared tasks, for a machine without the data.
        address: The address of a Ray cluster, for the engine `ray`. None starts one here.
        patience: The number of seconds that a Ray actor may work. None means no limit.
        chunk_bytes: The number of bytes that the updates and activations of clients trained
            together may take.
    """

    device: str | None = None
    threads: int | None = None
    tasks: Path | None = None
    address: str | None = None
    patience: float | None = None
    chunk_bytes: float = 16e9

    def place(self, precision: str) -> Place:
        """The place of an engine with this precision."""
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
    """The outcome of a run: how far it came, and why it ended early if it did."""

    rounds: int
    """The number of finished rounds."""
    finished: bool
    """Whether the run is at its end. A diverged run is."""
    diverged: str | None = None
    """The message of the simulation if training diverged, with the round."""
    seconds: float = 0.0
    """The seconds that the rounds took, over all starts."""
    short: str | None = None
    """The message of the engine if memory was short. The run can continue with more memory."""


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
    """Carry out a run to its end, or to the deadline. A finished run is not repeated.

    Args:
        run: The run.
        out: The folder of the experiment's runs.
        machine: The machine that carries it out.
        shelf: The shelf with the engine of the last run, for a run that can use it too.
        deadline: The time by `time.monotonic` at which the run saves and stops, to continue later.
        stop: A function that is called after every round. True means to save and stop.
        report: A function that is called with the number of finished rounds.
    """
    # The folder says what the run is, before it begins.
    folder = out / run.name
    done = outcome(folder, run)
    if done is not None and done.finished:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "label": run.sampler.label, **run.config()}
    write_part(folder / "config.json", config)
    write_part(folder / "environment.json", _starts(folder, {**environment(machine), **_how(run)}))
    diverged, shelf = None, EngineShelf() if shelf is None else shelf
    # Rounds, until the end, the deadline, `stop`, divergence or a lack of memory.
    try:
        simulation = _simulation(run, machine, shelf)
        left = deadline - time.monotonic()
        with _expected_silence(run):
            for record in simulation.run(run.experiment.rounds, folder, stop_after=left):
                report(record.round + 1)
                if stop():
                    simulation.save(folder / "checkpoint.npz")
                    break
    except DivergedError as error:
        diverged = str(error).partition(";")[0]  # the rest is about the checkpoint, removed below
    except (MemoryShortError, RuntimeError) as error:
        if not memory_short(error):
            raise
        shelf.clear()  # the engine holds memory that the next run may need
        return replace(done or RunOutcome(0, finished=False), short=str(error).splitlines()[0])
    # The checkpoint is removed only after the rounds and the outcome are written.
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
def _expected_silence(run: Run) -> Iterator[None]:
    """Show no warnings of silent clients where the experiment itself makes clients silent."""
    with warnings.catch_warnings():
        if run.experiment.response != Experiment.response:
            warnings.filterwarnings("ignore", ".*did not answer")
        yield


def outcome(folder: Path, run: Run) -> RunOutcome | None:
    """The outcome of a run as its folder records it, None if the run was not begun.

    A folder of another configuration is an error.
    """
    if not (folder / "config.json").exists():
        return None
    config = read_part(folder / "config.json")
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder} is of another version of kvib; give another --out")
    wanted = {**run.config(), **_how(run)}
    # An older folder does not record engine and precision: they count as equal.
    recorded = {**_how(run), **read_part(folder / "environment.json"), **config}
    differs = [key for key, value in wanted.items() if recorded.get(key) != value]
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
    """The settings that change only the last digits of a run's records."""
    return {"engine": run.experiment.engine, "precision": run.experiment.precision}


def check(experiment: Experiment, machine: Machine = HERE) -> None:
    """Raise an error unless the experiment can run on this machine.

    Its parts must work together, the engine and the task must be available, and there must be
    enough clients for every budget.
    """
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
    """The environment of a run: versions, machine, device and commit."""
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
    """The environment of the first start, with those of later starts that differ."""
    first = read_part(folder / "environment.json")
    if not first:
        return now
    later = first.pop("later", [])
    if now not in (first, *later):
        later.append(now)
    return {**first, "later": later} if later else first


def _commit() -> str:
    """The commit of the code, with -dirty if the code or an experiment differs from it.

    It is empty if the code is installed: a repository around an installed kvib is not its own.
    """
    try:
        if not _git("ls-files", "--", __file__):
            return ""
        dirty = "-dirty" if _git("status", "--porcelain", "--", ":/src", ":/experiments") else ""
        return _git("describe", "--always") + dirty
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _git(*words: str) -> str:
    """The output of a git command in the folder of the code."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()


def _simulation(run: Run, machine: Machine, shelf: EngineShelf) -> Simulation:
    """The simulation of a run, with an engine from the shelf."""
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
    """A task by its name, from the folder of prepared tasks if it is there."""
    file = None if folder is None else folder / f"{name}.npz"
    return prepared.make_task(str(file) if file is not None and file.exists() else name)

"""The runs of an experiment on a terminal: progress, Ctrl-C, and the table at the end."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kvib.cli.interrupt import interruptible, leave
from kvib.cli.places import check_folder
from kvib.cli.screen import counted, say, show
from kvib.lab.collect import collect
from kvib.lab.experiment import Experiment, Run
from kvib.lab.pool import play_all
from kvib.lab.runs import Machine, RunOutcome, check
from kvib.lab.tables import Results
from kvib.sim.engines.make import is_remote

Device = Annotated[
    str | None, typer.Option(help="Device of torch: cuda, cuda:1, … (default: the CPU).")
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Number of runs at the same time "
        "(default: one per core on a CPU, one on a GPU or a cluster)."
    ),
]
StopAfter = Annotated[
    float,
    typer.Option(help="Seconds after which to save and stop. Repeat the command to continue."),
]
Out = Annotated[Path, typer.Option(help="Folder of the run folders. Runs found there continue.")]
Quick = Annotated[bool, typer.Option(help="Use a tenth of the rounds and one seed.")]


def check_time(stop_after: float) -> None:
    """Raise ValueError unless --stop-after is a number of seconds."""
    if not stop_after >= 0:
        raise ValueError(f"--stop-after {stop_after:g}: give 0 seconds or more")


def quick_folder(folder: Path, quick: bool) -> Path:
    """The folder itself, or for quick runs a separate folder beside it."""
    return folder.parent / "quick" / folder.name if quick else folder


def play(
    given: Experiment,
    out: Path,
    path: Path,
    machine: Machine,
    processes: int | None,
    stop_after: float,
) -> None:
    """Carry out the unfinished runs. If all runs are finished, collect them and show a summary.

    Args:
        given: The experiment.
        out: The folder of the run folders.
        path: The path of the collected table, without its suffix.
        machine: The machine that carries out the runs.
        processes: The number of runs at the same time. None means one per core on a CPU, and one
            on a GPU or a cluster.
        stop_after: The number of seconds after which to save and stop.
    """
    import polars  # noqa: F401 - a missing package shows now, not after the last run

    check_folder(out, "--out")
    check_folder(path.parent, "--results")
    check(given, machine)
    runs = list(given.runs())
    parallel = _processes(given, machine, processes)
    if parallel > 1:
        machine = replace(machine, threads=max(1, (os.cpu_count() or 1) // parallel))
    with interruptible() as stop:
        ends = _with_progress(given, runs, out, machine, parallel, stop_after, stop)
        stopped = stop()
    _report_failures(given, runs, ends)
    finished = sum(end.finished for end in ends)
    if finished < len(runs):
        how_far = f"{given.name}: {finished} of {len(runs)} runs are finished"
        if stopped:
            leave(how_far)
        say(f"{how_far}; repeat the command to continue")
        return
    _summarise(collect(given, runs, out, path, tasks=machine.tasks))
    say(f"{path}.parquet: {len(runs)} runs of {given.rounds} rounds")


def _processes(given: Experiment, machine: Machine, requested: int | None) -> int:
    """The number of runs at the same time. A run takes the whole of a GPU or a cluster."""
    if requested is not None and requested < 1:
        raise ValueError(f"--processes {requested}: give at least 1")
    alone = machine.device is not None or is_remote(given.engine)
    return requested or (1 if alone else os.cpu_count() or 1)


def _report_failures(given: Experiment, runs: list[Run], ends: list[RunOutcome]) -> None:
    """Print the runs that diverged. Raise ValueError if memory was short for a run."""
    for run, end in zip(runs, ends, strict=True):
        if end.diverged is not None:
            say(f"{run.name}: {end.diverged}")
    short = [end.short for end in ends if end.short]
    if short:
        raise ValueError(
            f"{given.name}: memory was short for {len(short)} of {len(runs)} runs; {short[0]}"
        )


def _summarise(results: Results) -> None:
    """Print one row per sampler, budget and learning rate."""
    from kvib.lab.summary import summary

    titles, rows = summary(results)
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    show(table)
    say("mean ± standard deviation over seeds")


def _with_progress(
    given: Experiment,
    runs: list[Run],
    out: Path,
    machine: Machine,
    processes: int,
    stop_after: float,
    stop: Callable[[], bool],
) -> list[RunOutcome]:
    """The outcome of each run, carried out while the rounds of all runs are counted on stderr."""
    done = dict.fromkeys((run.name for run in runs), 0)
    with counted(given.name, len(runs) * given.rounds) as tell:

        def report(run: Run, rounds: int) -> None:
            done[run.name] = rounds
            tell(sum(done.values()), f" of {len(runs)} runs")

        return play_all(
            runs,
            out,
            machine,
            processes=processes,
            stop_after=stop_after,
            stop=stop,
            report=report,
        )

"""An experiment played on a terminal: how far it is, Ctrl-C, and the table at its end."""

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

Device = Annotated[str | None, typer.Option(help="Of torch: cuda, cuda:1, …; none: the CPU.")]
Processes = Annotated[int | None, typer.Option(help="Runs at once; one per core on a CPU.")]
StopAfter = Annotated[float, typer.Option(help="Seconds; then save and stop, to go on later.")]
Out = Annotated[Path, typer.Option(help="Folder of run folders; those found there go on.")]
Quick = Annotated[bool, typer.Option(help="A tenth of the rounds, one seed.")]


def check_time(stop_after: float) -> None:
    """That --stop-after is a number of seconds."""
    if not stop_after >= 0:
        raise ValueError(f"--stop-after {stop_after:g}: give 0 seconds or more")


def quick_folder(folder: Path, quick: bool) -> Path:
    """The folder itself, or one beside it where quick runs stay apart."""
    return folder.parent / "quick" / folder.name if quick else folder


def play(
    given: Experiment,
    out: Path,
    path: Path,
    machine: Machine,
    processes: int | None,
    stop_after: float,
) -> None:
    """Play all runs that are not finished; when all are, collect them and show what they reached.

    Args:
        given: the experiment.
        out: folder of the run folders.
        path: of the collected table, without its ending.
        machine: where runs are played.
        processes: runs at once; None for one per core, and one alone on a GPU or a cluster.
        stop_after: seconds after which to save and stop.
    """
    import polars  # noqa: F401 - missed now, not after the last run

    check_folder(out, "--out")
    check_folder(path.parent, "--results")
    check(given, machine)
    runs = list(given.runs())
    many = _processes(given, machine, processes)
    if many > 1:
        machine = replace(machine, threads=max(1, (os.cpu_count() or 1) // many))
    with interruptible() as stop:
        ends = _with_progress(given, runs, out, machine, many, stop_after, stop)
        stopped = stop()
    _tell_mishaps(given, runs, ends)
    finished = sum(end.finished for end in ends)
    if finished < len(runs):
        how_far = f"{given.name}: {finished} of {len(runs)} runs are finished"
        if stopped:
            leave(how_far)
        say(f"{how_far}; the same command goes on")
        return
    _summarise(collect(given, runs, out, path, tasks=machine.tasks))
    say(f"{path}.parquet: {len(runs)} runs of {given.rounds} rounds")


def _processes(given: Experiment, machine: Machine, asked: int | None) -> int:
    """Runs at once: one where a run takes all there is, a GPU or a cluster."""
    if asked is not None and asked < 1:
        raise ValueError(f"--processes {asked}: give at least 1")
    alone = machine.device is not None or is_remote(given.engine)
    return asked or (1 if alone else os.cpu_count() or 1)


def _tell_mishaps(given: Experiment, runs: list[Run], ends: list[RunOutcome]) -> None:
    """Say which runs diverged; an error where memory was short."""
    for one, end in zip(runs, ends, strict=True):
        if end.diverged is not None:
            say(f"{one.name}: {end.diverged}")
    short = [end.short for end in ends if end.short]
    if short:
        raise ValueError(
            f"{given.name}: memory was short for {len(short)} of {len(runs)} runs; {short[0]}"
        )


def _summarise(results: Results) -> None:
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
    done = dict.fromkeys((one.name for one in runs), 0)
    with counted(given.name, len(runs) * given.rounds) as tell:

        def report(one: Run, rounds: int) -> None:
            done[one.name] = rounds
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

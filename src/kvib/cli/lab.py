"""`kvib run`, `kvib figure` and `kvib list`: experiment files, their results and figures.

Only the commands that draw import matplotlib: the other commands work without it.
"""

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from kvib.cli.playing import (
    Device,
    Out,
    Processes,
    Quick,
    StopAfter,
    check_time,
    play,
    quick_folder,
)
from kvib.cli.screen import console, say
from kvib.lab import experiment, files, tables
from kvib.lab.collect import collect
from kvib.lab.configuration import one_of
from kvib.lab.experiment import Experiment
from kvib.lab.runs import Machine, check

RESULTS = Path("results")


def run(
    file: Annotated[
        Path,
        typer.Argument(help="Experiment file, or the name of an experiment (see kvib list)."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Experiment to take from a file with several. May be repeated."),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(help="Change of a key, written as key=value. May be repeated."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds, written as 0-4 or 0,3,7 (default: those of the file)."),
    ] = None,
    device: Device = None,
    out: Out = Path("out/runs"),
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the collected table "
            "(default: results, or a folder under that of the runs for a changed experiment)."
        ),
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder of prepared tasks (default: none).")
    ] = None,
    processes: Processes = None,
    stop_after: StopAfter = math.inf,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster (default: RAY_ADDRESS, or one started here)."),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(help="Seconds that a Ray actor may work (default: no limit)."),
    ] = None,
    quick: Quick = False,
    partial: Annotated[
        bool, typer.Option(help="Collect the finished runs, and start no others.")
    ] = False,
) -> None:
    """Carry out the unfinished runs of an experiment, and collect all runs into one table.

    The experiments of a file with several are carried out one after another.
    The table is written to results/.
    The table of a changed experiment (--set, --seeds) is written to a folder under --out.
    With --quick, runs and table are written to a folder quick beside --out.
    """
    check_time(stop_after)
    deadline = time.monotonic() + stop_after
    chosen = files.choose(file, tuple(only or ()), tuple(set or ()))
    chosen = [_shortened(given, seeds, quick) for given in chosen]
    place = quick_folder(out, quick)
    changed = bool(set or seeds or quick)
    folder = results or (place / "results" if changed else RESULTS)
    if partial:
        for given in chosen:
            _collect(given, place, folder / given.name, tasks)
        return
    machine = Machine(device, None, tasks, address, patience)
    for given in chosen[1:]:  # a mistake in a later one must not show after hours of the first
        check(given, machine)
    for given in chosen:
        left = max(0.0, deadline - time.monotonic())
        play(given, place, folder / given.name, machine, processes, left)


def figure(
    names: Annotated[
        list[str], typer.Argument(help="Names of experiments that have results, or all.")
    ],
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("out/figures"),
    formats: Annotated[
        str, typer.Option(help="File formats, separated by commas: png, pdf, svg.")
    ] = "png,pdf",
) -> None:
    """Draw all measurements of experiments from their collected results."""
    from kvib.lab import figures

    known, suffixes = tables.names(results), figures.suffixes(formats)
    if not known:
        raise tables.no_results(results / names[0])
    chosen = known if names == ["all"] else names
    for name in chosen:
        one_of(known, name, f"results in {results}")
    for name in chosen:
        for path in figures.draw(name, results, out, suffixes):
            say(str(path))


def list_experiments(
    folder: Annotated[Path, typer.Argument(help="Folder of experiment files.")] = files.EXPERIMENTS,
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
) -> None:
    """List experiments, the time that they take, and their results.

    The time is estimated from the results, so it is shown only where results exist.
    On a CPU the time is divided by the cores of this machine, as if all cores were equally fast.
    On a GPU it is the time that the runs took there, one run at a time.
    """
    paths = files.catalogue(folder)
    if not paths:
        raise ValueError(f"there are no files {folder}/*.toml; give their folder: kvib list FOLDER")
    widest = max(map(len, paths))  # a name must stay whole, since users type it
    names = Column("experiment", no_wrap=True, min_width=widest)
    title = Column("title", overflow="fold")
    table = Table(names, title, "runs", "rounds", "time", "results", box=None, pad_edge=False)
    for name, path in paths.items():
        try:
            [given] = files.read_all(path, only=(name,))
            count = len(list(given.runs()))
            collected, duration = _collected(results / name)
        except ValueError as error:  # a mistake in one file must not hide the other experiments
            table.add_row(name, Text(str(error)))
            continue
        done = f"{collected} of {count}" if collected else "none"
        table.add_row(name, Text(given.title), str(count), str(given.rounds), duration, done)
    console.print(table)


def _collected(path: Path) -> tuple[int, str]:
    """The number of runs that have results, and about how long they take together."""
    if not tables.file(path, "json").exists():
        return 0, "–"
    runs = list(tables.load_about(path, "runs")["runs"].values())
    minutes = sum(run["seconds"] for run in runs) / 60
    devices = sorted({run["device"] for run in runs} - {"cpu"})
    if devices:
        return len(runs), f"{minutes:.0f} min on {devices[0]}"
    return len(runs), f"{minutes / (os.cpu_count() or 1):.0f} min here"


def _collect(given: Experiment, out: Path, path: Path, tasks: Path | None) -> None:
    """Collect the finished runs into the files at `path`."""
    found = collect(given, list(given.runs()), out, path, partial=True, tasks=tasks)
    say(f"{path}.parquet: {len(found.about['missing'])} runs are missing")


def _shortened(given: Experiment, seeds: str | None, quick: bool) -> Experiment:
    """The experiment with `--seeds` and `--quick` applied."""
    if seeds is not None:
        samplers = [replace(sampler, seeds=None) for sampler in given.samplers]
        given = replace(given, seeds=_numbers(seeds), samplers=samplers)
    return experiment.quick(given) if quick else given


def _numbers(text: str) -> list[int]:
    """The seeds of `--seeds`: "0-2,7" → [0, 1, 2, 7]."""
    try:
        pairs = [part.partition("-") for part in text.split(",")]
        spans = [range(int(low), int(high or low) + 1) for low, _, high in pairs]
    except ValueError:
        raise ValueError(f"--seeds {text!r}: write it as 0-4 or 0,3,7") from None
    return [seed for span in spans for seed in span]

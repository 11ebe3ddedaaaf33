"""`kvib run`, `figure`, `list`: experiment files, their results and figures.

What needs matplotlib is imported by the commands that draw: the others work without it.
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
    file: Annotated[Path, typer.Argument(help="A file, or the name of an experiment (kvib list).")],
    only: Annotated[list[str] | None, typer.Option(help="NAME; of a file with several.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="key=value; instead of the file's.")] = None,
    seeds: Annotated[str | None, typer.Option(help="0-4 or 0,3,7; instead of the file's.")] = None,
    device: Device = None,
    out: Out = Path("out/runs"),
    results: Annotated[Path | None, typer.Option(help="Folder of the collected table.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of prepared tasks.")] = None,
    processes: Processes = None,
    stop_after: StopAfter = math.inf,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster, for engine=ray.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds for a Ray actor's work.")] = None,
    quick: Quick = False,
    partial: Annotated[bool, typer.Option(help="Collect what is finished, play nothing.")] = False,
) -> None:
    """Play all runs of an experiment that are not finished, and collect them into one table; of a
    file with several experiments one after another.

    The table goes to results/; that of a changed experiment (--set, --seeds, --quick) stays under
    --out.
    """
    check_time(stop_after)
    deadline = time.monotonic() + stop_after
    chosen = files.choose(file, tuple(only or ()), tuple(set or ()))
    chosen = [_shorter(given, seeds, quick) for given in chosen]
    place = quick_folder(out, quick)
    changed = bool(set or seeds or quick)
    folder = results or (place / "results" if changed else RESULTS)
    if partial:
        for given in chosen:
            _collect(given, place, folder / given.name, tasks)
        return
    machine = Machine(device, None, tasks, address, patience)
    for given in chosen[1:]:  # the others' mistakes are not to come after hours of the first
        check(given, machine)
    for given in chosen:
        left = max(0.0, deadline - time.monotonic())
        play(given, place, folder / given.name, machine, processes, left)


def figure(
    names: Annotated[list[str], typer.Argument(help="Experiments that have results, or all.")],
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("out/figures"),
    formats: Annotated[str, typer.Option(help="png, pdf, svg, with commas.")] = "png,pdf",
) -> None:
    """Draw everything that experiments measured, from their collected results."""
    from kvib.lab import figures

    known, suffixes = tables.names(results), figures.suffixes(formats)
    if not known:
        raise tables.absent(results / names[0])
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
    """Show what experiments there are, about how long they take, and whether there are results.

    How long is known from the results: on a CPU shared among the cores of this machine, as if they
    were as fast as those that made them; on a GPU as it took there, one run at a time.
    """
    paths = files.catalogue(folder)
    if not paths:
        raise ValueError(f"there are no files {folder}/*.toml; give their folder: kvib list FOLDER")
    widest = max(map(len, paths))  # names are to be typed as they are
    names = Column("experiment", no_wrap=True, min_width=widest)
    what = Column("what", overflow="fold")
    table = Table(names, what, "runs", "rounds", "about", "results", box=None, pad_edge=False)
    for name, path in paths.items():
        try:
            [given] = files.read_all(path, only=(name,))
            count = len(list(given.runs()))
            state, long = _known(results / name)
        except ValueError as error:  # one mistake must not hide the others
            table.add_row(name, Text(str(error)))
            continue
        done = f"{state} of {count}" if state else "none"
        table.add_row(name, Text(given.title), str(count), str(given.rounds), long, done)
    console.print(table)


def _known(path: Path) -> tuple[int, str]:
    """How many runs have results, and about how long all of these take."""
    if not tables.file(path, "json").exists():
        return 0, "–"
    runs = list(tables.load_about(path, "runs")["runs"].values())
    minutes = sum(run["seconds"] for run in runs) / 60
    devices = sorted({run["device"] for run in runs} - {"cpu"})
    if devices:
        return len(runs), f"{minutes:.0f} min of {devices[0]}"
    return len(runs), f"{minutes / (os.cpu_count() or 1):.0f} min here"


def _collect(given: Experiment, out: Path, path: Path, tasks: Path | None) -> None:
    """Collect what is finished into the files at `path`."""
    found = collect(given, list(given.runs()), out, path, partial=True, tasks=tasks)
    say(f"{path}.parquet: {len(found.about['missing'])} runs are missing")


def _shorter(given: Experiment, seeds: str | None, quick: bool) -> Experiment:
    """An experiment with the seeds, and as short, as the command line says."""
    if seeds is not None:
        samplers = [replace(sampler, seeds=None) for sampler in given.samplers]
        given = replace(given, seeds=_numbers(seeds), samplers=samplers)
    return experiment.quick(given) if quick else given


def _numbers(text: str) -> list[int]:
    """ "0-2,7" → [0, 1, 2, 7]."""
    try:
        pairs = [part.partition("-") for part in text.split(",")]
        spans = [range(int(low), int(high or low) + 1) for low, _, high in pairs]
    except ValueError:
        raise ValueError(f"--seeds {text!r}: write it as 0-4 or 0,3,7") from None
    return [seed for span in spans for seed in span]

"""`kvib run`, `figure`, `reproduce`, `list`: experiment files, their results and figures.

What needs matplotlib is imported by the commands that draw: the others work without it.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from kvib.cli.interrupt import interruptible, leave
from kvib.cli.places import check_folder
from kvib.cli.screen import console, counted, say, show
from kvib.lab import experiment as files
from kvib.lab import tables
from kvib.lab.configuration import one_of
from kvib.lab.experiment import Experiment, Run
from kvib.lab.pool import play_all
from kvib.lab.runs import Machine, Outcome, check

EXPERIMENTS = Path("experiments")
RESULTS = Path("results")

Device = Annotated[str | None, typer.Option(help="Of torch: cuda, cuda:1, …; none: the CPU.")]
Processes = Annotated[int | None, typer.Option(help="Runs at once; one per core on a CPU.")]
StopAfter = Annotated[float, typer.Option(help="Seconds; then save and stop, to go on later.")]
Out = Annotated[Path, typer.Option(help="Folder of run folders; those found there go on.")]


def run(
    file: Annotated[Path, typer.Argument(help="An experiment file.")],
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
    quick: Annotated[bool, typer.Option(help="A tenth of the rounds, one seed.")] = False,
    partial: Annotated[bool, typer.Option(help="Collect what is finished, play nothing.")] = False,
) -> None:
    """Play all runs of an experiment that are not finished, and collect them into one table.

    The table goes to results/; that of a changed experiment (--set, --seeds, --quick) stays under
    --out.
    """
    _check_time(stop_after)
    given = _read(file, tuple(set or ()), seeds, quick)
    place = _quick(out, quick)
    changed = bool(set or seeds or quick)
    path = (results or (place / "results" if changed else RESULTS)) / given.name
    if partial:
        found = tables.collect(given, list(given.runs()), place, path, partial=True, tasks=tasks)
        say(f"{path}.parquet: {len(found.about['missing'])} runs are missing")
        return
    machine = Machine(device, None, tasks, address, patience)
    _play(given, place, path, machine, processes, stop_after)


def figure(
    names: Annotated[list[str], typer.Argument(help="Figures, experiments of yours, or all.")],
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("out/figures"),
    formats: Annotated[str, typer.Option(help="png, pdf, svg, with commas.")] = "png,pdf",
) -> None:
    """Draw figures from collected results."""
    from kvib.lab import figures

    chosen = list(figures.FIGURES) if names == ["all"] else names
    for name in chosen:
        if not tables.file(results / name, "parquet").exists():  # what an experiment measured
            one_of(figures.FIGURES, name, "figure")
    suffixes = tuple(dict.fromkeys(word.strip() for word in formats.split(",")))
    for suffix in suffixes:
        one_of(figures.FORMATS, suffix, "--formats")
    for name in chosen:
        _draw(name, results, out, suffixes, optional=names == ["all"])


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, the first words of several, or all.")],
    device: Device = None,
    out: Out = Path("out/runs"),
    processes: Processes = None,
    stop_after: StopAfter = math.inf,
    quick: Annotated[bool, typer.Option(help="A tenth of the rounds, one seed.")] = False,
) -> None:
    """Run experiments and draw their figures, into out/ (results/ stays as it is committed)."""
    from kvib.lab import figures

    _check_time(stop_after)
    deadline = time.monotonic() + stop_after
    paths = {path.stem: path for path in _experiments()}
    drawn = [figure for figure in figures.FIGURES if _matches(figure, name)]
    needed = [need for figure in drawn for need in figures.FIGURES[figure].needs]
    found = dict.fromkeys([*(stem for stem in paths if _matches(stem, name)), *needed])
    if not found and not drawn:
        known = sorted({*paths, *figures.FIGURES})
        raise ValueError(f"nothing is called {name!r}; there are {', '.join(known)}")
    place = _quick(out.parent / "results", quick)
    done = 0
    for wanted in found:
        given = _read(paths[wanted], (), None, quick) if wanted in paths else None
        if given is None:
            _borrow(wanted, place, f"has no file in {EXPERIMENTS}")
            continue
        if given.gpu and device is None:
            _borrow(wanted, place, "is for a GPU: give --device cuda to run it")
            continue
        left = max(0.0, deadline - time.monotonic())
        _play(given, _quick(out, quick), place / wanted, Machine(device), processes, left)
        done += 1
    folder = _quick(out.parent / "figures", quick)
    for line in drawn:
        done += _draw(line, place, folder, ("png", "pdf"), optional=True)
    if not done:
        raise ValueError(f"nothing of {name} could be run or drawn here; the lines above say why")


def report(
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/reproduction.md"),
) -> None:
    """Write the page that judges the paper claim by claim; beyond.md, stragglers.md and figures
    beside it."""
    from kvib.lab import beyond, figures, stragglers
    from kvib.lab.report import page

    needs = [need for figure in figures.FIGURES.values() for need in figure.needs]
    if tables.missing(needs, results) == needs:
        raise ValueError(
            f"there are no results in {results} to judge by; give their folder (--results), or "
            "make them: kvib reproduce all"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(results), encoding="utf-8")
    out.with_name("beyond.md").write_text(beyond.page(results), encoding="utf-8")
    out.with_name("stragglers.md").write_text(stragglers.page(results), encoding="utf-8")
    for name in figures.FIGURES:
        if not figures.missing(name, results):
            figures.draw(name, results, out.parent / "figures", ("png",))
    say(str(out))


def list_experiments(
    results: Annotated[Path, typer.Option(help="Folder of the collected tables.")] = RESULTS,
) -> None:
    """Show what there is, about how long it takes, and whether there are results.

    How long is known from the results: on a CPU shared among the cores of this machine, as if they
    were as fast as those that made them; on a GPU as it took there, one run at a time.
    """
    paths = _experiments()
    widest = max(len(path.stem) for path in paths)  # names are to be typed as they are
    names = Column("experiment", no_wrap=True, min_width=widest)
    what = Column("what", overflow="fold")
    table = Table(names, what, "runs", "rounds", "about", "results", box=None, pad_edge=False)
    for path in paths:
        try:
            given = files.read(path)
            count = len(list(given.runs()))
            state, long = _known(results / path.stem)
        except ValueError as error:  # one mistake must not hide the others
            table.add_row(path.stem, Text(str(error)))
            continue
        done = f"{state} of {count}" if state else "none"
        table.add_row(path.stem, Text(given.title), str(count), str(given.rounds), long, done)
    console.print(table)


def _experiments() -> list[Path]:
    found = sorted(EXPERIMENTS.glob("*.toml"))
    if not found:
        raise ValueError(f"there are no files {EXPERIMENTS}/*.toml here; go to a clone of kvib")
    return found


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


def _draw(name: str, results: Path, out: Path, formats: tuple[str, ...], *, optional: bool) -> bool:
    """One figure; where it is one of many, its results may be missing: then it is not drawn."""
    from kvib.lab import figures

    missing = figures.missing(name, results)
    if missing and optional:
        say(f"{name}: left out, no results of {', '.join(missing)}")
        return False
    for path in figures.draw(name, results, out, formats):
        say(str(path))
    return True


def _read(path: Path, changes: tuple[str, ...], seeds: str | None, quick: bool) -> Experiment:
    given = files.read(path, changes)
    if seeds is not None:
        samplers = [replace(sampler, seeds=None) for sampler in given.samplers]
        given = replace(given, seeds=_numbers(seeds), samplers=samplers)
    return files.quick(given) if quick else given


def _numbers(text: str) -> list[int]:
    """ "0-2,7" → [0, 1, 2, 7]."""
    try:
        pairs = [part.partition("-") for part in text.split(",")]
        spans = [range(int(low), int(high or low) + 1) for low, _, high in pairs]
    except ValueError:
        raise ValueError(f"--seeds {text!r}: write it as 0-4 or 0,3,7") from None
    return [seed for span in spans for seed in span]


def _quick(folder: Path, quick: bool) -> Path:
    """Quick runs stay apart."""
    return folder.parent / "quick" / folder.name if quick else folder


def _matches(name: str, wanted: str) -> bool:
    return wanted in ("all", name) or name.startswith(f"{wanted}-")


def _borrow(name: str, place: Path, why: str) -> None:
    """Committed results stand for those that nobody wants to wait for, or that no file plays."""
    here = [tables.file(RESULTS / name, suffix) for suffix in ("parquet", "json")]
    here = [path for path in here if path.exists()]
    say(f"{name} {why}; " + (f"taking {RESULTS / name}" if here else f"{RESULTS} holds none"))
    for path in here:
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def _check_time(stop_after: float) -> None:
    if not stop_after >= 0:
        raise ValueError(f"--stop-after {stop_after:g}: give 0 seconds or more")


def _play(
    given: Experiment,
    out: Path,
    path: Path,
    machine: Machine,
    processes: int | None,
    stop_after: float,
) -> None:
    import polars  # noqa: F401 - missed now, not after the last run

    check_folder(out, "--out")
    check_folder(path.parent, "--results")
    check(given, machine)
    runs = list(given.runs())
    if processes is not None and processes < 1:
        raise ValueError(f"--processes {processes}: give at least 1")
    if processes is None:  # one where a run takes all there is: a GPU, a cluster
        alone = machine.device is not None or given.elsewhere
        processes = 1 if alone else os.cpu_count() or 1
    if processes > 1:
        threads = max(1, (os.cpu_count() or 1) // processes)
        machine = replace(machine, threads=threads)
    with interruptible() as stop:
        ends = _with_progress(given, runs, out, machine, processes, stop_after, stop)
        stopped = stop()
    finished = sum(end.finished for end in ends)
    for one, end in zip(runs, ends, strict=True):
        if end.diverged is not None:
            say(f"{one.name}: {end.diverged}")
    short = [end.short for end in ends if end.short]
    if short:
        raise ValueError(
            f"{given.name}: memory was short for {len(short)} of {len(runs)} runs; {short[0]}"
        )
    if finished < len(runs):
        how_far = f"{given.name}: {finished} of {len(runs)} runs are finished"
        if stopped:
            leave(how_far)
        say(f"{how_far}; the same command goes on")
        return
    _summarise(tables.collect(given, runs, out, path, tasks=machine.tasks))
    say(f"{path}.parquet: {len(runs)} runs of {given.rounds} rounds")


def _summarise(results: tables.Results) -> None:
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
) -> list[Outcome]:
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

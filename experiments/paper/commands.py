"""The commands `report`, `reproduce`, `figure` and `examples`, which make pages and figures.

Modules that need matplotlib and polars are imported by the commands that use them.
"""

import math
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

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
from kvib.cli.screen import say
from kvib.lab import files, tables
from kvib.lab.configuration import one_of
from kvib.lab.experiment import quick as shortened
from kvib.lab.runs import Machine

RESULTS = Path("results")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Results = Annotated[Path, typer.Option(help="Folder of the collected tables.")]


@app.callback()
def everywhere() -> None:
    """The paper, claim by claim: its experiments, figures and verdicts."""


@app.command()
def report(
    results: Results = RESULTS,
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("docs/reproduction.md"),
) -> None:
    """Write the page that judges the paper claim by claim.

    The pages beyond.md and stragglers.md and the figures are written beside it.
    """
    from paper import beyond, figures, stragglers
    from paper.report import page

    needs = [need for figure in figures.FIGURES.values() for need in figure.needs]
    if tables.missing(needs, results) == needs:
        raise ValueError(
            f"there are no results in {results} to judge by; give their folder (--results), or "
            "make them: python experiments/paper reproduce all"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(results), encoding="utf-8")
    out.with_name("beyond.md").write_text(beyond.page(results), encoding="utf-8")
    out.with_name("stragglers.md").write_text(stragglers.page(results), encoding="utf-8")
    for name in figures.FIGURES:
        if not figures.missing(name, results):
            figures.draw(name, results, out.parent / "figures", ("png",))
    say(str(out))


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of an experiment or figure, first words of several names, or all."
        ),
    ],
    device: Device = None,
    out: Out = Path("out/runs"),
    processes: Processes = None,
    stop_after: StopAfter = math.inf,
    quick: Quick = False,
) -> None:
    """Run experiments and draw their figures into out/. The files in results/ stay as they are."""
    from paper import figures

    check_time(stop_after)
    deadline = time.monotonic() + stop_after
    paths = _experiments()
    drawn = [figure for figure in figures.FIGURES if _matches(figure, name)]
    needed = [need for figure in drawn for need in figures.FIGURES[figure].needs]
    found = dict.fromkeys([*(known for known in paths if _matches(known, name)), *needed])
    if not found and not drawn:
        known = sorted({*paths, *figures.FIGURES})
        raise ValueError(f"nothing is called {name!r}; there are {', '.join(known)}")
    place = quick_folder(out.parent / "results", quick)
    done = 0
    for wanted in found:
        if wanted not in paths:
            _borrow(wanted, place, f"has no file in {files.EXPERIMENTS}")
            continue
        given = files.find(wanted)
        if given.gpu and device is None:
            _borrow(wanted, place, "is for a GPU: give --device cuda to run it")
            continue
        left = max(0.0, deadline - time.monotonic())
        given = shortened(given) if quick else given
        runs = quick_folder(out, quick)
        play(given, runs, place / wanted, Machine(device), processes, left)
        done += 1
    folder = quick_folder(out.parent / "figures", quick)
    for line in drawn:
        done += _draw(line, place, folder, ("png", "pdf"), optional=True)
    if not done:
        raise ValueError(f"nothing of {name} could be run or drawn here; the lines above say why")


@app.command()
def figure(
    names: Annotated[list[str], typer.Argument(help="Names of figures of the pages, or all.")],
    results: Results = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("out/figures"),
    formats: Annotated[
        str, typer.Option(help="File formats, separated by commas: png, pdf, svg.")
    ] = "png,pdf",
) -> None:
    """Draw figures of the pages from collected results."""
    from kvib.lab.figures import suffixes
    from paper import figures

    chosen, endings = list(figures.FIGURES) if names == ["all"] else names, suffixes(formats)
    for name in chosen:
        one_of(figures.FIGURES, name, "figure")
    for name in chosen:
        _draw(name, results, out, endings, optional=names == ["all"])


@app.command()
def examples(
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the random vectors of Example 1.")] = 0,
) -> None:
    """Show Examples 1 and 2 of the paper as two tables and two figures."""
    from paper.examples import show

    say(f"figures: {', '.join(map(str, show(out, seed)))}")


def _experiments() -> dict[str, Path]:
    """The experiments, as a dict from names to files."""
    found = files.catalogue()
    if not found:
        where = f"{files.EXPERIMENTS}/*.toml"
        raise ValueError(f"there are no files {where} here; go to the root of a clone")
    return found


def _matches(name: str, wanted: str) -> bool:
    return wanted in ("all", name) or name.startswith(f"{wanted}-")


def _borrow(name: str, place: Path, why: str) -> None:
    """Copy committed results of an experiment that takes too long, or that no file defines."""
    here = [tables.file(RESULTS / name, suffix) for suffix in ("parquet", "json")]
    here = [path for path in here if path.exists()]
    say(f"{name} {why}; " + (f"taking {RESULTS / name}" if here else f"{RESULTS} holds none"))
    for path in here:
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def _draw(name: str, results: Path, out: Path, formats: tuple[str, ...], *, optional: bool) -> bool:
    """Draw one figure and return True; an optional one is left out if its results are missing."""
    from paper import figures

    missing = figures.missing(name, results)
    if missing and optional:
        say(f"{name}: left out, no results of {', '.join(missing)}")
        return False
    for path in figures.draw(name, results, out, formats):
        say(str(path))
    return True

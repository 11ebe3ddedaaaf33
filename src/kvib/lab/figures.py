"""Writes the figure of an experiment as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kvib.lab import plots, tables
from kvib.lab.configuration import one_of

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "legend.fontsize": 7,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "kvib",
}
UNDATED: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""Metadata without dates, so that the same results give the same file."""
FORMATS = ("png", "pdf", "svg")


def suffixes(formats: str) -> tuple[str, ...]:
    """The suffixes of the files: "png, pdf" → ("png", "pdf")."""
    found = tuple(dict.fromkeys(word.strip() for word in formats.split(",")))
    for suffix in found:
        one_of(FORMATS, suffix, "--formats")
    return found


def draw(name: str, results: Path, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Draw all measurements of an experiment as one figure. Returns the files written.

    Args:
        name: The name of the experiment.
        results: The folder of the collected tables.
        out: The folder of the figures.
        formats: The suffixes of the files to write.
    """
    return write(lambda: plots.everything(tables.load(results / name)), name, out, formats)


def write(make: Callable[[], Figure], name: str, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Make a figure in the common style and write it. Returns the files written.

    Args:
        make: The function that makes the figure.
        name: The name of the files.
        out: The folder of the figures.
        formats: The suffixes of the files to write.
    """
    with mpl.rc_context(STYLE):
        figure = make()
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{name}.{suffix}" for suffix in formats]
        for path in paths:
            metadata = UNDATED.get(path.suffix, {})
            figure.savefig(path, dpi=130, bbox_inches="tight", metadata=metadata)
    return paths

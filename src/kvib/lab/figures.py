"""The figure of an experiment, as files."""

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
"""The same results give the same file."""
FORMATS = ("png", "pdf", "svg")


def suffixes(formats: str) -> tuple[str, ...]:
    """Endings of files: "png, pdf" → ("png", "pdf")."""
    found = tuple(dict.fromkeys(word.strip() for word in formats.split(",")))
    for suffix in found:
        one_of(FORMATS, suffix, "--formats")
    return found


def draw(name: str, results: Path, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Write everything that an experiment measured as one figure; its files."""
    return write(lambda: plots.everything(tables.load(results / name)), name, out, formats)


def write(make: Callable[[], Figure], name: str, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Make a figure in the style of all figures and write it; its files."""
    with mpl.rc_context(STYLE):
        figure = make()
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{name}.{suffix}" for suffix in formats]
        for path in paths:
            metadata = UNDATED.get(path.suffix, {})
            figure.savefig(path, dpi=130, bbox_inches="tight", metadata=metadata)
    return paths

"""Tables of results: printed, and written as JSON and Markdown with their environment."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

import kvib

Row = dict[str, Any]
Results = dict[str, list[Row]]


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(title: str, rows: list[Row]) -> str:
    names = list(rows[0])
    lines = [f"### {title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(shown(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def environment() -> Row:
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "kvib": kvib.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def print_table(title: str, rows: list[Row], console: Console) -> None:
    """Columns that are empty in all rows are left out."""
    names = [n for n in rows[0] if any(r[n] != "–" for r in rows)]
    table = Table(title=title, title_justify="left")
    for name in names:
        words = all(isinstance(r[name], str) for r in rows)
        table.add_column(name, justify="left" if words else "right")
    for row in rows:
        table.add_row(*(shown(row[name]) for name in names))
    console.print(table)


def publish(path: Path, about: Row, results: Results) -> None:
    """Print, and write to path.json and path.md."""
    console = Console(width=170)
    for title, rows in results.items():
        print_table(title, rows, console)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"environment": about, "results": results}
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    path.with_suffix(".json").write_text(text)
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    sections = "\n".join(markdown(title, rows) for title, rows in results.items())
    path.with_suffix(".md").write_text(f"{head}.\n\n{sections}")
    console.print(f"written to {path}.json and {path}.md")

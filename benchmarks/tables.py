"""Print tables of results, and write them as JSON and Markdown with their environment.

rich and numba are imported only where they are needed, since a GPU machine may not have them.
"""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kvib

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]
Results = dict[str, list[Row]]


def shown(value: Any) -> str:
    """The text of a cell."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(shown(row.get(n, "–")) for n in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def head(about: Row) -> str:
    """The line that stands before the tables: the environment."""
    return ", ".join(f"{name} {value}" for name, value in about.items()) + ".\n\n"


def environment() -> Row:
    """The command, the versions and the machine."""
    import numba

    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "kvib": kvib.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def print_table(title: str, rows: list[Row], console: "Console") -> None:
    """Print a table without the columns that are empty in all rows."""
    from rich.table import Table

    names = [n for n in rows[0] if any(r[n] != "–" for r in rows)]
    table = Table(title=title, title_justify="left")
    for name in names:
        words = all(isinstance(r[name], str) for r in rows)
        table.add_column(name, justify="left" if words else "right")
    for row in rows:
        table.add_row(*(shown(row[name]) for name in names))
    console.print(table)


def publish(path: Path, about: Row, results: Results) -> None:
    """Print the tables, and write them to path.json and path.md."""
    from rich.console import Console

    console = Console(width=170)
    for title, rows in results.items():
        print_table(title, rows, console)
    write(path, about, results)


def write(path: Path, about: Row, results: Results) -> None:
    """Write the tables to path.json and path.md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"environment": about, "results": results}
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    path.with_suffix(".json").write_text(text)
    sections = "\n".join(f"### {title}\n\n{markdown(rows)}" for title, rows in results.items())
    path.with_suffix(".md").write_text(head(about) + sections)
    print(f"written to {path}.json and {path}.md")

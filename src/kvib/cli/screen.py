"""What the commands print to."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()
errors = Console(stderr=True)
WIDE = 200
"""Characters of a line that nobody's terminal has to hold."""


def say(line: str) -> None:
    """As it is, however narrow the terminal: paths must be whole for whoever reads them on."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """Without breaks where it goes to a file."""
    (console if console.is_terminal else Console(width=WIDE)).print(table)


def progress_bar() -> Progress:
    """With a field `told` for whatever is worth knowing; silent where nobody looks."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=errors, disable=not errors.is_terminal)

"""Output of the commands: lines and tables on stdout, progress on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()
errors = Console(stderr=True)
WIDE = 200
"""Characters per line of a table that goes to a file."""
A_MINUTE = 60.0
"""Seconds between two progress lines where stderr is no terminal."""


def say(line: str) -> None:
    """Print a line without breaking it: another program may read the paths in it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """Print a table. In a file its rows are not broken at the width of a terminal."""
    (console if console.is_terminal else Console(width=WIDE)).print(table)


class Tell(Protocol):
    """A function that shows the number of finished rounds."""

    def __call__(self, done: int, also: str = "") -> None:
        """Show the progress.

        Args:
            done: The number of finished rounds.
            also: Text to show behind the speed.
        """


@contextmanager
def counted(what: str, rounds: int) -> Iterator[Tell]:
    """Show progress on stderr: a bar on a terminal, one line per minute elsewhere.

    Args:
        what: The name that stands before the bar or line.
        rounds: The number of rounds in all.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    no_terminal = not errors.is_terminal
    last = time.monotonic()
    with Progress(
        *columns, console=errors, disable=no_terminal, speed_estimate_period=10 * A_MINUTE
    ) as progress:
        bar = progress.add_task(what, total=rounds, status="")

        def tell(done: int, also: str = "") -> None:
            nonlocal last
            progress.update(bar, completed=done)
            status = f"{progress.tasks[bar].speed or 0.0:.1f} rounds/s{also}"
            progress.update(bar, status=status)
            if no_terminal and time.monotonic() - last >= A_MINUTE:
                last = time.monotonic()
                line = f"{what}: {done} of {rounds} rounds, {status}"
                errors.print(line, markup=False, highlight=False, soft_wrap=True)

        yield tell

"""What the commands print to."""

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
"""Characters of a line that no terminal has to hold."""
A_MINUTE = 60.0
"""Between two lines where there is no terminal for a bar."""


def say(line: str) -> None:
    """As it is, however narrow the terminal: paths must be whole for whoever reads them on."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """Without breaks where it goes to a file."""
    (console if console.is_terminal else Console(width=WIDE)).print(table)


class Tell(Protocol):
    """Takes the number of rounds done, and other words worth showing."""

    def __call__(self, done: int, also: str = "") -> None:
        """As often as one likes."""


@contextmanager
def counted(what: str, rounds: int) -> Iterator[Tell]:
    """How far it is, on stderr: a bar on a terminal, a line a minute where there is none."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    no_terminal = not errors.is_terminal
    last = time.monotonic()
    with Progress(
        *columns, console=errors, disable=no_terminal, speed_estimate_period=10 * A_MINUTE
    ) as progress:
        bar = progress.add_task(what, total=rounds, told="")

        def tell(done: int, also: str = "") -> None:
            nonlocal last
            progress.update(bar, completed=done)
            told = f"{progress.tasks[bar].speed or 0.0:.1f} rounds/s{also}"
            progress.update(bar, told=told)
            if no_terminal and time.monotonic() - last >= A_MINUTE:
                last = time.monotonic()
                line = f"{what}: {done} of {rounds} rounds, {told}"
                errors.print(line, markup=False, highlight=False, soft_wrap=True)

        yield tell

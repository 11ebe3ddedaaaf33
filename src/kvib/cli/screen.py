"""What the commands print to."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console()
errors = Console(stderr=True)


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

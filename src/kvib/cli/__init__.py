"""The command line; the only place that prints."""

import sys

import typer

from kvib.cli import journal, lab, simulate
from kvib.cli.screen import complain

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    simulate.prepare,
    simulate.simulate,
    lab.run,
    lab.figure,
    lab.reproduce,
    lab.report,
    lab.list_experiments,
    journal.journal,
    journal.replay,
    journal.plan,
):
    app.command(name=command.__name__.removesuffix("_experiments"))(command)


EXTRAS = {"matplotlib": "lab", "polars": "lab", "torch": "torch", "datasets": "data"}
"""What `pip install kvib[cli]` leaves out, and the extra that brings it."""


def main() -> None:
    """Errors of the user's making are one line and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        complain(str(error))
        sys.exit(2)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        complain(f"this needs {package}: pip install 'kvib[{EXTRAS[package]}]'")
        sys.exit(2)


if __name__ == "__main__":
    main()

"""The command line; the only place that prints."""

import sys

import typer

from kvib.cli import lab, simulate
from kvib.cli.screen import errors

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    simulate.prepare,
    simulate.simulate,
    lab.run,
    lab.figure,
    lab.reproduce,
    lab.report,
    lab.list_experiments,
):
    app.command(name=command.__name__.removesuffix("_experiments"))(command)


def main() -> None:
    """Errors of the user's making are one line and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        errors.print(f"kvib: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()

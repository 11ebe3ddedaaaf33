"""The commands of `kvib`, collected into one application."""

from typing import Annotated

import typer

import kvib
from kvib.cli import journal, lab, simulate
from kvib.cli.screen import say

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    simulate.prepare,
    simulate.simulate,
    lab.run,
    lab.figure,
    lab.list_experiments,
    journal.journal,
    journal.replay,
    journal.plan,
):
    app.command(name=command.__name__.removesuffix("_experiments"))(command)


def _version(requested: bool) -> None:
    """Print the version and exit, if `--version` is given."""
    if requested:
        say(kvib.__version__)
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
]


@app.callback()
def everywhere(version: Version = False) -> None:
    """Choose the clients that take part in each round of federated learning."""

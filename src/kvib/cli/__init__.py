"""The command line: the only package of kvib that prints."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "lab",
    "polars": "lab",
    "torch": "torch",
    "datasets": "data",
}
"""Packages that `pip install .` does not install, and the extra that installs each."""
MOVED = ("report", "reproduce")
"""Commands of earlier versions that judged the paper. They are now scripts in a clone."""


def main() -> None:
    """Run the command `kvib`."""
    with one_line("kvib"):
        if sys.argv[1:2] and sys.argv[1] in MOVED:
            raise ValueError(
                f"{sys.argv[1]} is a command of the paper now, in the root of a clone of kvib: "
                f"python experiments/paper {' '.join(sys.argv[1:])}"
            )
        from kvib.cli.commands import app

        app()


@contextmanager
def one_line(program: str) -> Iterator[None]:
    """Turn errors that the user can mend into one line on stderr and exit code 2.

    Args:
        program: The name that the line begins with.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        complain(program, str(error))
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        way_out = f"pip install '.[{EXTRAS[package]}]' in a clone of kvib"
        complain(program, f"this needs {package}: {way_out}")


def complain(program: str, line: str) -> NoReturn:
    """Write one line on stderr and exit. `rich` may not be installed, so it is not used here."""
    sys.stderr.write(f"{program}: {' '.join(line.split())}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()

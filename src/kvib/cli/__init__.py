"""The command line; the only place that prints."""

import sys

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "lab",
    "polars": "lab",
    "torch": "torch",
    "datasets": "data",
}
"""What `pip install .` leaves out, and the extra that brings it."""


def main() -> None:
    """Errors of the user's making are one line and exit code 2."""
    try:
        from kvib.cli.commands import app

        app()
    except (ValueError, OSError) as error:
        complain(str(error))
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        complain(f"this needs {package}: pip install '.[{EXTRAS[package]}]' in a clone of kvib")


def complain(line: str) -> None:
    """As one line on stderr, without what may not be installed; then exit."""
    sys.stderr.write(f"kvib: {' '.join(line.split())}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()

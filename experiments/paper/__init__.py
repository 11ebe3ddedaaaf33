"""The code that judges the paper: its claims, our goals, verdicts, pages and figures."""

from kvib.cli import one_line


def main() -> None:
    """Run the command `python experiments/paper`."""
    with one_line("paper"):
        from paper.commands import app

        app()

"""Ctrl-C loses no work: the command saves its state and stops."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from kvib.cli.screen import say

STOPPED = 130
"""Exit code of a command that Ctrl-C stopped: 128 + SIGINT, the convention of shells."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed.

    The first Ctrl-C asks the command to stop after the current round. The second stops it at once.
    An exception in the middle of a round would leave no state that could be saved.
    """
    pressed = False

    def press(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        line = b"\nkvib: stopping after this round; Ctrl-C again stops at once\n"
        os.write(2, line)  # a signal handler can interrupt a print, and print is not reentrant

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def leave(how_far: str) -> NoReturn:
    """Print how far the command came, and exit with the code of an interrupted command."""
    say(f"{how_far}, stopped; repeat the command to continue")
    raise typer.Exit(STOPPED)

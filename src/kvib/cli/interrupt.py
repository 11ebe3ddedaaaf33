"""Ctrl-C that costs nothing: what runs saves itself and stops."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from kvib.cli.screen import say

STOPPED = 130
"""Exit code of a command that Ctrl-C stopped, as shells have it."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: once to stop after this round, again to stop at once.

    An exception in the middle of a round would leave nothing that could be saved.
    """
    pressed = False

    def press(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        line = b"\nkvib: stopping after this round; Ctrl-C again stops at once\n"
        os.write(2, line)  # a handler may come in the middle of somebody's print

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def leave(how_far: str) -> NoReturn:
    """Say so, and exit as an interrupted command does."""
    say(f"{how_far}, stopped; the same command goes on")
    raise typer.Exit(STOPPED)

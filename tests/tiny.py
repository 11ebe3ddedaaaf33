"""A tiny experiment, as a file."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from kvib.lab.files import read

TEXT = """
title = "Tiny"
task = "synthetic"
rounds = 5
budgets = [5]
seeds = [0, 1]
train_loss_every = 2
exact_every = 2

[local]
learning_rates = [0.02]
batch_size = 64

[[samplers]]
label = "uniform"
policy = "Uniform"
procedure = "independent"

[[samplers]]
label = "K-Vib"
policy = "KVib"
"""


def write(folder, text=TEXT, name="tiny"):
    path = Path(folder) / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def experiment(folder, *changes, text=TEXT, name="tiny"):
    return read(write(folder, text, name), changes)


def environment(**changes):
    """Of a machine without the data, offline, with no terminal to tell how wide it is."""
    hidden = ("KVIB_DATA", "COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "error", **changes}


def process(*words, cwd, program=(sys.executable, "-m", "kvib.cli"), **changes):
    """The command line in a process of its own, with these changes to its environment."""
    return subprocess.run(
        [*map(str, program), *map(str, words)],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def kvib(*words, cwd):
    """The command `kvib` in this process, which is quicker."""
    from kvib import cli

    return command("kvib", cli.main, words, cwd)


def paper(*words, cwd):
    """The command that judges the paper, in this process."""
    from paper import main

    return command("paper", main, words, cwd)


def command(name, main, words, cwd):
    """A command line in this process; the terminal is narrow."""
    from kvib.cli import screen

    words = [name, *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    screen.console.width, screen.errors.width = 80, 40
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environment(), clear=True),
        mock.patch.object(sys, "argv", words),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

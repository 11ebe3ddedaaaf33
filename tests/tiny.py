"""A tiny experiment, as a file."""

import os
import subprocess
import sys
from pathlib import Path

from kvib.lab.experiment import read

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
    path.write_text(text)
    return path


def experiment(folder, *changes, text=TEXT, name="tiny"):
    return read(write(folder, text, name), changes)


def environment(**changes):
    """Of a machine without the data, offline, with no terminal to tell how wide it is."""
    hidden = ("KVIB_DATA", "COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "error", **changes}


def kvib(*words, cwd, program=(sys.executable, "-m", "kvib.cli")):
    """The command line in a process of its own."""
    return subprocess.run(
        [*map(str, program), *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

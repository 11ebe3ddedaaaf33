"""Processes killed at any instant: the reopened sampler equals one that was never interrupted."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from journal_crash import INSIDE

DRIVER = Path(__file__).parent / "journal_crash.py"


def kills(folder, number, seed):
    command = [sys.executable, "-W", "error", DRIVER, folder, str(number), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    where, events = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(where) == number
    return where, [int(number) for number in events]


def test_killed(tmp_path):
    kills(tmp_path, 24, seed=1)


@pytest.mark.slow
def test_killed_at_200_instants(tmp_path):
    """Between and inside draw, update, snapshot and compaction; while clients join, leave, are
    reweighed, wait, are absent and check in."""
    where, events = kills(tmp_path, 200, seed=2)
    assert np.mean(np.array(events) >= 10) > 0.5  # all of the script was gone through by then
    assert where.count("at-any-time") > 30
    inside = {f"before-{statement.replace(' ', '-')}" for statement in INSIDE}
    assert inside <= set(where)

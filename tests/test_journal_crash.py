"""Processes killed at any instant: the reopened sampler equals one that was never interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest

from journal_crash import INSIDE

DRIVER = Path(__file__).parent / "journal_crash.py"


def kills(folder, number, seed):
    command = [sys.executable, "-W", "error", DRIVER, folder, str(number), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    where = done.stdout.split()
    assert len(where) == number
    return where


def test_killed(tmp_path):
    kills(tmp_path, 24, seed=1)


@pytest.mark.slow
def test_killed_at_200_instants(tmp_path):
    """Between and inside draw, update, snapshot and compaction."""
    where = kills(tmp_path, 200, seed=2)
    assert where.count("at-any-time") > 30
    inside = {f"before-{statement.replace(' ', '-')}" for statement in INSIDE}
    assert inside <= set(where)

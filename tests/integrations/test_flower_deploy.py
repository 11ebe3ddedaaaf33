"""examples/flower_app/deploy.py: it says what it does while it does it, and ends when it must."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from places import ROOT

pytest.importorskip("flwr")

pytestmark = pytest.mark.slow
SCRIPT = ROOT / "examples" / "flower_app" / "deploy.py"


class Running:
    """The script, which is read as it writes."""

    def __init__(self, process):
        self.process, self.said = process, ""

    def until(self, text):
        """Read on until a line has this text."""
        while text not in (line := self.process.stdout.readline()):
            assert line, f"it ended before it said {text!r}:\n{self.said}"
            self.said += line
        self.said += line

    def started(self):
        return [int(pid) for pid in re.findall(r"started flower-\S+ \(process (\d+)\)", self.said)]

    def end(self):
        """All that it said after that, and its exit code; all processes are gone then."""
        rest, _ = self.process.communicate(timeout=60)
        deadline = time.monotonic() + 10  # children of what was stopped end a little later
        while left := [pid for pid in self.started() if lives(pid)]:
            assert time.monotonic() < deadline, f"process groups {left} live on"
            time.sleep(0.1)
        return rest, self.process.returncode


def lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(folder, *options):
    """In a folder of temporary files: what was interrupted leaves its logs."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--plain", "--nodes", "2", "--rounds", "50", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder)},
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_node_that_dies_ends_it_soon(tmp_path):
    with running(tmp_path, "--folder", tmp_path) as script:
        script.until("all 2 nodes connected")
        script.until("[ROUND 1/50]")
        _, first, _ = script.started()
        os.killpg(first, signal.SIGKILL)
        rest, code = script.end()
    assert code == 1
    assert "supernode-0 has ended with code -9" in rest
    assert f"The logs are in {tmp_path}" in rest
    assert (tmp_path / "supernode-0.log").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(tmp_path, how):
    with running(tmp_path) as script:
        script.until("started flower-supernode")
        script.process.send_signal(how)
        rest, code = script.end()
    assert code == 1
    assert "stopping SuperNodes and SuperLink" in rest
    assert "interrupted\nThe logs are in " in rest
    assert list(tmp_path.glob("kvib-deploy-*/superlink.log"))


def test_a_superlink_that_does_not_start_ends_it_at_once(tmp_path):
    """Its database is a folder."""
    (tmp_path / "superlink.db").mkdir()
    with running(tmp_path, "--folder", tmp_path) as script:
        rest, code = script.end()
    assert code == 1
    assert "superlink has ended with code" in rest

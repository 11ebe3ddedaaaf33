"""A real deployment in which everything goes wrong that a night can bring."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import kvib
from places import ROOT

pytest.importorskip("flwr")

APP = Path(__file__).parent / "flower_night"
_spec = spec_from_file_location("kvib_deploy_at_night", ROOT / "examples/flower_app/deploy.py")
deploy = sys.modules["kvib_deploy_at_night"] = module_from_spec(_spec)
_spec.loader.exec_module(deploy)

pytestmark = pytest.mark.slow
OUTAGE = 120  # seconds
PATIENCE = 400  # seconds; two cores, shared


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too slow"
        time.sleep(0.5)


class Site(deploy.Deployment):
    """SuperLink with TLS, and SuperNodes with keys, named as a site would name them."""

    def register(self, i):
        deploy.node_key(self.folder, i)
        self.flwr("supernode", "register", str(self.folder / f"node-{i}.pub"), "loopback")

    def start_supernode(self, i, name=True):
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(deploy.free_port())]
        options += ["--node-config", f'client-id="site-{i}"'] if name else []
        options += ["--root-certificates", str(self.folder / "ca.crt")]
        options += ["--auth-supernode-private-key", str(self.folder / f"node-{i}.key")]
        self.supernodes[i] = self._start("flower-supernode", options, f"supernode-{i}")


def loss(slope, sites):
    """Mean squared error over the measurements of these sites."""
    sys.path.insert(0, str(APP))
    try:
        from night.client import measurements
    finally:
        sys.path.pop(0)
    errors = []
    for i in sites:
        node = type("Node", (), {"node_config": {"client-id": f"site-{i}"}})
        inputs, outputs = measurements(node)
        errors.append((inputs @ np.array(slope) - outputs) ** 2)
    return float(np.mean(np.concatenate(errors)))


def test_a_night_in_production(tmp_path):
    folder = tmp_path / "run"
    file, models = folder / "rounds.jsonl", folder / "models.jsonl"
    with Site(tmp_path / "home", nodes=4) as flower:
        for i in (4, 5, 6):
            flower.register(i)
        run = flower.run(f'folder="{folder}"', APP)
        until(lambda: len(lines(file)) >= 3)

        # one joins late, one has no name, and loses even its node id
        flower.start_supernode(4)
        flower.start_supernode(5, name=False)
        until(lambda: sum(line["kvib-joined"] for line in lines(file)[1:]) >= 2)
        late = [key for line in lines(file)[1:] for key in line["joined"]]
        assert "site-4" in late
        [nameless] = [key for key in late if key.startswith("node-")]
        deploy.stop(flower.supernodes.pop(5), signal.SIGKILL)
        flower.start_supernode(6, name=False)
        until(lambda: nameless in [key for line in lines(file) for key in line["left"]])
        joined = [key for line in lines(file) for key in line["joined"]]
        assert len([key for key in joined if key.startswith("node-")]) == 2
        assert max(line["kvib-offline"] for line in lines(file)) > 0

        # all are killed; those without a name and site 3 never come back
        settled = len(lines(file))
        until(lambda: len(lines(file)) >= settled + 3)
        before = lines(models)[-1]
        for i in list(flower.supernodes):
            deploy.stop(flower.supernodes.pop(i), signal.SIGKILL)
        killed = len(lines(file))
        time.sleep(OUTAGE)
        assert len(lines(file)) <= killed + 1
        assert flower.status(run).startswith("running")
        for i in (0, 1, 2, 4):  # their heartbeats have expired by now
            flower.start_supernode(i)
        time.sleep(15)
        for i in (0, 1, 2, 4):
            if flower.supernodes[i].poll() is not None:
                flower.revive_supernode(i)
        until(lambda: any("site-3" in line["left"] for line in lines(file)[killed:]))
        gone = len(lines(file))
        until(lambda: len(lines(file)) >= gone + 4)
        said = flower.flwr("log", run, "loopback", "--show")
        deploy.stop(flower.superlink)

    rounds = lines(file)
    assert [line["kvib-round"] for line in rounds] == list(range(len(rounds)))  # none is lost
    assert all(line["answered"] for line in rounds)  # and none is empty
    assert rounds[-1]["kvib-coefficients"] == pytest.approx(1, abs=0.1)
    assert all(line["kvib-coefficients"] < 1.1 for line in rounds)
    sites = (0, 1, 2, 4)
    losses = [loss(slope, sites) for slope in lines(models)]
    assert max(losses[killed:]) <= 1.1 * loss(before, sites)
    assert losses[-1] <= losses[1]
    assert max(line["kvib-lost"] for line in rounds[killed:]) > 0.1

    assert "waiting for nodes" in said
    assert "joined without a name of their own" in said
    assert "of the objective is out of reach" in said
    assert "clients left" in said

    history = kvib.journal.read(folder / "run.kvib")
    assert len(history.table().round) - len(rounds) in (0, 1)  # one may have been drawn since
    for command in (("replay", "--policy", "Uniform", "--policy", "BySize"), ("plan",)):
        name, *options = command
        done = subprocess.run(
            [sys.executable, "-m", "kvib.cli", name, str(folder / "run.kvib"), *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rounds" in done.stdout

"""Flower's own engines: the simulation engine (Ray), and SuperLink and SuperNodes on loopback.

Started by `flwr run` and the `flower-*` commands, in processes of their own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import kvib
from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic
from places import ROOT

pytest.importorskip("flwr")
pytest.importorskip("ray")

EXAMPLE = ROOT / "examples" / "flower_app"
MASKED = EXAMPLE.with_name("flower_masked")
APP = Path(__file__).parent / "flower_app"

_spec = spec_from_file_location("kvib_example_deploy", EXAMPLE / "deploy.py")
deploy = sys.modules["kvib_example_deploy"] = module_from_spec(_spec)
_spec.loader.exec_module(deploy)
BIN, QUIET, Deployment, stop = deploy.BIN, deploy.QUIET, deploy.Deployment, deploy.stop

pytestmark = pytest.mark.slow
PATIENCE = 400  # seconds; two cores, shared


def rounds(folder):
    """What the server wrote, round by round."""
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too slow"
        time.sleep(0.5)


class SimulationEngine:
    """`flwr run` on the simulation engine, whose SuperLink is stopped afterwards."""

    def __init__(self, folder):
        self.folder, self.port = folder, deploy.free_port()
        self.superlink = None

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.folder), "PATH": path}
        environment["RAY_ADDRESS"] = "local"  # else it joins the cluster of test_ray.py
        self.environment = environment
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.port)]
        with open(self.folder / "superlink.log", "ab") as log:
            self.superlink = subprocess.Popen(
                [str(BIN / "flower-superlink"), *options],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error):
        stop(self.superlink)

    def run(self, app, nodes, settings):
        until(lambda: self._flwr("list").returncode == 0, 60)
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        options = ("--federation-config", federation, "--run-config", settings, "--stream")
        return self._flwr("run", str(app), "here", *options)

    def _flwr(self, *arguments):
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def test_the_simulation_engine_agrees_with_kvibs_simulator(tmp_path):
    """100 nodes, K = 10: the same cohorts and the same model in the end."""
    T = 6
    with SimulationEngine(tmp_path / "home") as engine:
        settings = (
            f'rounds={T} clients=100 budget=10.0 work="linear" renormalise=true '
            f'folder="{tmp_path / "run"}"'
        )
        done = engine.run(APP, 100, settings)
    played = rounds(tmp_path / "run")
    assert len(played) == T, done.stdout + done.stderr

    task, local = synthetic(clients=100), LocalSGD(learning_rate=0.02, batch_size=64)
    sampler = kvib.journalled(
        tmp_path / "here.kvib",
        kvib.Forecast(),
        task.weights,
        10,
        keys=list(range(100)),
        response=kvib.EstimatedRate(),
    )
    simulation = Simulation(task, LinearEngine(task, local), sampler, local, evaluate_every=0)
    records = list(simulation.run(rounds=T))
    assert [line["cohort"] for line in played] == [r.ids.tolist() for r in records]
    assert np.load(tmp_path / "run" / "model.npy") == pytest.approx(simulation.model, abs=1e-6)


@pytest.mark.timing
def test_the_adapters_own_time_is_small(tmp_path):
    """N = 1,000, a tenth of them per round: its self-time is below 2 % of a round of the engine.

    By the clock on the wall, the median of rounds without the first, in which everybody is asked.
    The clients do next to nothing. With a journal two rounds of fsync come on top. With 20 clients
    a round is two or three of the engine's pauses of 0.1 s, by chance, and the share 1.6 to 2.7 %.
    """
    shares = {}
    with SimulationEngine(tmp_path / "home") as engine:
        for journal in ("false", "true"):
            folder = tmp_path / journal
            settings = (
                f'rounds=11 clients=1000 budget=100.0 work="linear" journal={journal} '
                f'folder="{folder}"'
            )
            done = engine.run(APP, 1000, settings)
            played = rounds(folder)[1:]
            assert len(played) == 10, done.stdout + done.stderr
            times = {name: [line[name] for line in played] for name in ("own", "seconds")}
            own, whole = (float(np.median(values)) for values in times.values())
            shares[journal] = own / whole
            print(f"journal={journal}: {own:.4f} s of {whole:.3f} s, {own / whole:.2%}; in ms:")
            for name, values in times.items():
                print(name, [round(1000 * value, 1) for value in values])
    assert shares["false"] < 0.02
    assert shares["true"] < 0.03


def test_the_examples_run_unchanged_on_the_simulation_engine(tmp_path):
    with SimulationEngine(tmp_path / "home") as engine:
        settings = f'num-server-rounds=3 folder="{tmp_path / "run"}"'
        done = engine.run(EXAMPLE, 20, settings)
        masked = engine.run(MASKED, 10, "num-server-rounds=3")
    assert "Final results" in done.stdout + done.stderr, done.stdout + done.stderr
    assert kvib.journal.read(tmp_path / "run" / "run.kvib").table().answered.sum() == 15
    said = masked.stdout + masked.stderr
    distances = [float(d) for d in re.findall(r"MetricRecord: \{'distance': ([0-9.]+)\}", said)]
    assert len(distances) == 3, said
    assert distances[-1] < 1.5  # from √5


def test_the_example_is_deployed_by_its_script(tmp_path):
    """SuperLink, SuperNodes, TLS and keys: what the docs say to type."""
    done = subprocess.run(
        [sys.executable, EXAMPLE / "deploy.py", "--nodes", "2", "--rounds", "2", "--budget", "1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "finished:completed" in done.stdout, said
    assert said.count("kvib: drew 1 clients, 2 nodes online") == 2, said


def test_a_killed_node_a_failing_client_and_a_restarted_server(tmp_path):
    """Plain SuperLink and three SuperNodes; each partition i moves the model by i + 1."""
    folder = tmp_path / "run"
    with Deployment(tmp_path / "home", nodes=3, secure=False) as flower:
        # all three in every round, one of them fails in every second
        run = flower.run(f'rounds=40 budget=3.0 failing=1 timeout=90.0 folder="{folder}"', APP)
        until(lambda: len(rounds(folder)) >= 2)
        first, second = rounds(folder)[:2]
        assert first["cohort"] == [0, 1, 2]
        assert first["x"] == pytest.approx([-14 / 6] * 3)  # Σ λ_i (i + 1), λ = 1/6, 2/6, 3/6
        assert list(second["refused"]) == ["1"]
        assert "error 2" in second["refused"]["1"]

        stop(flower.supernodes[2], signal.SIGKILL)
        killed = len(rounds(folder))
        until(lambda: any("2" in line["refused"] for line in rounds(folder)[killed:]))
        flower.start_supernode(2)  # another node id, the same partition
        back = len(rounds(folder))
        until(
            lambda: any(
                2 in line["cohort"] and "2" not in line["refused"] for line in rounds(folder)[back:]
            )
        )
        last = rounds(folder)[-1]
        assert last["population"] == [0, 1, 2]
        assert last["weights"] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
        assert last["nodes"]["2"] != first["nodes"]["2"]

        # the SuperLink dies, and its ServerApp with it; a new run finds the journal
        stop(flower.superlink, signal.SIGKILL)
        played = rounds(folder)
        flower.start_superlink()
        assert flower.status(run) != "finished:completed"
        flower.run(f'rounds=2 budget=3.0 folder="{folder}"', APP)
        until(lambda: len(rounds(folder)) >= len(played) + 2)
        after = rounds(folder)[len(played) :]
        assert [line["round"] for line in after] == [len(played), len(played) + 1]
        assert all(line["population"] == [0, 1, 2] for line in after)


def test_tls_and_authenticated_nodes_keep_their_identity(tmp_path):
    folder = tmp_path / "run"
    with Deployment(tmp_path / "home", nodes=3) as flower:
        run = flower.run(f'rounds=2 folder="{folder}"', APP)
        assert flower.wait(run, PATIENCE) == "finished:completed"
        stop(flower.superlink, signal.SIGKILL)
        stop(flower.supernodes.pop(1), signal.SIGKILL)
        flower.start_superlink()
        flower.revive_supernode(1)
        run = flower.run(f'rounds=2 folder="{folder}"', APP)
        assert flower.wait(run, PATIENCE) == "finished:completed"
    played = rounds(folder)
    assert [line["round"] for line in played] == [0, 1, 2, 3]
    assert all(line["population"] == [0, 1, 2] for line in played)
    assert len({json.dumps(line["nodes"], sort_keys=True) for line in played}) == 1


def test_a_node_without_a_registered_key_is_not_let_in(tmp_path):
    with Deployment(tmp_path / "home", nodes=1) as flower:
        deploy.node_key(flower.folder, 7)
        flower.start_supernode(7)
        until(lambda: flower.supernodes[7].poll() is not None, 90)
        assert flower.supernodes[0].poll() is None

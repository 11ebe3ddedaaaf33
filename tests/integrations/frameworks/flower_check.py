"""kvib with one version of Flower. Run by tests/integrations/test_frameworks.py.

`tests`: all of tests/integrations/test_flower.py, in process. `simulation FOLDER`: the example on
the simulation engine, that is, on Ray.
"""

import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_ADDRESS": "local"}  # a Ray of its own

import flwr
import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flower_app"
N, K, T = 4, 2, 3


def test() -> int:
    quiet = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not timing"]
    files = [
        ROOT / "tests" / "integrations" / name
        for name in ("test_flower.py", "test_flower_masked.py")
    ]
    return pytest.main([*quiet, *map(str, files)])


def simulate(folder: Path) -> int:
    """What `flwr run` does, whose options differ from version to version."""
    sys.path.insert(0, str(EXAMPLE))
    os.environ["PYTHONPATH"] = f"{EXAMPLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # of Ray
    from flwr.simulation import run_simulation
    from kvib_app import client_app, server_app

    import kvib

    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    changes = {"clients": N, "budget": K, "num-server-rounds": T, "folder": str(folder)}
    config = {**settings["config"], **changes}

    def client(message, context):
        return client_app.app(message, replace(context, run_config=config))

    def server(grid, context):
        return server_app.app(grid, replace(context, run_config=config))

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=N,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    table = kvib.journal.read(folder / "run.kvib").table()
    assert table.size.tolist() == [K] * T, table.size
    assert table.answered.tolist() == [K] * T, table.answered
    return 0


version, what, *rest = sys.argv[1:]
assert flwr.__version__ == version, f"Flower {flwr.__version__} instead of {version}"
assert Path(flwr.__file__).is_relative_to(sys.prefix), f"{flwr.__file__} is of another environment"
sys.exit({"tests": test, "simulation": simulate}[what](*map(Path, rest)))

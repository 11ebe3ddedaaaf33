"""Imports point one way, and the core needs little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "kvib"
FILES = sorted(SOURCE.rglob("*.py"))
RIM = ("sim", "lab", "cli", "integrations")
"""Rooms outside the core; each may import the core, never the other way."""


def imported(path):
    """Full names of all modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_core(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py") not in RIM


@pytest.mark.parametrize("path", [p for p in FILES if in_core(p)], ids=lambda p: p.stem)
def test_the_core_imports_numpy_and_numba_only(path):
    for name in imported(path):
        top = name.split(".")[0]
        assert top in {"kvib", "numpy", "numba"} | set(sys.stdlib_module_names)
        if top == "kvib" and "." in name:
            assert name.split(".")[1] not in RIM


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_is_light_and_silent():
    done = run("import sys, kvib; print(sorted({'numba', 'torch', 'scipy'} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_numpy_alone_suffices():
    """Without numba everything works, and draws the same clients."""
    code = """
import sys
{block}
import numpy as np, kvib
p = kvib.waterfill(np.arange(1, 51), 10)
for procedure in (kvib.pivotal, kvib.systematic, kvib.conditional_poisson, kvib.independent):
    print(procedure(p, np.random.default_rng(3)).ids.tolist())
assert ("numba" in sys.modules and sys.modules["numba"] is not None) != {without}
"""
    compiled = run(code.format(block="", without=False))
    interpreted = run(code.format(block="sys.modules['numba'] = None", without=True))
    assert compiled.stderr == interpreted.stderr == ""
    assert compiled.stdout == interpreted.stdout != ""


def test_no_model_file_is_run_as_a_program():
    """torch unpickles by default in versions that we support, unless it is forbidden."""
    home, loads = SOURCE.parents[1], []
    for folder in ("src", "examples", "experiments", "benchmarks"):
        for path in (home / folder).rglob("*.py"):
            calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
            loads += [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads
    for call in loads:
        assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_library_code_is_silent_and_has_no_global_randomness(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called != "print"
            assert not called.startswith("random.")
            if called.startswith("np.random."):
                legacy = {"np.random.RandomState"} if path.stem == "synthetic" else set()
                assert called in {"np.random.Generator", "np.random.PCG64"} | legacy
        if isinstance(node, ast.Import):
            assert not {"pickle", "random", "logging"} & {alias.name for alias in node.names}

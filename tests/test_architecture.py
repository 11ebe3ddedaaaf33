"""Imports point one way, as the map says, and the core needs little."""

import ast
import re
import subprocess
import sys

import pytest

import kvib
from places import ROOT

SOURCE = ROOT / "src" / "kvib"
FILES = sorted(SOURCE.rglob("*.py"))
RIM = ("sim", "lab", "cli", "integrations")
"""Rooms outside the core; each may import the core, never the other way."""


# The map


def words(cell):
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def rows(page):
    """Cells of the table of rooms."""
    table = page.split("## The rooms")[1].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]


TABLE = rows((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
MAY = {words(name)[0]: set(words(arrows)) for name, _, arrows in TABLE}
"""Rooms that each room may import."""
BASE = set(words(next(holds for name, holds, _ in TABLE if words(name) == ["base"])))
"""Modules of the package's root that everything stands on."""


def module(path):
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


def room(name):
    """The room of a module."""
    parts = name.split(".")
    if len(parts) == 1:
        return "kvib"
    return "base" if parts[1] in BASE else parts[1]


def imported(path):
    """Full names of all that a file imports, also inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


GRAPH = {
    name: {other for other in imported(path) if other in MODULES and other != name}
    for name, path in MODULES.items()
}


def cycle(graph):
    """Some cycle of a graph, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            path.append(node)
            for other in sorted(graph[node]):
                if found := visit(other):
                    return found
            path.pop()
            done.add(node)
        return None

    return next(filter(None, map(visit, sorted(graph))), None)


def test_every_module_is_in_a_room_of_the_map():
    assert {room(name) for name in MODULES} == set(MAY)
    root = {path.stem for path in SOURCE.glob("*.py")}
    assert root == BASE | {"__init__", "names", "recommended"}
    assert len(root) <= 12


def test_every_import_is_an_arrow_of_the_map():
    found = {(room(a), room(b)): (a, b) for a, others in GRAPH.items() for b in others}
    inside = {(name, name) for name in MAY}
    drawn = {(name, other) for name, others in MAY.items() for other in others}
    missing = [f"{a} imports {b}" for arrow, (a, b) in found.items() if arrow not in drawn | inside]
    assert not missing, "the map has no such arrow; put the module elsewhere, or draw the arrow"
    assert not drawn - set(found), "the map has arrows that no import needs"


def test_no_imports_go_in_circles():
    assert cycle(GRAPH) is None
    assert cycle(MAY) is None


def test_a_circle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("folder", [path.name for path in (ROOT / "tests").iterdir()])
def test_tests_lie_in_folders_like_the_rooms(folder):
    if (ROOT / "tests" / folder).is_dir() and not folder.startswith("__"):
        assert folder in {*MAY, "fixtures", "paper"}


def test_the_sampler_is_small():
    """Its methods and those that it shares with a journal; attributes to read are not counted."""
    own = {}
    for kind in reversed(kvib.Sampler.__mro__[:-1]):
        own |= vars(kind)
    methods = [name for name, it in own.items() if callable(it) or isinstance(it, classmethod)]
    assert len(methods) <= 28, methods


# What the core needs


def in_core(path):
    return path.relative_to(SOURCE).parts[0] not in RIM


@pytest.mark.parametrize("path", [p for p in FILES if in_core(p)], ids=module)
def test_the_core_imports_numpy_and_numba_only(path):
    for name in imported(path):
        assert name.split(".")[0] in {"kvib", "numpy", "numba"} | set(sys.stdlib_module_names)


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
    loads = []
    for folder in ("src", "examples", "experiments", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
            loads += [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads
    for call in loads:
        assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]


@pytest.mark.parametrize("path", FILES, ids=module)
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

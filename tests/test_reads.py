"""Underscore names stay in their room, and functions fit on a screen: read from the syntax tree."""

import ast
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
SOURCE = HOME / "src" / "kvib"
FILES = sorted(SOURCE.rglob("*.py"))

PUBLIC = {"_replace", "_asdict", "_fields", "_make"}
"""Documented methods of NamedTuples: the underscore keeps them apart from fields."""

FOREIGN = {
    "_getframe": "sys: the documented way to the line that called",
    "_exit": "os: the documented way to end a process at once",
    "_parameters": "torch: the parameters of one module by name, without those of its parts",
    "_buffers": "torch: the buffers of one module by name, without those of its parts",
    "_conv_forward": "torch: the one step of nn.Conv2d that another convolution replaces",
    "_foreach_add_": "torch: one addition to many tensors, without a public name",
    "_DropoutNd": "torch: the class that all dropouts are of",
    "_LOGGER": "FedLab: what its server handlers write messages to",
}
"""Underscore names of other packages that kvib has to read, with the reason.

An object's own attributes (`self._name`) are looked at too: a class that reads those of a base
class in another room works on that room's privates.
"""

LINES = 50
"""Lines of a body that fit on a screen, without the docstring."""

REASON = "Long:"
"""With this word the docstring of a longer function gives the reason."""


def room(path):
    """The folder of src/kvib that a file lies in; a module of the root is a room of its own."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def private(name):
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined(tree):
    """Names of functions, classes, variables, fields, and attributes that methods set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and is_set(node):
            yield node.attr


def is_set(attribute):
    """Whether a method sets this attribute of its object."""
    return isinstance(attribute.ctx, ast.Store) and ast.unparse(attribute.value) in ("self", "cls")


def read(tree):
    """(line, name) of every underscore name that is taken from an object or a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            named = node.args[1]
            names = [named.value] if isinstance(named, ast.Constant) else []
        else:
            continue
        yield from ((node.lineno, name) for name in names if private(name))


HOMES: dict[str, set[str]] = {}
for each in FILES:
    HOMES.setdefault(room(each), set()).update(defined(ast.parse(each.read_text())))


def strangers(path):
    """Lines at which a file reads an underscore name that its room does not define."""
    allowed = HOMES[room(path)] | set(FOREIGN)
    where = path.relative_to(HOME)
    found = read(ast.parse(path.read_text()))
    return [f"{where}:{line} {name}" for line, name in sorted(found) if name not in allowed]


def length(function):
    """Lines of a body, docstring not counted."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def too_long(path):
    """Functions that fit on no screen and give no reason."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [
        f"{path.relative_to(HOME)}:{f.lineno} {f.name}, {length(f)} lines"
        for f in functions
        if length(f) > LINES and REASON not in (ast.get_docstring(f) or "")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_underscore_names_stay_in_their_room(path):
    assert strangers(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_functions_fit_on_a_screen(path):
    assert too_long(path) == []


if __name__ == "__main__":
    for path in FILES:
        for line in strangers(path) + too_long(path):
            print(line)
    tests = sorted((HOME / "tests").rglob("*.py"))
    names = set().union(*HOMES.values())
    reads = [name for path in tests for _, name in read(ast.parse(path.read_text()))]
    print(sum(name in names for name in reads), "reads of kvib's underscore names in tests")

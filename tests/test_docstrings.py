"""Every public object says what it is, what it takes, and shows it in an example that runs.

The examples run with the rest of the suite (conftest.py): here they only have to be there.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from enum import Enum
from itertools import pairwise
from pathlib import Path

import pytest

import kvib
from kvib import names
from kvib.procedures import Procedure

ROOMS = (
    "kvib",
    "kvib.policies",
    "kvib.procedures",
    "kvib.estimators",
    "kvib.selectors",
    "kvib.journal",
    "kvib.replay",
    "kvib.sim",
    "kvib.integrations.kit",
    "kvib.integrations.flower",
)
"""Packages whose `__all__` is public."""
MODULES = ("kvib.analysis.metrics", "kvib.analysis.theory", "kvib.replay.plan")
"""Modules whose functions and classes without an underscore are public."""

VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text().split())
"""A summary has one of these. A new verb is added to that file."""


def public():
    """(name, object) of everything that users and authors import."""
    found = {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for name in package.__all__:
            found[f"{room}.{name}"] = getattr(package, name)
    for module in map(importlib.import_module, MODULES):
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                found[f"{module.__name__}.{name}"] = value
    seen, once = set(), {}
    for name, value in found.items():
        if id(value) in seen or inspect.ismodule(value):
            continue
        seen.add(id(value))
        if callable(value) or isinstance(value, Procedure):
            once[name] = value
    return once


PUBLIC = public()
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
PROCEDURES = {name: value for name, value in PUBLIC.items() if isinstance(value, Procedure)}


def tree_of(module):
    return ast.parse(inspect.getsource(module))


def documentation(value, name):
    """The docstring; that of a procedure stands after it in its module."""
    if not isinstance(value, Procedure):
        return inspect.cleandoc(value.__doc__ or "")
    short = name.rsplit(".", 1)[-1]
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("kvib.procedures."):
            body = tree_of(module).body
            for node, after in pairwise(body):
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == short:
                    return inspect.cleandoc(ast.literal_eval(after.value))
    return ""


def summary(text):
    return " ".join(text.split("\n\n")[0].split())


def has_verb(sentence):
    words = re.findall(r"[a-z]+", sentence.lower())
    return any(word in VERBS for word in words)


def fields_said(cls):
    """Fields of a class that a string stands after, those of its bases included."""
    said = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("kvib"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for node, after in pairwise(body):
            text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(node, ast.AnnAssign) and text and isinstance(after.value.value, str):
                said.add(node.target.id)
    return said


def arguments(text):
    """What the section Args says of each argument."""
    section = re.search(r"^Args:\n(.*?)(?:\n\S|\Z)", text, re.S | re.M)
    if section is None:
        return {}
    rows = re.split(r"^    (?=\w+: )", section.group(1), flags=re.M)
    pairs = (row.split(":", 1) for row in rows if ":" in row)
    return {name.strip(): " ".join(text.split()) for name, text in pairs}


def parameters(value):
    """Names of what a class or function takes."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return []
    return [
        name
        for name, one in signature.parameters.items()
        if name not in ("self", "cls") and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def methods():
    """(name, function) of the public methods that public classes of kvib define."""
    for name, cls in CLASSES.items():
        for short, value in vars(cls).items():
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not short.startswith("_") and inspect.isfunction(inner):
                yield f"{name}.{short}", inner


METHODS = dict(methods())


def overrides(name):
    """Whether a base class has a method of this name."""
    cls, method = CLASSES[name.rpartition(".")[0]], name.rpartition(".")[2]
    return any(method in vars(base) for base in cls.__mro__[1:] if base.__module__ != "builtins")


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_the_summary_is_a_sentence(name):
    value = PUBLIC.get(name, METHODS.get(name))
    sentence = summary(documentation(value, name))
    assert sentence.endswith((".", "?", ":")), sentence
    assert has_verb(sentence), f"{sentence!r} has no verb"
    assert not re.match(r"(Of|As|The same|Likewise)\b", sentence), sentence


@pytest.mark.parametrize("name", [*CLASSES, *FUNCTIONS, *METHODS])
def test_every_parameter_is_explained(name):
    """A method that overrides one of kvib's takes what that one explains."""
    value = {**PUBLIC, **METHODS}[name]
    if name in METHODS and overrides(name):
        return
    said = arguments(documentation(value, name))
    if inspect.isclass(value):
        if issubclass(value, Exception | Enum):
            return
        for text in fields_said(value):
            said.setdefault(text, "a string after the field.")
    missing = [one for one in parameters(value) if one not in said]
    assert not missing, f"Args lacks {missing}"
    loose = [one for one, text in said.items() if not text.endswith((".", "?")) or len(text) < 8]
    assert not loose, f"no sentence for {loose}"


def needs_example(value):
    """Exceptions and protocols are shown by what raises them, and by what has them."""
    if inspect.isclass(value):
        return not issubclass(value, Exception) and not getattr(value, "_is_protocol", False)
    return True


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if needs_example(value)])
def test_there_is_an_example(name):
    assert ">>> " in documentation(PUBLIC[name], name)


@pytest.mark.parametrize("name", [*names.POLICIES, *names.PROCEDURES])
def test_policies_and_procedures_have_all_parts(name):
    """Two sentences of intuition or more, a formula, and a reference."""
    text = documentation(PUBLIC[f"kvib.{name}"], name)
    head = text.split("Args:")[0].split("Examples:")[0]
    assert len(re.findall(r"[.!?](?:\s|$)", head)) > 2
    assert re.search(r"[=∝≥≤<Σ√…]", head)
    assert "References:" in text


def test_one_definition_of_each_public_name():
    """A name that users import is one thing, and no class has the name of another."""
    homes = {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for name in package.__all__:
            value = getattr(package, name)
            if not inspect.ismodule(value):
                homes.setdefault(name, set()).add(id(value))
    assert not [name for name, objects in homes.items() if len(objects) > 1]
    defined = {}
    for path in sorted(Path(kvib.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(path.name)
            is_alias = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if is_alias and re.fullmatch(r"[A-Z][a-z]\w*", node.targets[0].id):
                defined.setdefault(node.targets[0].id, []).append(path.name)
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}

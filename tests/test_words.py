"""One word, one meaning: the glossary of docs/architecture.md, held for src, docs and help texts.

Prose is what docstrings, comments, pages and help texts say. Messages of errors are not looked at.
"""

import ast
import re
from pathlib import Path

import pytest

import prose

HOME = Path(__file__).parents[1]
SOURCE = sorted((HOME / "src").rglob("*.py"))
PAGES = [
    *sorted((HOME / "docs").rglob("*.md")),
    HOME / "README.md",
    HOME / "CONTRIBUTING.md",
    HOME / "experiments" / "README.md",
]

BANNED = {
    r"\blikewise\b": "say what is the same",
    r"\bso many\b": "this many",
    r"\btold\b": "given, or a noun",
    r"\b(nobody|everybody|somebody|anybody)\b": "no client, every client, a client",
    r"\b(urn|resting|tally|ledger)s?\b": "see the glossary",
    r"(?:^|[.!?:]\s+)Of\b": "name the noun: not «Of nobody yet», but «An empty index»",
    r"\b(un)?heard\b": "answered, did not answer",
}
"""Words that a reader may have to read twice, and what to write."""

NAMES = {
    "told": "a noun: what it is",
    "said": "a noun: what it is",
    "heard": "answered",
    "unheard": "unanswered",
    "came": "answered, present or arrived",
    "gone": "departed",
    "away": "offline or absent",
    "usual": "typical or default",
    "chances": "expected, or design",
    "reach": "rates",
    "urn": "eligible",
    "tally": "a noun: what it sums",
    "ledger": "open_rounds",
    "resting": "cool_down",
}
"""Words that identifiers do not contain, and those that stand for the same thing."""


def written(path: Path) -> str:
    """The prose of a page or module."""
    text = path.read_text(encoding="utf-8")
    return prose.page(text) if path.suffix == ".md" else prose.module(text)


def around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(match.start() - 40, 0) : match.end() + 40].split())


def short(path: Path) -> str:
    return str(path.relative_to(HOME))


@pytest.mark.parametrize("path", [*SOURCE, *PAGES], ids=short)
def test_words_that_are_read_once(path):
    text = written(path)
    found = [
        f"{around(text, match)!r}: {better}"
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern, text, re.M | (0 if "Of" in pattern else re.I))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [*SOURCE, *PAGES], ids=short)
def test_a_sentence_does_not_join_three_facts(path):
    found = [one for one in prose.sentences(written(path)) if one.count(";") > 1]
    assert not found, "\n".join(found)


def identifiers(tree: ast.AST) -> set[str]:
    """Names that a module defines: functions, classes, arguments, variables, attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


@pytest.mark.parametrize("path", SOURCE, ids=short)
def test_names_that_explain_themselves(path):
    found = {
        f"{name}: {NAMES[word]}"
        for name in identifiers(ast.parse(path.read_text(encoding="utf-8")))
        for word in name.lower().strip("_").split("_")
        if word in NAMES
    }
    assert not found, sorted(found)


LONGEST = 60
"""Characters that the title of a test may have."""
TESTS = sorted((HOME / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", TESTS, ids=short)
def test_titles_of_tests_are_short(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    titles = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    titles = [name for name in titles if name.startswith("test_")]
    long = [name for name in titles if len(name) > LONGEST]
    words = {"told", "nobody", "everybody", "somebody", "likewise", "heard"}
    assert not long
    assert not [name for name in titles if words & set(name.split("_"))]

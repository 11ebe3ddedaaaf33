"""One word, one meaning: the glossary of docs/architecture.md, held for src, docs and help texts.

Prose is what docstrings, comments, pages and help texts say. Messages of errors are not looked at.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

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
    r"\bun?heard\b": "answered, did not answer",
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


def sentences(text: str) -> list[str]:
    """The sentences of some prose, without code, formulas in backticks and tables."""
    text = re.sub(r"```.*?```", " ", text, flags=re.S)
    text = re.sub(r"`[^`]*`", "it", text)
    text = "\n".join(row for row in text.splitlines() if not re.match(r"\s*(>>>|\.\.\.|\|)", row))
    return [" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", text)]


def prose(path: Path) -> str:
    """Docstrings, strings after fields and comments of a module; the whole of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        rows = re.sub(r"```.*?```", " ", text, flags=re.S)
        return re.sub(r"`[^`]*`", "it", rows)
    tree, parts = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                rows = node.value.value.splitlines()
                kept = [row for row in rows if not re.match(r"\s*(>>>|\.\.\.)", row)]
                parts.append(re.sub(r"`[^`]*`", "it", "\n".join(kept)))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n\n".join(parts)


def around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(match.start() - 40, 0) : match.end() + 40].split())


def short(path: Path) -> str:
    return str(path.relative_to(HOME))


@pytest.mark.parametrize("path", [*SOURCE, *PAGES], ids=short)
def test_words_that_are_read_once(path):
    text = prose(path)
    found = [
        f"{around(text, match)!r}: {better}"
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern, text, re.M | (0 if "Of" in pattern else re.I))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [*SOURCE, *PAGES], ids=short)
def test_a_sentence_does_not_join_three_facts(path):
    found = [one for one in sentences(prose(path)) if one.count(";") > 1]
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

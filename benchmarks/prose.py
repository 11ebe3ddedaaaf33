"""Prose of a tree: what docstrings, comments and pages say, without their code."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

CODE = re.compile(r"\s*(>>>|\.\.\.)")
"""How a line of an example begins."""


def _plain(text: str) -> str:
    """The text with a noun in place of names and formulas in backticks."""
    return re.sub(r"`[^`]*`", "it", text)


def page(text: str) -> str:
    """The prose of a Markdown page, its tables included."""
    return _plain(re.sub(r"```.*?```", " ", text, flags=re.S))


def docstrings(text: str) -> list[str]:
    """The docstrings of a module, and the strings after its fields and constants."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            rows = str(node.value.value).splitlines()
            found.append(_plain("\n".join(row for row in rows if not CODE.match(row))))
    return found


def comments(text: str) -> Iterator[str]:
    """The comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield _plain(token.string.lstrip("# "))


def module(text: str) -> str:
    """The prose of a Python module."""
    return "\n\n".join([*docstrings(text), *comments(text)])


def sentences(prose: str) -> list[str]:
    """The sentences of some prose; rows of tables are left out."""
    rows = "\n".join(row for row in prose.splitlines() if not row.lstrip().startswith("|"))
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", rows)
    return [" ".join(part.split()) for part in parts if part.strip()]

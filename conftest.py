"""Examples in README, docs and docstrings run as tests."""

import ast
import os
from collections.abc import Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from tempfile import TemporaryDirectory

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser


class Strings(PythonDocStringDocument):
    """A module whose examples stand in docstrings and in the strings after its names."""

    @staticmethod
    def extract_docstrings(python_source_code: str) -> Iterator[tuple[int, int, str]]:
        rows = python_source_code.splitlines(keepends=True)
        for node in ast.walk(ast.parse(python_source_code)):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            if isinstance(text := node.value.value, str):
                start = sum(map(len, rows[: node.lineno - 1])) + node.col_offset
                end = sum(map(len, rows[: (node.end_lineno or 1) - 1])) + (node.end_col_offset or 0)
                yield start + 3, end - 3, text


doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)


def elsewhere(namespace: dict[str, object]) -> None:
    """Examples that write files write them into a folder of their own."""
    folder = TemporaryDirectory()
    namespace["_left"] = (folder, os.getcwd())
    os.chdir(folder.name)


def back(namespace: dict[str, object]) -> None:
    folder, home = namespace["_left"]
    os.chdir(home)
    folder.cleanup()


markdown = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["*.md"], setup=elsewhere, teardown=back
)
docstrings = Sybil(
    parsers=[doctest],
    patterns=["*.py"],
    path="src",
    document_types={".py": Strings},
)

pytest_collect_file = (markdown + docstrings).pytest()

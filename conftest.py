"""Examples in README, docs and docstrings run as tests."""

import os
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from tempfile import TemporaryDirectory

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

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
    document_types={".py": PythonDocStringDocument},
)

pytest_collect_file = (markdown + docstrings).pytest()

"""Examples in README, docs and docstrings run as tests."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

doctest = DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)

markdown = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.md"])
docstrings = Sybil(
    parsers=[doctest],
    patterns=["*.py"],
    path="src",
    document_types={".py": PythonDocStringDocument},
)

pytest_collect_file = (markdown + docstrings).pytest()

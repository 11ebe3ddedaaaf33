"""Loads policies, selectors and estimators of the user from "file.py:name"."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvib.lab.configuration import one_of


def found(table: Mapping[str, Any], name: str, key: str) -> Any:
    """The entry of a table, or the object that "file.py:name" names. The file is executed.

    Args:
        table: The names that kvib knows.
        name: The name of an entry, or "file.py:name".
        key: The key of the experiment file, for error messages.
    """
    if ":" not in name:
        one_of(table, name, key)
        return table[name]
    file, attribute = name.rsplit(":", 1)
    if not Path(file).exists():
        raise ValueError(f"{key}: there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"kvib.own.{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{key}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{key}: {file} cannot be imported: {in_a_line(error)}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{key}: {file} has no {attribute}")
    return getattr(module, attribute)


def in_a_line(error: Exception) -> str:
    """An exception of the user's code as one line."""
    return f"{type(error).__name__}: {error}"

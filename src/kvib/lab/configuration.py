"""Reads tables of a file into frozen dataclasses. Errors name unknown, missing or mistyped keys."""

import difflib
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def one_of(choices: Any, given: str, key: str) -> None:
    """Raise ValueError unless the word is one of the choices.

    Args:
        choices: The words that are allowed.
        given: The word.
        key: The key or option that holds the word, for the message.
    """
    if given not in choices:
        near = difflib.get_close_matches(given, list(choices), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{key}: {given!r} is not one of {', '.join(choices)}{meant}")


def change(table: dict[str, Any], words: str) -> None:
    """Apply a change such as "rounds=50" or "local.batch_size=10" to a table."""
    key, equals, value = words.partition("=")
    if not equals:
        raise ValueError(f"--set {words}: write it as key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string
    *parents, last = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set {words}: {name} has no keys of its own")
    table[last] = parsed


def filled(cls: Callable[..., Made], table: Any, where: str = "") -> Made:
    """Make a frozen configuration from a table.

    Args:
        cls: The dataclass to make.
        table: The table of a file.
        where: The table's place in the file, with a dot behind it.
    """
    known: Any = fields(cls)  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    if not isinstance(table, dict):
        raise ValueError(f"{where.rstrip('.')} must be a table, not {table!r}")
    for key in table:
        one_of([f.name for f in known], key, f"{where or 'experiment.'}{key}")
    for f in known:
        if f.name not in table and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{where}{f.name} is missing")
    return cls(**{k: typed(hints[k], value, f"{where}{k}") for k, value in table.items()})


def typed(kind: Any, value: Any, key: str) -> Any:
    """Convert a value to the type of its field. Raise ValueError if it does not fit.

    Args:
        kind: The type of the field.
        value: The value in the file.
        key: The key in the file, for the message.
    """
    if is_dataclass(kind):
        return filled(kind, value, f"{key}.")  # type: ignore[arg-type]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        fits = [k for k in inner if k is not NoneType]
        if len(fits) > 1:  # a table, or a plain value
            fits = [k for k in fits if is_dataclass(k) == isinstance(value, dict)]
        if len(fits) == 1:
            return typed(fits[0], value, key)
    wanted = origin or kind
    if wanted in (Any, UnionType) or not isinstance(wanted, type):
        return value  # its class checks it
    if wanted is float and type(value) is int:
        value = float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        names = {list: "a list", dict: "a table"}
        expected = names.get(wanted, f"of type {wanted.__name__}")
        raise ValueError(f"{key} must be {expected}, not {value!r}")
    if wanted is list and inner:
        return [typed(inner[0], item, f"{key}[{i}]") for i, item in enumerate(value)]
    if wanted is dict and inner:
        return {name: typed(inner[1], item, f"{key}.{name}") for name, item in value.items()}
    return value

"""The one table where names become objects."""

import ast
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, cast

from kvib import policies, procedures
from kvib.estimators import difference, guard, memory

POLICIES: dict[str, type[policies.Policy[Any]]] = {
    name: policy for name, policy in vars(policies.catalogue).items() if not name.startswith("_")
}

PROCEDURES: dict[str, procedures.Procedure] = {
    name: procedure
    for name, procedure in vars(procedures.catalogue).items()
    if not name.startswith("_")
}

CONFIGURATIONS: dict[str, Callable[..., Any]] = {
    cls.__name__: cls
    for cls in (
        difference.Difference,
        guard.Guard,
        memory.LastUpdates,
        memory.GroupMeans,
        memory.LargestEntries,
    )
}
"""What else a state file may name."""


def chosen(table: Mapping[str, Any], name: str, kind: str) -> Any:
    """An entry of a table by its name, whatever its case."""
    lower = {known.lower(): value for known, value in table.items()}
    if name.lower() not in lower:
        raise ValueError(f"{kind} {name!r} is not one of {', '.join(table)}{_meant(table, name)}")
    return lower[name.lower()]


def policy(words: str) -> policies.Policy[Any]:
    """One of kvib's policies as its repr says it: "Forecast", "KVib(rounds=500)"."""
    return cast(policies.Policy[Any], made(POLICIES, words, "policy"))


def made(table: Mapping[str, Any], words: str, kind: str) -> Any:
    """A frozen configuration as its repr says it, of the kinds in a table."""
    try:
        said = ast.parse(words.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _unreadable(words, kind) from error
    call = said if isinstance(said, ast.Call) else ast.Call(said, [], [])
    if not isinstance(call.func, ast.Name) or call.args:
        raise _unreadable(words, kind)
    wanted = chosen(table, call.func.id, kind)
    options = dict(_option(wanted, word, f"{kind} {words!r}") for word in call.keywords)
    try:
        return wanted(**options)
    except TypeError as error:
        raise ValueError(f"{kind} {words!r}: {error}") from error


def as_policy(given: policies.Policy[Any] | str) -> policies.Policy[Any]:
    """A policy, or the one that a text names."""
    return policy(given) if isinstance(given, str) else given


def as_procedure(given: procedures.Procedure | str | None) -> procedures.Procedure | None:
    """A procedure, or the one that a text names; None: the policy's own."""
    if not isinstance(given, str):
        return given
    return cast(procedures.Procedure, chosen(PROCEDURES, given, "procedure"))


def _option(made: Any, word: ast.keyword, words: str) -> tuple[str, Any]:
    """A name and a number, of those that this policy or rule takes."""
    known, name = [field.name for field in fields(made)], str(word.arg)
    if name not in known:
        only = f"only {', '.join(known)}{_meant(known, name)}" if known else "it has none"
        raise ValueError(f"{words}: {made.__name__} has no option {name}, {only}")
    try:
        return name, ast.literal_eval(word.value)
    except (TypeError, ValueError) as error:
        value = ast.unparse(word.value)
        raise ValueError(f"{words}: {name}={value} is not a number; give one") from error


def _unreadable(words: str, kind: str) -> ValueError:
    return ValueError(f"{kind} {words!r} cannot be read: write a name, or Name(option=number, …)")


def _meant(known: Iterable[str], given: str) -> str:
    """What was probably meant, as the end of a line."""
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), lower, 1)
    return f"; did you mean {lower[near[0]]}?" if near else ""

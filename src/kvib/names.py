"""The tables in which names become policies, procedures and other configurations."""

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
"""The policies of kvib by name."""

PROCEDURES: dict[str, procedures.Procedure] = {
    name: procedure
    for name, procedure in vars(procedures.catalogue).items()
    if not name.startswith("_")
}
"""The procedures of kvib by name."""

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
"""The other classes that a state file may name."""


def chosen(table: Mapping[str, Any], name: str, kind: str) -> Any:
    """The entry of a table with this name, in upper or lower case. `kind` is for errors."""
    lower = {entry.lower(): value for entry, value in table.items()}
    if name.lower() not in lower:
        raise ValueError(f"{kind} {name!r} is not one of {', '.join(table)}{_meant(table, name)}")
    return lower[name.lower()]


def policy(words: str) -> policies.Policy[Any]:
    """The policy that a text describes as its repr does: "Forecast", "KVib(rounds=500)"."""
    return cast(policies.Policy[Any], made(POLICIES, words, "policy"))


def made(table: Mapping[str, Any], words: str, kind: str) -> Any:
    """The configuration that a text describes as its repr does, of a class in a table."""
    try:
        expression = ast.parse(words.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _unreadable(words, kind) from error
    call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
    if not isinstance(call.func, ast.Name) or call.args:
        raise _unreadable(words, kind)
    cls = chosen(table, call.func.id, kind)
    options = dict(_option(cls, word, f"{kind} {words!r}") for word in call.keywords)
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"{kind} {words!r}: {error}") from error


def as_policy(given: policies.Policy[Any] | str) -> policies.Policy[Any]:
    """A policy as it is given, or the policy that a text describes."""
    return policy(given) if isinstance(given, str) else given


def as_procedure(given: procedures.Procedure | str | None) -> procedures.Procedure | None:
    """A procedure as it is given, or the procedure that a text names; None stays None."""
    if not isinstance(given, str):
        return given
    return cast(procedures.Procedure, chosen(PROCEDURES, given, "procedure"))


def _option(cls: Any, word: ast.keyword, words: str) -> tuple[str, Any]:
    """The name and the value of one option of this class. `words` is for errors."""
    options, name = [field.name for field in fields(cls)], str(word.arg)
    if name not in options:
        only = f"only {', '.join(options)}{_meant(options, name)}" if options else "it has none"
        raise ValueError(f"{words}: {cls.__name__} has no option {name}, {only}")
    try:
        return name, ast.literal_eval(word.value)
    except (TypeError, ValueError) as error:
        value = ast.unparse(word.value)
        raise ValueError(f"{words}: {name}={value} is not a number; give one") from error


def _unreadable(words: str, kind: str) -> ValueError:
    """The error for a text that is not a name with options."""
    return ValueError(f"{kind} {words!r} cannot be read: write a name, or Name(option=number, …)")


def _meant(names: Iterable[str], wrong: str) -> str:
    """The end of an error that suggests the name most like the wrong one, if there is one."""
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(wrong.lower(), lower, 1)
    return f"; did you mean {lower[near[0]]}?" if near else ""

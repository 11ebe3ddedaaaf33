"""The options that a journal was begun with, and whether a later call agrees with them."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from kvib.checks import checked_weights
from kvib.journal.switches import Description, Switch, last_change
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler.describing import describe_policy
from kvib.sampler.sampler import Sampler
from kvib.sampler.switching import Learned, Way

SWITCHED = ("policy", "procedure")
"""Options that a running journal can change."""
Options = Mapping[str, Any]
"""Options of a sampler, by name."""


def begun(given: Options, defaults: Options) -> dict[str, Any]:
    """The entries by which a journal remembers the call that begins it.

    "begun" holds the meaning of every option. "given" holds the options as the user worded them,
    and "usual" those that the called function added.

    Args:
        given: Options that the user gave.
        defaults: Options that the called function adds at present.
    """
    everything = {**defaults, **given}
    meaning = _meaning(everything)
    words = {name: _words(meaning[name], value) for name, value in everything.items()}
    return {
        "begun": meaning,
        "given": {name: words[name] for name in given},
        "usual": {name: words[name] for name in defaults if name not in given},
    }


def switched(about: Description, way: Way, round: int, learned: Learned) -> dict[str, Any]:
    """The entries that change in a journal once another policy has taken over.

    Options that a function added stay listed as added, so that the same call of that function
    still opens the journal.

    Args:
        about: The entries of the file before the switch.
        way: The new policy with its procedure and guard.
        round: The first round that the new policy draws.
        learned: The numbers of past rounds that taught the policy and that could not.
    """
    meaning = {name: _plain(value) for name, value in way._asdict().items()}
    names = repr(way.policy), way.procedure.name
    switch = Switch(round, about["policy"], about["procedure"], *names, *learned)
    entries = {
        **dict(zip(SWITCHED, names, strict=True)),
        "own": describe_policy(way.policy) is None,
        "begun": about["begun"] | meaning,
        "switches": [*about.get("switches", []), switch._asdict()],
    }
    if "given" in about:  # version 1 kept the meaning only
        words = {name: _words(meaning[name], value) for name, value in way._asdict().items()}
        entries["given"] = about["given"] | words
    return entries


def check(path: Path, about: Description, given: Options, defaults: Options) -> None:
    """Refuse a call that does not agree with the call that began a journal.

    A call agrees if it means the same or is worded the same. Meaning and wording differ where a
    default has changed in between. Then the journal goes on with the values that it was begun with.

    Args:
        path: The file, for the error message.
        about: The entries of the file.
        given: Options that the user gives now.
        defaults: Options that the called function adds now.
    """
    added = about.get("usual", defaults)  # version 1 did not separate given and added options
    compared = {name: value for name, value in defaults.items() if name not in added} | dict(given)
    now = _meaning(compared)
    newer = _meaning({})  # defaults of options that the file is too old to have
    for name in sorted(compared, key=_rank):
        value = compared[name]
        then = about["begun"].get(name, newer.get(name))
        if not (_same(then, now[name], value) or _same_words(about, name, now[name], value)):
            raise _differs(path, about, name, then, now[name])


def _same(then: Any, now: Any, value: Any) -> bool:
    """Whether an option means now what it meant then."""
    if not (_is_configuration(then) and _is_configuration(now)):
        return bool(then == now)
    before = _defaults(value) | then["fields"]
    same = all(field in before and before[field] == new for field, new in now["fields"].items())
    return same and bool(then["name"] == now["name"])


def _same_words(about: Description, name: str, now: Any, value: Any) -> bool:
    """Whether an option is worded now as it was in the call that began the journal."""
    words = _words(now, value)
    if "given" in about:
        return bool({**about["usual"], **about["given"]}.get(name) == words)
    then = about["begun"].get(name)  # version 1 kept the meaning only
    if not (_is_configuration(then) and _is_configuration(words)):
        return False
    return bool(then["name"] == words["name"] and words["fields"].items() <= then["fields"].items())


def _meaning(given: Options) -> dict[str, Any]:
    """The options that were given and the defaults of `Sampler`, as JSON can hold them."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Sampler).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    entries = defaults | dict(given)
    if "weights" in entries:
        entries["weights"] = checked_weights(entries["weights"])
    if entries["keys"] is not None:  # 1 and "1" are two clients
        entries["keys"] = np.frombuffer(json.dumps(entries["keys"]).encode(), np.uint8)
    if entries["procedure"] is None and "policy" in entries:
        entries["procedure"] = entries["policy"].procedure
    return {name: _plain(value) for name, value in entries.items()}


def _plain(value: Any) -> Any:
    """An option as JSON: numbers as they are, objects by name and fields, arrays by their hash."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Procedure):
        return value.name
    if is_dataclass(value) or isinstance(value, Policy):
        parts = {name: _plain(part) for name, part in vars(value).items()}
        return {"name": type(value).__name__, "fields": parts}
    array = np.asarray(value)
    array = array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return array.item() if array.ndim == 0 else blake2b(array.tobytes()).hexdigest()


def _words(plain: Any, value: Any) -> Any:
    """An option as the user worded it: without the fields that have their default values.

    Args:
        plain: What `_plain` made of the option.
        value: The option itself.
    """
    if not _is_configuration(plain):
        return plain
    defaults = _defaults(value)
    parts = {k: v for k, v in plain["fields"].items() if k not in defaults or defaults[k] != v}
    return {"name": plain["name"], "fields": parts}


def _defaults(value: Any) -> dict[str, Any]:
    """The default values of the fields of a configuration."""
    if not is_dataclass(value):
        return {}
    return {f.name: _plain(f.default) for f in fields(value) if f.default is not MISSING}


def _is_configuration(plain: Any) -> bool:
    """Whether `_plain` made this of an object with fields, such as a policy or a guard."""
    return isinstance(plain, dict)


def _rank(name: str) -> int:
    """The place of an option in the comparison. The policy is first: others may follow from it."""
    return SWITCHED.index(name) if name in SWITCHED else len(SWITCHED)


def _differs(path: Path, about: Description, name: str, then: Any, now: Any) -> ValueError:
    """The error for an option that differs from that of the journal."""
    arrays = isinstance(now, str) and name not in SWITCHED
    other = f"other {name}" if arrays else f"{name} {_shown(then)}, not {_shown(now)}"
    what, way = f"was begun with {other}", ""
    if name in SWITCHED:
        way = (
            "change it with kvib.journalled(path).switch(…), or switch=True of a strategy, which "
            "learns from past rounds, "
        )
        change = last_change(about, name)
        if change is not None:
            before = getattr(change, f"{name}_before")
            what = f"was switched from {name} {before} before round {change.round}: it has {other}"
    return ValueError(f"{path} {what}; leave it out to go on as before, {way}or begin another file")


def _shown(plain: Any) -> str:
    """An option as error messages write it."""
    if not _is_configuration(plain):
        return str(plain)
    parts = ", ".join(f"{name}={_shown(part)}" for name, part in plain["fields"].items())
    return f"{plain['name']}({parts})"

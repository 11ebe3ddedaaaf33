"""What a journal was begun with, and whether a later call says the same."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from kvib.checks import checked_weights
from kvib.journal.switches import Switch, last_change
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler.describing import describe_policy
from kvib.sampler.sampler import Sampler
from kvib.sampler.switching import Learned, Way

SWITCHED = ("policy", "procedure")
"""Options that a running journal can change."""
Options = Mapping[str, Any]
"""Arguments by name."""


def begun(given: Options, defaults: Options) -> dict[str, Any]:
    """What a journal says of the call that begins it.

    Args:
        given: by the user.
        usual: what the function that was called adds, today.
    """
    everything = {**defaults, **given}
    meaning = _meaning(everything)
    words = {name: _words(meaning[name], value) for name, value in everything.items()}
    return {
        "begun": meaning,
        "given": {name: words[name] for name in given},
        "usual": {name: words[name] for name in defaults if name not in given},
    }


def switched(about: Options, way: Way, round: int, learned: Learned) -> dict[str, Any]:
    """What a journal says of itself once another policy has taken over.

    Options that a function added stay listed as such, so that the same call of it goes on.

    Args:
        about: what it said before.
        way: the new policy and procedure.
        round: the first that is left to it.
        learned: what it knows of the rounds before.
    """
    meaning = {name: _plain(value) for name, value in way._asdict().items()}
    names = repr(way.policy), way.procedure.name
    switch = Switch(round, about["policy"], about["procedure"], *names, *learned)
    said = {
        **dict(zip(SWITCHED, names, strict=True)),
        "own": describe_policy(way.policy) is None,
        "begun": about["begun"] | meaning,
        "switches": [*about.get("switches", []), switch._asdict()],
    }
    if "given" in about:  # version 1 kept the meaning only
        words = {name: _words(meaning[name], value) for name, value in way._asdict().items()}
        said["given"] = about["given"] | words
    return said


def check(path: Path, about: Options, given: Options, defaults: Options) -> None:
    """Refuse a call that does not agree with what a journal says of the one that began it.

    A call agrees if it means the same or is worded the same. The two differ where a default has
    changed in between; the journal goes on with the values that it was begun with.
    """
    added = about.get("usual", defaults)  # version 1 did not keep them apart
    compared = {name: value for name, value in defaults.items() if name not in added} | dict(given)
    now = _meaning(compared)
    unsaid = _meaning({})  # an option that is younger than the file
    for name in sorted(compared, key=_rank):
        value = compared[name]
        then = about["begun"].get(name, unsaid.get(name))
        if not (_same(then, now[name], value) or _same_words(about, name, now[name], value)):
            raise _differs(path, about, name, then, now[name])


def _same(then: Any, now: Any, value: Any) -> bool:
    if not (_is_configuration(then) and _is_configuration(now)):
        return bool(then == now)
    known = _defaults(value) | then["fields"]
    same = all(field in known and known[field] == new for field, new in now["fields"].items())
    return same and bool(then["name"] == now["name"])


def _same_words(about: Options, name: str, now: Any, value: Any) -> bool:
    words = _words(now, value)
    if "given" in about:
        return bool({**about["usual"], **about["given"]}.get(name) == words)
    then = about["begun"].get(name)  # version 1 kept the meaning only
    if not (_is_configuration(then) and _is_configuration(words)):
        return False
    return bool(then["name"] == words["name"] and words["fields"].items() <= then["fields"].items())


def _meaning(given: Options) -> dict[str, Any]:
    """What was given and what goes without saying, as JSON can say it."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Sampler).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    said = defaults | dict(given)
    if "weights" in said:
        said["weights"] = checked_weights(said["weights"])
    if said["keys"] is not None:  # 1 and "1" are two clients
        said["keys"] = np.frombuffer(json.dumps(said["keys"]).encode(), np.uint8)
    if said["procedure"] is None and "policy" in said:
        said["procedure"] = said["policy"].procedure
    return {name: _plain(value) for name, value in said.items()}


def _plain(value: Any) -> Any:
    """Numbers as they are, configurations by name and fields, arrays by their hash."""
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
    """The same without the fields that have their default values."""
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
    return isinstance(plain, dict)


def _rank(name: str) -> int:
    """Other options may follow from the policy: it is compared first."""
    return SWITCHED.index(name) if name in SWITCHED else len(SWITCHED)


def _differs(path: Path, about: Options, name: str, then: Any, now: Any) -> ValueError:
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
    if not _is_configuration(plain):
        return str(plain)
    parts = ", ".join(f"{name}={_shown(part)}" for name, part in plain["fields"].items())
    return f"{plain['name']}({parts})"

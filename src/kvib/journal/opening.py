"""A sampler from its file, begun there or continued."""

import inspect
import json
import os
from contextlib import closing
from dataclasses import is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib import saving, storage
from kvib.checks import checked_weights
from kvib.journal.access import Lock
from kvib.journal.file import JournalFile, create
from kvib.journal.sampler import Journalled
from kvib.policies import Policy
from kvib.population import listed
from kvib.procedures import Procedure
from kvib.sampler import Sampler


def journalled(
    path: str | os.PathLike[str],
    policy: Policy[Any] | None = None,
    weights: ArrayLike | None = None,
    budget: float | None = None,
    procedure: Procedure | None = None,
    *,
    snapshot_every: int | None = None,
    keep: int | None = None,
    **options: Any,
) -> Journalled:
    """A sampler that lives in a file: begun there, or continued where the last process stopped.

    Examples:
        >>> import tempfile, kvib
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/run.kvib"
        >>> sampler = kvib.journalled(path, kvib.KVib(), weights=[10, 20, 30, 40], budget=2)
        >>> cohort = sampler.draw()                     # durable; now the process may die
        >>> sampler.close()
        >>> sampler = kvib.journalled(path)
        >>> [cohort] = sampler.outstanding()            # drawn, not heard of
        >>> sampler.update(cohort, [0.5] * len(cohort))
        >>> sampler.close(); folder.cleanup()

    Args:
        path: of the file. One that exists is continued; what is given must agree with it then.
        policy: as for `Sampler`; to continue, needed only if it is your own.
        weights: likewise, not needed to continue.
        budget: likewise.
        procedure: likewise.
        snapshot_every: rounds; by default after one second of work, or five times what the last
            snapshot took if that is more.
        keep: details of so many last rounds at least; by default of all.
        options: as for `Sampler`.
    """
    if options.get("estimator") is not None:
        raise ValueError(
            "a difference estimator remembers whole updates, and a journal has their norms only; "
            "leave it out, or keep the state yourself: kvib.Sampler(…, estimator=…).save(path)"
        )
    _check_count("snapshot_every", snapshot_every)
    _check_count("keep", keep)
    given = {"policy": policy, "weights": weights, "budget": budget, "procedure": procedure}
    given = {name: value for name, value in given.items() if value is not None} | options
    if given.get("keys") is not None:
        given["keys"] = listed(given["keys"])
    home = Path(os.path.realpath(path))
    missing = {"policy", "weights", "budget"} - set(given)
    if missing and not home.exists():
        raise FileNotFoundError(
            f"there is no journal {home} to continue; to begin one, give also "
            f"{', '.join(sorted(missing))}"
        )
    if not home.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {home.parent} for the journal {home.name}; make it first"
        )
    if home.exists():
        JournalFile(home).close()  # a foreign file gets no lock beside it
    held = Lock(home)
    try:
        if not home.exists():
            _begin(home, given, snapshot_every, keep)
        sampler = _continued(home, given)
        changed = {"snapshot_every": snapshot_every, "keep": keep}
        changed = {name: value for name, value in changed.items() if value is not None}
        sampler._file = JournalFile(home, write=True)
        if any(sampler._file.about[name] != value for name, value in changed.items()):
            with sampler._file.reading():
                sampler._file.say(**changed)
        sampler._held = held
        return sampler
    except BaseException:
        held.release()
        raise


def _begin(home: Path, given: dict[str, Any], every: int | None, keep: int | None) -> None:
    sampler = Sampler(**given)
    about = {
        "begun": _said(given),
        "policy": repr(sampler.policy),
        "procedure": sampler.procedure.name,
        "budget": sampler.budget,
        "seed": sampler.seed,
        "token": sampler._ledger.token,
        "own": storage.describe_policy(sampler.policy) is None,
        "snapshot_every": every,
        "keep": keep,
        "snapshot": 0,
        "removed": 0,
        "arrays": {},
    }
    create(home, {"now": sampler.packed(), "begun": {"weights": sampler.weights}}, about)


def _continued(home: Path, given: dict[str, Any]) -> Journalled:
    """The sampler as of the last event; the file is only read."""
    with closing(JournalFile(home)) as file:
        own = file.about["own"]
        if own and "policy" not in given:
            raise ValueError(
                f"{home} was begun with a policy of your own, {file.about['policy']}; give it: "
                "kvib.journalled(path, policy=…)"
            )
        _check_agreement(file, given)
        arrays, weights = file.arrays("now"), file.array("begun", "weights")
        about = storage.about(arrays["header"], "sampler")
        policy = given["policy"] if own else None
        sampler = saving.restored(Journalled, about, arrays, policy, given.get("procedure"))
        if given.get("policy", sampler.policy) != sampler.policy:
            raise _differs(file, "policy", sampler.policy, given["policy"])
        same = np.array_equal(weights, sampler.weights)  # then kept once
        sampler._start(file, sampler.weights if same else weights)
        for event in file.events_after(file.about["snapshot"]):
            sampler._replay(event)
    return sampler


def _check_agreement(file: JournalFile, given: dict[str, Any]) -> None:
    begun, now = file.about["begun"], _said(given)
    for name in given:
        if name == "policy" and not file.about["own"]:
            continue  # as objects, since a later kvib may have given it another field
        if name not in begun or begun[name] != now[name]:
            raise _differs(file, name, begun.get(name), now[name])


def _differs(file: JournalFile, name: str, then: Any, now: Any) -> ValueError:
    arrays = isinstance(now, str) and name != "procedure"
    other = f"other {name}" if arrays else f"{name} {then}, not {now}"
    return ValueError(
        f"{file.path} was begun with {other}; leave it out to go on as before, or begin another "
        "file"
    )


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """What was given and what goes without saying, to be compared when it is given again."""
    usual = {
        name: parameter.default
        for name, parameter in inspect.signature(Sampler).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    said = usual | given
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
        fields = {name: _plain(part) for name, part in vars(value).items()}
        return {"name": type(value).__name__, "fields": fields}
    array = np.asarray(value)
    array = array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return array.item() if array.ndim == 0 else blake2b(array.tobytes()).hexdigest()


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (int(value) != value or value < 1):
        raise ValueError(f"{name}={value} is not a number of rounds; give 1 or more")

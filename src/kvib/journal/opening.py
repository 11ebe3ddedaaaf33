"""Opening a journal: a sampler that begins in a new file, or goes on in an existing one."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib.clients.population import listed
from kvib.files import storage
from kvib.files.part import Saved
from kvib.journal import agreement
from kvib.journal.access import name_of
from kvib.journal.agreement import Options
from kvib.journal.events import KINDS
from kvib.journal.file import JournalFile, create
from kvib.journal.lock import Lock
from kvib.journal.recorder import Recorder
from kvib.journal.relearning import at_the_beginning
from kvib.journal.sampler import Journalled
from kvib.names import PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sampler import describing
from kvib.sampler.sampler import Sampler


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
    """Open a sampler that lives in a file, so that it survives a crash of the process.

    A new file begins a sampler. An existing file continues its sampler where the last process
    stopped. Then options need not be given again, and those that are given must agree with the
    file. Every draw and every update is durable before its call returns.

    Args:
        path: The file of the journal. Its folder must exist.
        policy: The policy, as for `Sampler`. To continue, it is needed only if it is your own.
        weights: The weight λ of every client, as for `Sampler`. To continue, it is not needed.
        budget: The budget per round, as for `Sampler`. To continue, it is not needed.
        procedure: The procedure, as for `Sampler`. To continue, it is needed only if it is your
            own.
        snapshot_every: The number of rounds between snapshots of the state. By default a snapshot
            is taken after one second of work, or after five times the time that the last snapshot
            took if that is more.
        keep: The number of last rounds whose details (ids, norms) are kept at least. By default all
            rounds are kept.
        options: Further options of `Sampler`, such as `seed` or `keys`.

    Examples:
        >>> import tempfile, kvib
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = f"{folder.name}/run.kvib"
        >>> sampler = kvib.journalled(path, kvib.KVib(), weights=[10, 20, 30, 40], budget=2)
        >>> cohort = sampler.draw()                     # durable; now the process may die
        >>> sampler.close()
        >>> sampler = kvib.journalled(path)
        >>> [cohort] = sampler.outstanding()            # drawn, without feedback yet
        >>> sampler.update(cohort, [0.5] * len(cohort))
        >>> sampler.close(); folder.cleanup()
    """
    given = {"policy": policy, "weights": weights, "budget": budget, "procedure": procedure}
    given = {name: value for name, value in given.items() if value is not None} | options
    return opened(path, given, {}, snapshot_every=snapshot_every, keep=keep)


def opened(
    path: str | os.PathLike[str],
    given: Options,
    defaults: Options,
    *,
    snapshot_every: int | None = None,
    keep: int | None = None,
) -> Journalled:
    """Open a journal for a function that chooses some of the options itself.

    Args:
        path: The file of the journal.
        given: Options that the user gave. An existing file must agree with them.
        defaults: Options that the function adds. An existing file keeps those that it was begun
            with.
        snapshot_every: The number of rounds between snapshots, as for `journalled`.
        keep: The number of last rounds whose details are kept, as for `journalled`.
    """
    # Check the options.
    given = dict(given)
    everything = {**defaults, **given}
    if everything.get("estimator") is not None:
        raise ValueError(
            "a difference estimator remembers whole updates, and a journal has their norms only; "
            "leave it out, or keep the state yourself: kvib.Sampler(…, estimator=…).save(path)"
        )
    _check_count("snapshot_every", snapshot_every)
    _check_count("keep", keep)
    if given.get("keys") is not None:
        given["keys"] = listed(given["keys"])
    # Check that the file can be begun or continued.
    home = Path(os.path.realpath(path))
    missing = {"policy", "weights", "budget"} - set(everything)
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
    # Begin the file if it is new, read the sampler from it, and let it write there.
    held = Lock(home)
    try:
        if not home.exists():
            _begin(home, given, defaults, snapshot_every, keep)
        recorder = _continued(home, given, defaults)
        now = {"snapshot_every": snapshot_every, "keep": keep, "home": name_of(home)}
        _go_on(recorder, held, home, now)
        return Journalled(recorder)
    except BaseException:
        held.release()
        raise


def _begin(
    home: Path, given: Options, defaults: Options, every: int | None, keep: int | None
) -> None:
    """Create the file of a new sampler."""
    sampler = Sampler(**{**defaults, **given})
    about = {
        **agreement.begun(given, defaults),
        "policy": repr(sampler.policy),
        "procedure": sampler.procedure.name,
        "budget": sampler.budget,
        "seed": sampler.seed,
        "token": sampler.state.rounds.token,
        "own": describing.describe_policy(sampler.policy) is None,
        "snapshot_every": every,
        "keep": keep,
        "snapshot": 0,
        "removed": 0,
        "arrays": {},
    }
    create(home, {"now": sampler.packed(), "begun": {"weights": sampler.weights}}, about)


def _continued(home: Path, given: Options, defaults: Options) -> Recorder:
    """The sampler after the last event of its file. The file is read and not changed."""
    with closing(JournalFile(home)) as file:
        own = file.about["own"]
        if own and "policy" not in given:
            raise ValueError(
                f"{home} has a policy of your own, {file.about['policy']}; give it: "
                "kvib.journalled(path, policy=…)"
            )
        agreement.check(home, file.about, given, defaults)
        recorder, known = _snapshot(file, given.get("policy") if own else None, given)
        for event in file.events_after(known):
            recorder.replay(event)
    return recorder


def _snapshot(
    file: JournalFile, policy: Policy[Any] | None, given: Options
) -> tuple[Recorder, int]:
    """The sampler at the last snapshot, and the number of the event before the snapshot.

    Where the policy cannot read the state of the snapshot and all rounds are kept, it is the
    sampler of the beginning, and 0: then all rounds are learned from again.
    """
    arrays, weights = file.arrays("now"), file.array("begun", "weights")
    about = storage.about(arrays["header"], "sampler")
    procedure, relearns = given.get("procedure"), False
    try:
        sampler = Sampler.restored(Saved(about, arrays), policy, procedure)
    except ValueError as error:
        if procedure is None and about["procedure"] not in PROCEDURES:
            raise
        if file.about["removed"]:
            raise ValueError(
                f"{file.path}: {error}. Rounds that it could be learned from again were removed"
            ) from error
        sampler, relearns = at_the_beginning(about, arrays, weights, policy, procedure), True
    same = np.array_equal(weights, sampler.weights)  # then one array serves for both
    begun = sampler.weights if same else weights
    recorder = Recorder(sampler, file, begun, KINDS, relearns)
    return recorder, 0 if relearns else file.about["snapshot"]


def _go_on(recorder: Recorder, held: Lock, home: Path, options: Options) -> None:
    """Let a recorder that was read from a file write to it.

    Args:
        recorder: The recorder.
        held: The lock on the file, which the recorder releases when it stops.
        home: The file.
        options: Entries of the file's description that this opening changes.
    """
    file = JournalFile(home, write=True)
    try:
        changed = {name: value for name, value in options.items() if value is not None}
        if any(file.about.get(name) != value for name, value in changed.items()):
            with file.reading():
                file.say(**changed)
        recorder.write_to(file, held)
    except BaseException:
        file.close()
        raise


def _check_count(name: str, value: int | None) -> None:
    """Refuse an option that is not a number of rounds."""
    if value is not None and (int(value) != value or value < 1):
        raise ValueError(f"{name}={value} is not a number of rounds; give 1 or more")

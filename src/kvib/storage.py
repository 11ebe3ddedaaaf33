"""A sampler as one file of arrays: no pickle, a format version, written atomically."""

import json
import os
import zipfile
import zlib
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Arrays
from kvib.names import CONFIGURATIONS, POLICIES

VERSION = 1

WAYS = {
    "sampler": "kvib.Sampler.load(path) reads it",
    "simulation": "Simulation.run(rounds, folder), and `kvib simulate` with its folder as --out, "
    "go on from it",
    "task": "`kvib simulate` takes its name as that of a task",
    "rounds": "`kvib run` collects it",
}
"""What else kvib writes, and what it is good for."""


class OtherFileError(ValueError):
    """A whole file, but of another kind."""


def header(kind: str, about: dict[str, Any]) -> NDArray[Any]:
    """What a file or a part of one says about itself."""
    plain = {"format": f"kvib {kind}", "version": VERSION, **about}
    return np.array(plain_json(plain))


def plain_json(said: Any) -> str:
    """JSON, also of NumPy's numbers."""
    return json.dumps(said, default=lambda number: number.item())


def write(path: str | os.PathLike[str], arrays: Arrays, compressed: bool = False) -> None:
    """Replace the file at `path` as a whole: whoever reads it sees the old or the new state."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            save = np.savez_compressed if compressed else np.savez
            save(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renaming durable, where the system lets one open a folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], Arrays]:
    """What `write` wrote, its header apart; a ValueError for any other file."""
    try:
        with open(path, "rb") as file:
            _refuse_others(file.read(16), kind)
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        if "header" not in arrays:
            raise ValueError("it has no header")
        return about(arrays.pop("header"), kind), arrays
    except FileNotFoundError:
        raise
    except OtherFileError as error:
        raise OtherFileError(f"{path}: {error}") from error
    except (
        AttributeError,
        EOFError,
        KeyError,
        NotImplementedError,  # zip flags
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} is not a whole kvib {kind} file ({error}); use the last one that was finished"
        ) from error


def _refuse_others(start: bytes, kind: str) -> None:
    """By their first bytes, before NumPy takes them for pickles."""
    if start == b"SQLite format 3\0":
        raise OtherFileError(
            f"this is a journal, not a kvib {kind} file; kvib.journalled(path) goes on from it, "
            "kvib.journal.read(path) looks into it"
        )
    if not start.startswith(b"PK"):
        raise ValueError("it is not an archive of arrays")


def about(head: NDArray[Any], kind: str) -> dict[str, Any]:
    """The header of a file of this kind and version."""
    said: dict[str, Any] = json.loads(str(head))
    other = str(said.get("format")).removeprefix("kvib ")
    if other != kind:
        if other not in WAYS:
            raise ValueError(f"it does not say that it is a {kind}")
        raise OtherFileError(f"this is a kvib {other} file, not a {kind} file; {WAYS[other]}")
    if said.get("version") != VERSION:
        raise ValueError(
            f"it has format version {said.get('version')}, this kvib reads {VERSION}: install the "
            "kvib that wrote it"
        )
    return said


def pack(name: str, state: tuple[Any, ...]) -> Arrays:
    """A NamedTuple of arrays and numbers as arrays."""
    fields: tuple[str, ...] = getattr(state, "_fields")  # noqa: B009 (NamedTuple is not a type)
    return {f"{name}.{field}": np.asarray(getattr(state, field)) for field in fields}


def unpack(name: str, fresh: Any, arrays: Arrays, clients: int) -> Any:
    """The NamedTuple that `pack` took apart, of the kind and for as many clients as a fresh one."""
    kind = type(fresh)
    saved = {key.split(".", 1)[1] for key in arrays if key.startswith(f"{name}.")}
    if saved != set(kind._fields):
        raise ValueError(
            f"the file has {name} fields {sorted(saved)}, {kind.__name__} needs "
            f"{sorted(kind._fields)}; load it with the policy that was saved"
        )
    values = {field: arrays[f"{name}.{field}"] for field in kind._fields}
    for field, value in values.items():
        now = np.asarray(getattr(fresh, field))
        per_client = clients > 1 and now.shape[-1:] == (clients,)
        if (
            value.ndim != now.ndim
            or value.dtype.kind not in "biuf"
            or (per_client and value.shape[-1] != clients)
        ):
            raise ValueError(
                f"{name}.{field} is {value.dtype} of shape {value.shape}, not of {clients} clients"
            )
    return kind(**{field: v if v.ndim else v.item() for field, v in values.items()})


def part(arrays: Arrays, name: str) -> Arrays:
    """The arrays of one part of a file, by their own names."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def describe(config: Any) -> dict[str, Any] | None:
    """Name and fields of one of kvib's frozen configurations, also inside one another."""
    if config is None:
        return None
    plain = {
        name: describe(value) if is_dataclass(value) else value
        for name, value in vars(config).items()
    }
    return {"name": type(config).__name__, "fields": plain}


def described(said: dict[str, Any] | None) -> Any:
    """The configuration that `describe` described."""
    if said is None:
        return None
    if said["name"] not in CONFIGURATIONS:
        raise ValueError(f"this kvib has no {said['name']}; install the kvib that wrote the file")
    fields = {k: described(v) if isinstance(v, dict) else v for k, v in said["fields"].items()}
    return CONFIGURATIONS[said["name"]](**fields)


def describe_policy(policy: Any) -> dict[str, Any] | None:
    """Name and numbers of one of kvib's own policies, None for a user's."""
    name = type(policy).__name__
    return {"name": name, "fields": vars(policy)} if POLICIES.get(name) is type(policy) else None


def restore_policy(described: dict[str, Any] | None, given: Any | None) -> Any:
    """The policy that was saved: the one described, or the user's own."""
    if described is not None:
        if given is not None and type(given).__name__ != described["name"]:
            raise ValueError(
                f"the file was saved with {described['name']}, not {type(given).__name__}; "
                "load it with the policy that was saved"
            )
        try:
            return POLICIES[described["name"]](**described["fields"]) if given is None else given
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"this kvib has no policy {described}; install the kvib version that wrote it"
            ) from error
    if given is None:
        raise ValueError(
            "the file was saved with a policy of your own; give it: Sampler.load(path, policy=…)"
        )
    return given

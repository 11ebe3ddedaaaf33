"""A sampler as one file of arrays: no pickle, a format version, written atomically."""

import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvib.names import POLICIES

FORMAT = "kvib sampler"
VERSION = 1

Arrays = dict[str, NDArray[Any]]


def write(path: str | os.PathLike[str], about: dict[str, Any], arrays: Arrays) -> None:
    """Replace the file at `path` as a whole: whoever reads it sees the old or the new state."""
    path = Path(path)
    header = json.dumps({"format": FORMAT, "version": VERSION, **about})
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, header=np.array(header), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
    """What `write` wrote; a ValueError for any other file."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(str(arrays.pop("header")))
        if about.get("format") != FORMAT:
            raise ValueError("it does not say that it is one")
        if len(arrays["updated"]) != about["round"] or "weights" not in arrays:
            raise ValueError("a part is missing")
    except FileNotFoundError:
        raise
    except (
        AttributeError,
        EOFError,
        KeyError,
        OSError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} is not a whole kvib state file ({error}); use the last one that Sampler.save "
            "finished"
        ) from error
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {about.get('version')}, this kvib reads {VERSION}; "
            "install the kvib version that wrote it"
        )
    return about, arrays


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
        now = np.shape(getattr(fresh, field))
        if now[-1:] == (clients,) and value.shape[-1:] not in ((clients,), (0,)):
            raise ValueError(
                f"{name}.{field} has shape {value.shape}, not that of {clients} clients"
            )
    return kind(**{field: v if v.ndim else v.item() for field, v in values.items()})


def describe_policy(policy: Any) -> dict[str, Any] | None:
    """Name and numbers of one of kvib's own policies, None for a user's."""
    name = type(policy).__name__
    return {"name": name, "fields": vars(policy)} if POLICIES.get(name) is type(policy) else None


def restore_policy(described: dict[str, Any] | None) -> Any:
    """The policy that `describe_policy` described."""
    if described is None or described["name"] not in POLICIES:
        raise ValueError(
            "the file was saved with a policy of your own; give it: Sampler.load(path, policy=…)"
        )
    return POLICIES[described["name"]](**described["fields"])

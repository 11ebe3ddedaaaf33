"""A state as one file of arrays: no pickle, every array listed and sealed, written atomically."""

import errno
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kvib.files import archive
from kvib.files.archive import Archive
from kvib.files.intact import demand, names
from kvib.types import Arrays

VERSION = 2
"""Version 1 listed no arrays: what damage hid of them was not missed."""

MOST = 1 << 24
"""Bytes of a header."""

WAYS = {
    "sampler": "kvib.Sampler.load(path) reads it",
    "simulation": "Simulation.run(rounds, folder), and `kvib simulate` with its folder as --out, "
    "go on from it",
    "task": "`kvib simulate` takes its name as that of a task",
    "rounds": "`kvib run` collects it",
}
"""What else kvib writes, and what it is good for."""


class OtherFileError(ValueError):
    """A whole file, but of another kind or version, or saved with another policy."""


def headed(kind: str, about: dict[str, Any], arrays: Arrays) -> Arrays:
    """Arrays with a header that says what they are, and lists them: none can be lost unnoticed."""
    said = {"format": f"kvib {kind}", "version": VERSION, **about, "arrays": sorted(arrays)}
    return {"header": _sealed(said), **arrays}


def _sealed(said: dict[str, Any]) -> NDArray[Any]:
    """A header with its own checksum."""
    return np.array(plain_json({**said, "crc": _crc(said)}))


def _crc(said: dict[str, Any]) -> int:
    return crc32(plain_json(said).encode())


def plain_json(said: Any) -> str:
    """JSON, also of NumPy's numbers."""
    return json.dumps(said, default=lambda number: number.item())


def write(path: str | os.PathLike[str], arrays: Arrays, compressed: bool = False) -> None:
    """Replace the file at `path` as a whole; see `replacing`.

    Args:
        path: of the file.
        arrays: what `headed` made. In the file the header lists the checksum of every array.
        compressed: whether the file shall be small rather than quickly written.
    """
    said, others = json.loads(str(arrays["header"])), {**arrays}
    del said["crc"], others["header"]

    def header(sums: dict[str, int]) -> Arrays:
        return {"header": _sealed({**said, "arrays": sums})}

    with replacing(path) as file:
        archive.write(file, others, header, compressed)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that then takes the place of the one at `path`, as a whole and durably.

    A reader of `path` sees the old file meanwhile. Only its owner can read the new one. A link
    stays a link: what it points to is replaced.
    """
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with private(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def private(path: str | os.PathLike[str]) -> BinaryIO:
    """A new file that only its owner can read, from the moment it is there."""
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def sync_folder(folder: Path) -> None:
    """Make the renaming durable, where the system lets one open a folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(
    path: str | os.PathLike[str], kind: str, parts: Collection[str], compressed: bool = False
) -> tuple[dict[str, Any], Arrays]:
    """What `write` wrote, its header apart; a ValueError for any other file.

    Names and checksums are compared with those that the header lists before an array is unpacked.

    Args:
        path: of the file.
        kind: what it must be.
        parts: first words of the names that its arrays may have.
        compressed: whether files of this kind are.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    with whole(kind, path), open(path, "rb") as file:
        _refuse_others(file.read(16), kind)
        with closing(Archive(file)) as entries:
            sums = entries.checksums
            demand(sums.pop("header", None) is not None, "it has no header")
            said, listed = _opened(entries.read("header", most=MOST), kind)
            demand(listed is None or isinstance(listed, dict), "its header lists no checksums")
            _compare(listed, sums)
            unknown = [name for name in sums if name.partition(".")[0] not in parts]
            demand(not unknown, f"this kvib does not know its {', '.join(unknown)}")
            demand(compressed or not entries.compressed, "it is compressed")
            return said, {name: entries.read(name) for name in sums}


@contextmanager
def whole(kind: str, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Whatever is wrong with a file, and however that shows, is a ValueError with a way out."""
    try:
        yield
    except Warning:  # of those who want warnings to be errors
        raise
    except OtherFileError as error:
        raise OtherFileError(f"{error}" if path is None else f"{path}: {error}") from error
    except Exception as error:  # no list of what damage can raise is complete
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{'this' if path is None else path} is not a whole kvib {kind} file ({reason}); use "
            "the last one that was finished"
        ) from error


def _refuse_others(start: bytes, kind: str) -> None:
    """By their first bytes."""
    if start == b"SQLite format 3\0":
        raise OtherFileError(
            f"this is a journal, not a kvib {kind} file; kvib.journalled(path) goes on from it, "
            "kvib.journal.read(path) looks into it"
        )
    demand(start.startswith(b"PK"), "it is not an archive of arrays")


def unheaded(arrays: Arrays, kind: str) -> tuple[dict[str, Any], Arrays]:
    """What `headed` put together; refused where an array is missing, or one too many is there."""
    demand("header" in arrays, "it has no header")
    said, listed = _opened(arrays["header"], kind)
    others = {name: array for name, array in arrays.items() if name != "header"}
    _compare(listed, others)
    return said, others


def about(head: NDArray[Any], kind: str) -> dict[str, Any]:
    """What the header of a file of this kind says, of this version or an earlier one."""
    return _opened(head, kind)[0]


def _opened(head: NDArray[Any], kind: str) -> tuple[dict[str, Any], Any]:
    """What a header says, and the arrays that it lists; None in version 1, which listed none."""
    said = json.loads(str(head))
    demand(isinstance(said, dict), "its header is not one")
    other, version = str(said.get("format")).removeprefix("kvib "), said.get("version")
    if other != kind:
        demand(other in WAYS, f"it does not say that it is a {kind}")
        raise OtherFileError(f"this is a kvib {other} file, not a {kind} file; {WAYS[other]}")
    if version not in (1, VERSION):
        raise OtherFileError(
            f"it has format version {version}, this kvib reads 1 and {VERSION}: install the kvib "
            "that wrote it"
        )
    crc = said.pop("crc", None)
    demand(crc == (None if version == 1 else _crc(said)), "its header does not match its checksum")
    listed = said.pop("arrays", None)
    demand((listed is None) == (version == 1), "its header does not list its arrays")
    return said, listed


def _compare(listed: Any, there: Mapping[str, Any]) -> None:
    """Refuse arrays, or their checksums, that are not those that a header lists."""
    if listed is None:
        return
    missing, more = sorted(set(listed) - set(there)), sorted(set(there) - set(listed))
    demand(not missing, f"it lacks {', '.join(missing)}")
    demand(not more, f"its header does not list {', '.join(more)}")
    if isinstance(listed, dict):
        other = [name for name in listed if listed[name] != there[name]]
        demand(not other, f"{', '.join(other)} do not match their checksums")


def pack(name: str, state: tuple[Any, ...]) -> Arrays:
    """A NamedTuple of arrays and numbers as arrays."""
    fields: tuple[str, ...] = getattr(state, "_fields")  # noqa: B009 (NamedTuple is not a type)
    return {f"{name}.{field}": np.asarray(getattr(state, field)) for field in fields}


def unpack(name: str, fresh: Any, arrays: Arrays, clients: int) -> Any:
    """The NamedTuple that `pack` took apart, of the kind and for as many clients as a fresh one."""
    kind, saved = type(fresh), part(arrays, name)
    names(name, saved, kind._fields)
    values = {}
    for field in kind._fields:
        value, now = saved[field], np.asarray(getattr(fresh, field))
        per_client = clients > 1 and now.shape[-1:] == (clients,)
        if (
            value.ndim != now.ndim
            or value.dtype.kind not in "biuf"
            or (per_client and value.shape[-1] != clients)
        ):
            raise ValueError(
                f"{name}.{field} is {value.dtype} of shape {value.shape}, not of {clients} clients"
            )
        # at least as wide as a fresh one: what is learned later must fit in
        values[field] = value.astype(np.result_type(value, now), copy=False) if now.ndim else value
    return kind(**{field: v if v.ndim else v.item() for field, v in values.items()})


def part(arrays: Arrays, name: str) -> Arrays:
    """The arrays of one part of a file, by their own names."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

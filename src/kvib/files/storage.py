"""State files: arrays and a header in one file, without pickle, written atomically.

The header lists every array with its checksum, and has a checksum of its own.
"""

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
"""The version of the format. Version 1 did not list the arrays: lost ones went unnoticed."""

LARGEST_HEADER = 1 << 24
"""The largest size of a header in bytes. A larger one is damage, and is not read into memory."""

READERS = {
    "sampler": "kvib.Sampler.load(path) reads it",
    "simulation": "Simulation.run(rounds, folder), and `kvib simulate` with its folder as --out, "
    "go on from it",
    "task": "`kvib simulate` takes its name as that of a task",
    "rounds": "`kvib run` collects it",
}
"""The kinds of files that kvib writes, and the way to read each: the end of an error."""


class OtherFileError(ValueError):
    """Raised for an undamaged file of another kind or version, or saved with another policy."""


def headed(kind: str, about: dict[str, Any], arrays: Arrays) -> Arrays:
    """The arrays together with a header that describes and lists them.

    Args:
        kind: The kind of the file, for example "sampler".
        about: The entries of the header.
        arrays: The arrays by name.
    """
    fields = {"format": f"kvib {kind}", "version": VERSION, **about, "arrays": sorted(arrays)}
    return {"header": _sealed(fields), **arrays}


def _sealed(fields: dict[str, Any]) -> NDArray[Any]:
    """A header with its checksum, as an array of one string."""
    return np.array(plain_json({**fields, "crc": _crc(fields)}))


def _crc(fields: dict[str, Any]) -> int:
    """The checksum of a header."""
    return crc32(plain_json(fields).encode())


def plain_json(value: Any) -> str:
    """The JSON of a value, which may contain numbers of NumPy."""
    return json.dumps(value, default=lambda number: number.item())


def write(path: str | os.PathLike[str], arrays: Arrays, compressed: bool = False) -> None:
    """Replace the file at `path` as a whole (see `replacing`).

    Args:
        path: The path of the file.
        arrays: The result of `headed`. In the file the header lists the checksum of every array.
        compressed: Whether a small file is more important than fast writing.
    """
    fields, others = json.loads(str(arrays["header"])), {**arrays}
    del fields["crc"], others["header"]

    def header(sums: dict[str, int]) -> Arrays:
        """The header that lists these checksums."""
        return {"header": _sealed({**fields, "arrays": sums})}

    with replacing(path) as file:
        archive.write(file, others, header, compressed)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write, which then replaces the file at `path` as a whole and durably.

    Until then a reader of `path` sees the old file. Only its owner can read the new file. If `path`
    is a link it stays a link, and the file that it points to is replaced.
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
    """A new file that only its owner can read from the moment it exists."""
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def sync_folder(folder: Path) -> None:
    """Make a renaming in a folder durable, on systems where a folder can be opened."""
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
    """The entries of the header and the arrays of a file that `write` wrote.

    Any other file raises a ValueError. Names and checksums are compared with those in the header
    before an array is unpacked.

    Args:
        path: The path of the file.
        kind: The kind of file that it must be.
        parts: The first words that names of arrays may have.
        compressed: Whether files of this kind are compressed.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    with whole(kind, path), open(path, "rb") as file:
        _refuse_others(file.read(16), kind)
        with closing(Archive(file)) as found:
            sums = found.checksums
            demand(sums.pop("header", None) is not None, "it has no header")
            fields, listed = _opened(found.read("header", most=LARGEST_HEADER), kind)
            demand(listed is None or isinstance(listed, dict), "its header lists no checksums")
            _compare(listed, sums)
            unknown = [name for name in sums if name.partition(".")[0] not in parts]
            demand(not unknown, f"this kvib does not know its {', '.join(unknown)}")
            demand(compressed or not found.compressed, "it is compressed")
            return fields, {name: found.read(name) for name in sums}


@contextmanager
def whole(kind: str, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Turn every error that damage can cause into a ValueError with a way out.

    Args:
        kind: The kind of the file that is read.
        path: The path of the file, if there is one.
    """
    try:
        yield
    except Warning:  # raised where a user turns warnings into errors
        raise
    except OtherFileError as error:
        raise OtherFileError(f"{error}" if path is None else f"{path}: {error}") from error
    except Exception as error:  # no list of the exceptions that damage can cause is complete
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{'this' if path is None else path} is not a whole kvib {kind} file ({reason}); use "
            "the last one that was finished"
        ) from error


def _refuse_others(start: bytes, kind: str) -> None:
    """Refuse files of other formats, which their first bytes show."""
    if start == b"SQLite format 3\0":
        raise OtherFileError(
            f"this is a journal, not a kvib {kind} file; kvib.journalled(path) goes on from it, "
            "kvib.journal.read(path) looks into it"
        )
    demand(start.startswith(b"PK"), "it is not an archive of arrays")


def unheaded(arrays: Arrays, kind: str) -> tuple[dict[str, Any], Arrays]:
    """The entries of the header and the other arrays, from the result of `headed`.

    An array that the header does not list raises a ValueError, and so does a missing one.
    """
    demand("header" in arrays, "it has no header")
    fields, listed = _opened(arrays["header"], kind)
    others = {name: array for name, array in arrays.items() if name != "header"}
    _compare(listed, others)
    return fields, others


def about(head: NDArray[Any], kind: str) -> dict[str, Any]:
    """The entries of the header of a file of this kind, in this version or an earlier one."""
    return _opened(head, kind)[0]


def _opened(head: NDArray[Any], kind: str) -> tuple[dict[str, Any], Any]:
    """The entries of a header, and the arrays that it lists (None in version 1)."""
    fields = json.loads(str(head))
    demand(isinstance(fields, dict), "its header is not one")
    other, version = str(fields.get("format")).removeprefix("kvib "), fields.get("version")
    if other != kind:
        demand(other in READERS, f"it does not say that it is a {kind}")
        raise OtherFileError(f"this is a kvib {other} file, not a {kind} file; {READERS[other]}")
    if version not in (1, VERSION):
        raise OtherFileError(
            f"it has format version {version}, this kvib reads 1 and {VERSION}: install the kvib "
            "that wrote it"
        )
    crc = fields.pop("crc", None)
    demand(
        crc == (None if version == 1 else _crc(fields)), "its header does not match its checksum"
    )
    listed = fields.pop("arrays", None)
    demand((listed is None) == (version == 1), "its header does not list its arrays")
    return fields, listed


def _compare(listed: Any, there: Mapping[str, Any]) -> None:
    """Refuse arrays whose names or checksums differ from those that a header lists."""
    if listed is None:
        return
    missing, more = sorted(set(listed) - set(there)), sorted(set(there) - set(listed))
    demand(not missing, f"it lacks {', '.join(missing)}")
    demand(not more, f"its header does not list {', '.join(more)}")
    if isinstance(listed, dict):
        other = [name for name in listed if listed[name] != there[name]]
        demand(not other, f"{', '.join(other)} do not match their checksums")


def pack(name: str, state: tuple[Any, ...]) -> Arrays:
    """The fields of a NamedTuple as arrays, named "name.field"."""
    fields: tuple[str, ...] = getattr(state, "_fields")  # noqa: B009 (NamedTuple is not a type)
    return {f"{name}.{field}": np.asarray(getattr(state, field)) for field in fields}


def unpack(name: str, fresh: Any, arrays: Arrays, clients: int) -> Any:
    """The NamedTuple whose fields `pack` has named.

    Args:
        name: The name that `pack` was given.
        fresh: A state before the first round, of the same class and for the same clients.
        arrays: The arrays of the file.
        clients: The number of clients N.
    """
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
        # A dtype at least as wide as in a fresh state, so that later values fit in.
        values[field] = value.astype(np.result_type(value, now), copy=False) if now.ndim else value
    return kind(**{field: v if v.ndim else v.item() for field, v in values.items()})


def part(arrays: Arrays, name: str) -> Arrays:
    """The arrays of one part of a file, by their names without the part's name in front."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

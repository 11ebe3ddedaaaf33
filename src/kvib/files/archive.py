"""Named arrays in one `.npz`: written in one pass, and read without trust in what it claims.

NumPy reads such files too. It believes their directory, though: an entry that damage hides is not
missed, and an array is as large as it says it is.
"""

import math
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kvib.files.intact import demand
from kvib.types import Arrays

SUFFIX = ".npy"
CHUNK = 1 << 18
"""Bytes that are copied together."""
RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100}
"""Bytes that are made of one at the most: what deflate makes of one is 1,032."""
_END = b"PK\5\6"
_END_SIZE = 22
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def write(
    file: BinaryIO,
    arrays: Arrays,
    last: Callable[[dict[str, int]], Arrays],
    compressed: bool = False,
) -> None:
    """Arrays, then those that `last` makes of the checksums of the first.

    The checksum of an array is the CRC-32 of its entry: of dtype, shape and bytes.
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            _add(archive, name, array)
        checksums = {_name(info): info.CRC for info in archive.infolist()}
        for name, array in last(checksums).items():
            _add(archive, name, array)


def _add(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with archive.open(f"{name}{SUFFIX}", "w", force_zip64=True) as entry:
        npy.write_array(entry, array, allow_pickle=False)


def _name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(SUFFIX)


class Archive:
    """The entries of a file, each unpacked when it is asked for; close it after use.

    Args:
        file: open for reading, from its beginning.
    """

    def __init__(self, file: BinaryIO) -> None:
        count, room = _counted(file), file.seek(0, 2)
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        demand(len(entries) == count, "its directory hides entries")
        self._entries = {_name(info): info for info in entries}
        demand(len(self._entries) == len(entries), "two of its entries have one name")
        for info in entries:
            demand(
                info.filename.endswith(SUFFIX) and info.compress_type in RATIOS,
                f"{info.filename!r} is not an array",
            )
            room -= info.compress_size
            demand(
                room >= 0 and info.file_size <= RATIOS[info.compress_type] * info.compress_size,
                f"{info.filename!r} claims more than the file holds",
            )

    @property
    def checksums(self) -> dict[str, int]:
        """CRC-32 of every entry, as the directory says it."""
        return {name: info.CRC for name, info in self._entries.items()}

    @property
    def compressed(self) -> bool:
        """Whether arrays may be larger than the file."""
        return any(info.compress_type != zipfile.ZIP_STORED for info in self._entries.values())

    def read(self, name: str, most: float = math.inf) -> NDArray[Any]:
        """One array, of at most this number of bytes, which match its checksum."""
        info = self._entries[name]
        demand(info.file_size <= most, f"{name} is {info.file_size} bytes long")
        with self._zip.open(info) as entry:
            shape, turned, dtype = _HEADERS[npy.read_magic(entry)](entry)
            demand(dtype.kind in "biufU", f"{name} is an array of {dtype}, not of numbers")
            size = math.prod(shape) * dtype.itemsize
            demand(
                min(shape, default=0) >= 0 and entry.tell() + size == info.file_size,
                f"{name} of shape {shape} is not as large as its entry",
            )
            array = np.empty(shape[::-1] if turned else shape, dtype)
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, size, CHUNK):
                part = flat[start : start + CHUNK]
                piece = entry.read(len(part))
                demand(len(piece) == len(part), f"{name} ends too early")
                part[:] = np.frombuffer(piece, np.uint8)
            entry.read(1)  # the end, where the checksum is compared
        return array.T if turned else array

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()


def _counted(file: BinaryIO) -> int:
    """Entries of the directory, as the last record of the file counts them."""
    file.seek(-min(_END_SIZE, file.seek(0, 2)), 2)
    end = file.read()
    demand(end.startswith(_END), "its directory has no end")
    return int.from_bytes(end[10:12], "little")

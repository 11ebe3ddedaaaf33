"""Named arrays in one `.npz` file: written in one pass, and read without trust in its contents.

NumPy reads these files too, but it trusts their directory. It does not notice an entry that damage
hides, and it allocates an array of whatever size the entry claims.
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
"""The end of an entry's name in the file."""
CHUNK = 1 << 18
"""Bytes that are read at once."""
RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100}
"""The most bytes that one byte of a file can unpack to. For deflate the true limit is 1,032."""
_END = b"PK\5\6"
"""The first bytes of the last record of a zip file, which counts the entries."""
_END_SIZE = 22
"""The length of that record in bytes."""
_COUNT_AT = slice(10, 12)
"""The place of the count in that record."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Readers of the headers of `.npy`, by version of that format."""


def write(
    file: BinaryIO,
    arrays: Arrays,
    last: Callable[[dict[str, int]], Arrays],
    compressed: bool = False,
) -> None:
    """Write arrays, and after them the arrays that depend on their checksums.

    The checksum of an array is the CRC-32 of its entry, which holds dtype, shape and numbers.

    Args:
        file: The file to write to.
        arrays: The first arrays, by name.
        last: A function from the checksums of the first arrays to the last arrays.
        compressed: Whether the file is compressed.
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            _add(archive, name, array)
        checksums = {_name(info): info.CRC for info in archive.infolist()}
        for name, array in last(checksums).items():
            _add(archive, name, array)


def _add(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Write one array as an entry."""
    with archive.open(f"{name}{SUFFIX}", "w", force_zip64=True) as entry:
        npy.write_array(entry, array, allow_pickle=False)


def _name(info: zipfile.ZipInfo) -> str:
    """The name of the array in an entry."""
    return info.filename.removesuffix(SUFFIX)


class Archive:
    """The arrays of a file, each unpacked when it is read. Close the archive after use.

    Args:
        file: The file, open for reading from its beginning.
    """

    def __init__(self, file: BinaryIO) -> None:
        count, left = _counted(file), file.seek(0, 2)
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
            left -= info.compress_size
            demand(
                left >= 0 and info.file_size <= RATIOS[info.compress_type] * info.compress_size,
                f"{info.filename!r} claims more than the file holds",
            )

    @property
    def checksums(self) -> dict[str, int]:
        """The CRC-32 of every entry according to the directory, by name of the array."""
        return {name: info.CRC for name, info in self._entries.items()}

    @property
    def compressed(self) -> bool:
        """Whether arrays may be larger than the file."""
        return any(info.compress_type != zipfile.ZIP_STORED for info in self._entries.values())

    def read(self, name: str, most: float = math.inf) -> NDArray[Any]:
        """Read one array, and compare it with its checksum.

        Args:
            name: The name of the array.
            most: The largest size of its entry in bytes. A larger one is refused.
        """
        info = self._entries[name]
        demand(info.file_size <= most, f"{name} is {info.file_size} bytes long")
        with self._zip.open(info) as entry:
            # The header claims a shape: refuse it before memory is allocated for it.
            shape, fortran_order, dtype = _HEADERS[npy.read_magic(entry)](entry)
            demand(dtype.kind in "biufU", f"{name} is an array of {dtype}, not of numbers")
            size = math.prod(shape) * dtype.itemsize
            demand(
                min(shape, default=0) >= 0 and entry.tell() + size == info.file_size,
                f"{name} of shape {shape} is not as large as its entry",
            )
            # Read the numbers chunk by chunk.
            array = np.empty(shape[::-1] if fortran_order else shape, dtype)
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, size, CHUNK):
                part = flat[start : start + CHUNK]
                piece = entry.read(len(part))
                demand(len(piece) == len(part), f"{name} ends too early")
                part[:] = np.frombuffer(piece, np.uint8)
            entry.read(1)  # at the end of an entry zipfile compares the checksum
        return array.T if fortran_order else array

    def close(self) -> None:
        """Close the directory. The file itself stays open."""
        self._zip.close()


def _counted(file: BinaryIO) -> int:
    """The number of entries according to the last record of the file."""
    file.seek(-min(_END_SIZE, file.seek(0, 2)), 2)
    end = file.read()
    demand(end.startswith(_END), "its directory has no end")
    return int.from_bytes(end[_COUNT_AT], "little")

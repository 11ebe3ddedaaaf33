"""The parts of a sampler on their way to a file and back."""

from typing import Any, ClassVar, NamedTuple

from kvib.files import storage
from kvib.types import Arrays


class Saved(NamedTuple):
    """A sampler as a file holds it."""

    about: dict[str, Any]
    """What the header says."""
    arrays: Arrays
    """All arrays by their full names."""

    @property
    def clients(self) -> int:
        """The number of clients, those who left included."""
        return len(self.arrays["weights"])

    @property
    def round(self) -> int:
        """The number of rounds that were drawn."""
        return int(self.about["round"])

    def part(self, name: str) -> Arrays:
        """The arrays whose names begin with this word, without it."""
        return storage.part(self.arrays, name)


class Part:
    """A part of a sampler that packs and restores itself, so that saving is a loop over parts."""

    HEADER: ClassVar[tuple[str, ...]] = ()
    """Entries of the header that this part writes."""
    ARRAYS: ClassVar[tuple[str, ...]] = ()
    """First words of the names of its arrays."""

    def about(self) -> dict[str, Any]:
        """Its entries of the header."""
        return {}

    def packed(self, clients: int) -> Arrays:
        """Its arrays by their full names, without the room that is kept for later clients."""
        return {}

    def restore(self, saved: Saved) -> None:
        """Take over what `about` and `packed` wrote; a ValueError where they cannot have."""

"""How the parts of a sampler are written to a file and read back."""

from typing import Any, ClassVar, NamedTuple

from kvib.files import storage
from kvib.types import Arrays


class Saved(NamedTuple):
    """A sampler as a file holds it."""

    about: dict[str, Any]
    """The entries of the header."""
    arrays: Arrays
    """All arrays by their full names, for example "state.omega"."""

    @property
    def clients(self) -> int:
        """The number of clients, departed ones included."""
        return len(self.arrays["weights"])

    @property
    def round(self) -> int:
        """The number of rounds that were drawn."""
        return int(self.about["round"])

    def part(self, name: str) -> Arrays:
        """The arrays of one part, by their names without the part's name in front."""
        return storage.part(self.arrays, name)


class Part:
    """A part of a sampler that packs and restores itself, so that saving is a loop over parts."""

    HEADER: ClassVar[tuple[str, ...]] = ()
    """The entries of the header that this part writes."""
    ARRAYS: ClassVar[tuple[str, ...]] = ()
    """The first words of the full names of its arrays."""

    def about(self) -> dict[str, Any]:
        """The entries that this part writes into the header."""
        return {}

    def packed(self, clients: int) -> Arrays:
        """The arrays of this part by their full names, without spare entries."""
        return {}

    def restore(self, saved: Saved) -> None:
        """Restore this part from a file.

        Values that `about` and `packed` cannot have written raise a ValueError.
        """

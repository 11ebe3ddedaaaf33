"""Which rounds were drawn and which were answered, so that no feedback counts twice."""

from typing import Any
from uuid import uuid4

import numpy as np

from kvib.cohort import Arrays, Cohort
from kvib.intact import COUNT, Range, demand, number, shaped, within


class Ledger:
    """One byte per round: several cohorts may be outstanding, each can be updated once."""

    def __init__(self, token: str = "", round: int = 0, updated: bytes = b"") -> None:
        # Not randomness of the draw: two samplers of one seed must not take each other's cohorts.
        self.token = token or uuid4().hex
        self.round = round
        self.updated = bytearray(updated)

    def open(self) -> int:
        """The number of the round that begins now."""
        self.round += 1
        self.updated.append(0)
        return self.round - 1

    def check(self, cohort: Cohort) -> None:
        """Refuse a cohort that is not this sampler's, or was updated before."""
        if cohort.token != self.token:
            raise ValueError(
                f"the cohort of round {cohort.round} was drawn by another sampler; "
                "update the sampler that drew it"
            )
        if not 0 <= cohort.round < self.round:
            raise ValueError(
                f"the cohort is of round {cohort.round}, but this sampler has only drawn "
                f"{self.round} rounds; it was loaded from an older state: draw again"
            )
        if self.updated[cohort.round]:
            raise ValueError(
                f"the cohort of round {cohort.round} was updated before; update each cohort once"
            )

    def close(self, cohort: Cohort) -> None:
        """Mark a cohort as answered."""
        self.updated[cohort.round] = 1

    def about(self) -> dict[str, Any]:
        """Numbers for the header of a file."""
        return {"round": self.round, "token": self.token}

    def packed(self) -> Arrays:
        """As arrays."""
        return {"updated": np.frombuffer(bytes(self.updated), dtype=np.uint8)}

    def restore(self, about: dict[str, Any], arrays: Arrays) -> None:
        """What `about` said and `packed` packed."""
        token, updated = about["token"], arrays["updated"]
        demand(isinstance(token, str) and token, f"token is {token!r}, and must be a text")
        self.token, self.round = token, number(about, "round", COUNT)
        shaped("updated", updated, (self.round,), "u")
        within("updated", updated, Range("0 or 1", 0.0, 1.0, whole=True))
        self.updated = bytearray(updated.astype(np.uint8).tobytes())

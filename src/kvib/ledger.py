"""Which rounds were drawn and which were answered, so that no feedback counts twice."""

from uuid import uuid4

from kvib.cohort import Cohort


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

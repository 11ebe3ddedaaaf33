"""Which rounds were drawn and which were answered, so that no feedback counts twice."""

from dataclasses import replace
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import numpy as np

from kvib.cohort import Arrays, Cohort

SEAL = 8
"""Bytes that tell a cohort from another."""


class Ledger:
    """One byte per round: several cohorts may be outstanding, each can be updated once.

    Beside it is a seal of every cohort, so that feedback is taken for the cohort that was drawn and
    for no other. Files of earlier versions have none: cohorts that were outstanding there are not
    compared.
    """

    def __init__(self, token: str = "", round: int = 0, updated: bytes = b"") -> None:
        # Not randomness of the draw: two samplers of one seed must not take each other's cohorts.
        self.token = token or uuid4().hex
        self.round = round
        self.updated = bytearray(updated)
        self._seals = bytearray(SEAL * round)
        """Zeros where it is not known."""

    def open(self, drawn: Cohort, **about: Any) -> Cohort:
        """A draw as the cohort of the round that begins now, with further fields."""
        cohort = replace(drawn, round=self.round, token=self.token, **about)
        self._seals[self._place(cohort.round)] = seal(cohort)
        self.updated.append(0)
        self.round += 1
        return cohort

    def check(self, cohort: Cohort) -> None:
        """Refuse a cohort that is not this sampler's, was changed, or was updated before."""
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
        known = self._seals[self._place(cohort.round)]
        if any(known) and known != seal(cohort):
            raise ValueError(
                f"this is not the cohort that was drawn in round {cohort.round}, but a part of it "
                "or a changed one; give it as drawn, with NaN (or None) where there was no answer"
            )

    def close(self, cohort: Cohort) -> None:
        """Mark a cohort as answered."""
        self.updated[cohort.round] = 1

    def packed(self) -> Arrays:
        """Seals of the cohorts that are outstanding."""
        seals = np.frombuffer(bytes(self._seals), np.uint8).reshape(-1, SEAL)
        unheard = np.frombuffer(bytes(self.updated), np.uint8) == 0
        rounds = np.flatnonzero(unheard & seals.any(axis=1))
        return {"rounds": rounds, "seals": seals[rounds]}

    def restore(self, arrays: Arrays) -> None:
        """What `packed` packed; nothing, from a file of an earlier version."""
        if not arrays:
            return
        rounds, seals = arrays["rounds"], arrays["seals"]
        whole = rounds.ndim == 1 and rounds.dtype.kind in "iu" and seals.dtype == np.uint8
        ours = ((rounds >= 0) & (rounds < self.round)).all()
        if not (whole and ours and seals.shape == (len(rounds), SEAL)):
            raise ValueError(f"seals of shape {seals.shape} are not of {self.round} rounds")
        for round, known in zip(rounds.tolist(), seals, strict=True):
            self._seals[self._place(round)] = known.tobytes()

    def _place(self, round: int) -> slice:
        return slice(SEAL * round, SEAL * (round + 1))


def seal(cohort: Cohort) -> bytes:
    """A hash of all that learning looks at. Numbers count in single precision, so that a cohort
    from a journal, which keeps no more, has the seal of the one that was drawn."""
    whole = [cohort.ids, cohort.count]
    rates = [cohort.expected, cohort.weight, cohort.response, cohort.availability]
    of_all = np.array([cohort.budget, cohort.most])
    data = [*(part.astype("<i8") for part in whole), *(p.astype("<f4") for p in (*rates, of_all))]
    return blake2b(b"".join(part.tobytes() for part in data), digest_size=SEAL).digest()

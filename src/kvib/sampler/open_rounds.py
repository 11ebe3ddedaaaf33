"""Which rounds were drawn and which were answered or given up, so that no feedback counts twice."""

from dataclasses import replace
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Cohort
from kvib.files.intact import COUNT, Range, demand, names, number, shaped, within
from kvib.files.part import Part, Saved
from kvib.types import Arrays, IntArray

SEAL = 8
"""Bytes that tell a cohort from another."""
OPEN, ANSWERED, GIVEN_UP = 0, 1, 2
"""What became of a round."""


class OpenRounds(Part):
    """One byte per round: several cohorts may be outstanding, each can be updated or given up once.

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
        self.keep(cohort)
        self.updated.append(OPEN)
        self.round += 1
        return cohort

    def keep(self, cohort: Cohort) -> None:
        """Take only this cohort for the one of its round."""
        self._seals[self._place(cohort.round)] = seal(cohort)

    def check(self, cohort: Cohort) -> None:
        """Refuse a cohort that is not this sampler's, was changed, or was closed before."""
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
        if self.updated[cohort.round] == GIVEN_UP:
            raise ValueError(
                f"the cohort of round {cohort.round} was given up before: nothing can be learned "
                "from it; draw again"
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
        self.updated[cohort.round] = ANSWERED

    def give_up(self, cohort: Cohort) -> None:
        """Mark a cohort as lost."""
        self.updated[cohort.round] = GIVEN_UP

    @property
    def answered(self) -> int:
        """How many rounds were answered."""
        return self.updated.count(ANSWERED)

    def outstanding(self) -> IntArray:
        """Rounds that are neither answered nor given up, ascending."""
        return np.flatnonzero(np.frombuffer(bytes(self.updated), np.uint8) == OPEN)

    HEADER = ("round", "token")
    ARRAYS = ("updated", "ledger")

    def about(self) -> dict[str, Any]:
        """Numbers for the header of a file."""
        return {"round": self.round, "token": self.token}

    def packed(self, clients: int) -> Arrays:
        """What became of every round, and the seals of the cohorts that are outstanding."""
        seals = np.frombuffer(bytes(self._seals), np.uint8).reshape(-1, SEAL)
        rounds = self.outstanding()
        rounds = rounds[seals[rounds].any(axis=1)]
        return {
            "updated": np.frombuffer(bytes(self.updated), dtype=np.uint8),
            "ledger.rounds": rounds,
            "ledger.seals": seals[rounds],
        }

    def restore(self, saved: Saved) -> None:
        """What was saved; earlier versions saved no seals."""
        about, updated, seals = saved.about, saved.arrays["updated"], saved.part("ledger")
        token = about["token"]
        demand(isinstance(token, str) and token, f"token is {token!r}, and must be a text")
        self.token, self.round = token, number(about, "round", COUNT)
        shaped("updated", updated, (self.round,), "u")
        within("updated", updated, Range("0, 1 or 2", 0.0, 2.0, whole=True))
        self.updated = bytearray(updated.astype(np.uint8).tobytes())
        self._seals = bytearray(SEAL * self.round)
        names("ledger", seals, ("rounds", "seals") if seals else ())
        if seals:
            self._restore_seals(seals["rounds"], seals["seals"])

    def _restore_seals(self, rounds: NDArray[Any], seals: NDArray[Any]) -> None:
        shaped("ledger.rounds", rounds, (len(rounds),), "iu")
        within("ledger.rounds", rounds, Range("a round", 0.0, self.round - 1.0, whole=True))
        shaped("ledger.seals", seals, (len(rounds), SEAL), "u")
        for round, known in zip(rounds.tolist(), seals.astype(np.uint8), strict=True):
            self._seals[self._place(round)] = known.tobytes()

    def _place(self, round: int) -> slice:
        return slice(SEAL * round, SEAL * (round + 1))


def seal(cohort: Cohort) -> bytes:
    """A hash of all that learning looks at. Numbers count in single precision, so that a cohort
    from a journal, which keeps no more, has the seal of the one that was drawn."""
    whole = [cohort.ids, cohort.count]
    rates = [cohort.expected, cohort.weight, cohort.answer_probability, cohort.availability]
    of_all = np.array([cohort.budget, cohort.most])
    data = [*(part.astype("<i8") for part in whole), *(p.astype("<f4") for p in (*rates, of_all))]
    return blake2b(b"".join(part.tobytes() for part in data), digest_size=SEAL).digest()

"""Which rounds are open, answered or given up, so that no feedback counts twice."""

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
"""The bytes of the hash by which a cohort is recognised."""
OPEN, ANSWERED, GIVEN_UP = 0, 1, 2
"""The state of a round, one byte in a file."""


class OpenRounds(Part):
    """The state of every round: open, answered or given up.

    Several cohorts may be outstanding, and each can be updated or given up once. Beside the state
    is a seal of every cohort, so that feedback is taken for the cohort that was drawn and for no
    other. Files of earlier versions have no seals: cohorts that were outstanding there are not
    compared.

    Args:
        token: The name of the sampler. By default it is random.
        round: The number of rounds that were drawn.
        updated: The state of each of them.
    """

    def __init__(self, token: str = "", round: int = 0, updated: bytes = b"") -> None:
        # Not randomness of the draw: two samplers of one seed must not take each other's cohorts.
        self.token = token or uuid4().hex
        self.round = round
        self.updated = bytearray(updated)
        self._seals = bytearray(SEAL * round)
        """The seals of all cohorts, one after another. Zeros where a seal is not known."""

    def open(self, drawn: Cohort, **about: Any) -> Cohort:
        """Begin a round, and return its cohort: the drawn clients with further fields."""
        cohort = replace(drawn, round=self.round, token=self.token, **about)
        self.keep(cohort)
        self.updated.append(OPEN)
        self.round += 1
        return cohort

    def keep(self, cohort: Cohort) -> None:
        """Keep the seal of a cohort: from now on no other is taken for the cohort of its round."""
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
        kept = self._seals[self._place(cohort.round)]
        if any(kept) and kept != seal(cohort):
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
        """The number of rounds that were answered."""
        return self.updated.count(ANSWERED)

    def outstanding(self) -> IntArray:
        """The rounds that are neither answered nor given up, ascending."""
        return np.flatnonzero(np.frombuffer(bytes(self.updated), np.uint8) == OPEN)

    HEADER = ("round", "token")
    ARRAYS = ("updated", "ledger")

    def about(self) -> dict[str, Any]:
        """The entries of the header of a file."""
        return {"round": self.round, "token": self.token}

    def packed(self, clients: int) -> Arrays:
        """The state of every round, and the seals of the outstanding cohorts."""
        seals = np.frombuffer(bytes(self._seals), np.uint8).reshape(-1, SEAL)
        rounds = self.outstanding()
        rounds = rounds[seals[rounds].any(axis=1)]
        return {
            "updated": np.frombuffer(bytes(self.updated), dtype=np.uint8),
            "ledger.rounds": rounds,
            "ledger.seals": seals[rounds],
        }

    def restore(self, saved: Saved) -> None:
        """Take over what was saved. Earlier versions saved no seals."""
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
        """Take over the seals of these rounds, checked."""
        shaped("ledger.rounds", rounds, (len(rounds),), "iu")
        within("ledger.rounds", rounds, Range("a round", 0.0, self.round - 1.0, whole=True))
        shaped("ledger.seals", seals, (len(rounds), SEAL), "u")
        for round, kept in zip(rounds.tolist(), seals.astype(np.uint8), strict=True):
            self._seals[self._place(round)] = kept.tobytes()

    def _place(self, round: int) -> slice:
        """The bytes of a round's seal."""
        return slice(SEAL * round, SEAL * (round + 1))


def seal(cohort: Cohort) -> bytes:
    """A hash of all fields of a cohort that learning looks at.

    Numbers count in single precision. A journal keeps no more, so that a cohort from a journal has
    the seal of the cohort that was drawn.
    """
    integers = [cohort.ids, cohort.count]
    numbers = [cohort.expected, cohort.weight, cohort.answer_probability, cohort.availability]
    scalars = np.array([cohort.budget, cohort.most])
    data = [part.astype("<i8") for part in integers]
    data += [part.astype("<f4") for part in (*numbers, scalars)]
    return blake2b(b"".join(part.tobytes() for part in data), digest_size=SEAL).digest()

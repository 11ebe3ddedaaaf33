"""A round in which clients ask one by one whether they take part."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvib.clients.check_in import Admission, coin
from kvib.files import intact
from kvib.files.part import Part, Saved
from kvib.procedures import independent
from kvib.sampler.drawing import Draw, Drawing
from kvib.sampler.eligible import Design
from kvib.sampler.parts import Parts
from kvib.types import FloatArray, IntArray, Key


class CheckIn(Part):
    """A round of check-ins: every client tosses a coin, made of (seed, round, key).

    The client takes part where its coin is below its probability.

    Args:
        parts: The parts of the sampler.
        drawing: The part that gives the probabilities, and that opens the round in the end.
    """

    HEADER = ("check-in",)

    def __init__(self, parts: Parts, drawing: Drawing) -> None:
        self._parts = parts
        self._drawing = drawing
        self._design: Design | None = None
        self.is_open = False
        """Whether clients are checking in for the coming round."""

    def open(self) -> None:
        """Fix the probabilities of the coming round, until `close`."""
        self._design, self.is_open = self._fixed(), True

    def close(self) -> None:
        """End the check-in."""
        self._design, self.is_open = None, False

    def refuse(self, call: str) -> None:
        """Refuse a call that would change the probabilities of an open check-in."""
        if self.is_open:
            round = self._parts.rounds.round
            raise ValueError(
                f"round {round} is open for check-in, and its probabilities must not change; "
                f"gather(keys) ends it, then {call}"
            )

    def admit(self, key: Key) -> Admission:
        """The answer to a client that asks. The check-in must be open."""
        assert self._design is not None
        ids = self._parts.population.ids([key])
        p = self._design.expected(ids)
        if self._coins(ids)[0] >= p[0]:
            return Admission(False, 0.0)
        expected_answers = self._parts.rates.at(ids) * p  # q·p
        return Admission(True, float((self._parts.population.share(ids) / expected_answers)[0]))

    def gathered(self, keys: Sequence[Key]) -> Draw:
        """The draw whose cohort are these clients, each of which must have been admitted."""
        parts = self._parts
        ids = np.unique(parts.population.ids(keys))
        design = self._fixed() if self._design is None else self._design
        p = design.expected(ids)
        refused = ids[self._coins(ids) >= p]
        if len(refused):
            [name] = parts.population.keys(refused[:1])
            raise ValueError(
                f"client {name!r} was not admitted to round {parts.rounds.round}; gather only "
                "those that admit(key) admits"
            )
        cohort = parts.eligible.cohort(ids, p)
        return self._drawing.drawn(cohort, design.budget, design.requested)

    def _fixed(self) -> Design:
        """The design of the coming round, or an error where clients cannot ask one by one."""
        rates, procedure = self._parts.rates, self._parts.eligible.procedure
        if procedure is not independent:
            raise ValueError(
                f"only independent coins can be tossed one by one, not {procedure!r}; make "
                "the sampler with procedure=kvib.independent"
            )
        if not rates.availability_known:
            raise ValueError(
                "who does not ask is not known, so availability cannot be learned from check-ins; "
                "give Sampler(availability=…) the probability, or leave it out"
            )
        if self._parts.memory is not None and rates.always:
            raise ValueError(
                "who does not ask is not known, so an estimator that remembers cannot leave them "
                "out; give Sampler(availability=…) the probability that a client asks"
            )
        return self._drawing.unlisted()

    def _coins(self, ids: IntArray) -> FloatArray:
        """The coins of these clients in the coming round: numbers in [0, 1), [m]."""
        seed, round = self._drawing.seed, self._parts.rounds.round
        return np.array([coin(seed, round, key) for key in self._parts.population.keys(ids)])

    def about(self) -> dict[str, Any]:
        """Whether the check-in is open, for the header of a file."""
        return {"check-in": self.is_open}

    def restore(self, saved: Saved) -> None:
        """Open the check-in again if it was open, once everything else is restored."""
        if intact.flag(saved.about, "check-in"):
            self.open()

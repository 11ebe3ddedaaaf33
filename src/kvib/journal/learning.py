"""A policy that learns from the rounds of a journal before it takes over."""

from collections.abc import Callable

import numpy as np

from kvib import growing
from kvib.checks import positive_weights
from kvib.journal.cohorts import lengthened
from kvib.journal.file import JournalFile
from kvib.journal.layout import Drawn, Event
from kvib.journal.records import EventRecord
from kvib.sampler import switching
from kvib.sampler.learner import Learner
from kvib.sampler.state import State
from kvib.sampler.switching import Learned, Way
from kvib.types import FloatArray, IntArray


def taught(state: State, file: JournalFile, begun: FloatArray, way: Way) -> tuple[Learner, Learned]:
    """A new policy after all rounds whose details are still there, in the order of their feedback.

    Clients join, leave and change their weights as they did. Where rounds were removed nothing says
    who was there at the first that is left: then the policy starts with the clients and the weights
    of today. That is the same for what it learns of norms, which do not depend on weights.

    Args:
        state: of the sampler, which is only looked at.
        file: its journal.
        begun: λ at the beginning.
        way: the new policy.
    """
    removed, population = file.about["removed"], state.population
    if removed:
        weights = population.raw[: population.count]
        pupil = Pupil(state, begun, switching.fresh(state, way), weights)
        first, lessons = file.row(Drawn, removed).event, _ROUNDS
    else:
        pupil = Pupil(state, begun, switching.beginner(state, way, begun), begun)
        first, lessons = 1, _ROUNDS | _CHANGES
    for event in file.events(range(first, file.last + 1)):
        if event.kind in lessons:
            lessons[event.kind](pupil, event)
    return pupil.learner, Learned(pupil.rounds, file.tip.heard - pupil.rounds)


class Pupil:
    """A policy that is shown what happened, and the clients at the moment that it is shown.

    Args:
        state: of the sampler whose past it is; it is only looked at.
        begun: λ at the beginning.
        learner: with room for all clients of today.
        weights: of the clients who are there at first, in the population's units.
    """

    def __init__(
        self, state: State, begun: FloatArray, learner: Learner, weights: FloatArray
    ) -> None:
        self._state = state
        self._begun = begun
        self.learner = learner
        self._count = len(weights)
        self._gone: set[int] = set()
        self._weights = growing.widened(weights, len(state.population.raw))
        self._drawn: dict[int, EventRecord] = {}
        """Not heard of yet."""
        self.rounds = 0
        """How many it learned from."""

    def draw(self, event: Event) -> None:
        """A cohort, whose feedback may come later."""
        assert event.round is not None
        self._drawn[event.round] = event.record

    def feedback(self, event: Event) -> None:
        """As `Sampler` learns from it, of probabilities in single precision."""
        assert event.round is not None
        record = self._drawn.pop(event.round, None)
        if record is None:  # drawn before the first round that is left
            return
        self.rounds += 1
        norms = event.record["norms"].astype(np.float64)
        answered = ~np.isnan(norms)
        if answered.any():
            cohort = lengthened(record, self._begun, round=event.round)
            heard = cohort.take(answered)
            self.learner.learn(heard, self._weights[heard.ids] * norms[answered])

    def join(self, event: Event) -> None:
        """As `Sampler.join`."""
        ids, weights = event.record["ids"], self._in_units(event)
        fresh = ids >= self._count
        self.learner.enter(ids[fresh], weights[fresh])
        self._reweigh(ids[~fresh], weights[~fresh])
        self._weights[ids] = weights
        self._count += int(np.count_nonzero(fresh))
        self._gone.difference_update(ids.tolist())
        self._resize()

    def leave(self, event: Event) -> None:
        """As `Sampler.leave`."""
        self._gone.update(self._ids(event).tolist())
        self._resize()

    def reweigh(self, event: Event) -> None:
        """As `Sampler.reweigh`."""
        self._reweigh(self._ids(event), self._in_units(event))

    def _reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        self.learner.reweigh(ids, weights, weights / self._weights[ids])
        self._weights[ids] = weights

    def _resize(self) -> None:
        self._state.resize(self.learner, self._count - len(self._gone))

    def _ids(self, event: Event) -> IntArray:
        return self._state.population.ids(event.record["keys"])

    def _in_units(self, event: Event) -> FloatArray:
        return self._state.population.in_units(positive_weights(event.record["weights"]))


Lessons = dict[str, Callable[[Pupil, Event], None]]
_ROUNDS: Lessons = {"draw": Pupil.draw, "update": Pupil.feedback, "finish": Pupil.feedback}
_CHANGES: Lessons = {"join": Pupil.join, "leave": Pupil.leave, "reweigh": Pupil.reweigh}
"""What there is to be learned from the events of a journal, by their kinds."""

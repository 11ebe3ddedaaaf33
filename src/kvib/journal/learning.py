"""How a new policy learns from the past rounds of a journal before it takes over."""

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
    """A new policy after all rounds whose details are kept, and how many rounds taught it.

    The policy sees feedback in the order in which it arrived. Clients join, leave and change their
    weights as they did then. Where rounds were removed, the file does not say which clients were
    present at the first round that is left: then the policy starts with the present clients and
    their present weights. What it learns of norms is the same, since norms do not depend on
    weights.

    Args:
        state: The state of the sampler. It is read and not changed.
        file: The journal of the sampler.
        begun: λ at the beginning.
        way: The new policy with its procedure and guard.
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
    return pupil.learner, Learned(pupil.rounds, file.tip.answered - pupil.rounds)


class Pupil:
    """A new policy that is shown past events one by one, with the population at each event.

    Args:
        state: The state of the sampler whose past is shown. It is read and not changed.
        begun: λ at the beginning.
        learner: The new policy, with room for all present clients.
        weights: Weights of the clients at the first event, in the population's units.
    """

    def __init__(
        self, state: State, begun: FloatArray, learner: Learner, weights: FloatArray
    ) -> None:
        self._state = state
        self._begun = begun
        self.learner = learner
        self._count = len(weights)
        self._departed: set[int] = set()
        self._weights = growing.widened(weights, len(state.population.raw))
        self._drawn: dict[int, EventRecord] = {}
        """Recorded draws without feedback yet, by their rounds."""
        self.rounds = 0
        """The number of rounds that the policy learned from."""

    def draw(self, event: Event) -> None:
        """Keep a recorded draw until its feedback comes."""
        assert event.round is not None
        self._drawn[event.round] = event.record

    def feedback(self, event: Event) -> None:
        """Learn from recorded feedback as `Sampler.update` does, with recorded probabilities."""
        assert event.round is not None
        record = self._drawn.pop(event.round, None)
        if record is None:  # drawn before the first round that is left
            return
        self.rounds += 1
        norms = event.record["norms"].astype(np.float64)
        answered = ~np.isnan(norms)
        if answered.any():
            cohort = lengthened(record, self._begun, round=event.round)
            answers = cohort.take(answered)
            self.learner.learn(answers, self._weights[answers.ids] * norms[answered])

    def join(self, event: Event) -> None:
        """Let clients join, or return with their history."""
        ids, weights = event.record["ids"], self._in_units(event)
        fresh = ids >= self._count
        self.learner.enter(ids[fresh], weights[fresh])
        self._reweigh(ids[~fresh], weights[~fresh])
        self._weights[ids] = weights
        self._count += int(np.count_nonzero(fresh))
        self._departed.difference_update(ids.tolist())
        self._resize()

    def leave(self, event: Event) -> None:
        """Let clients leave."""
        self._departed.update(self._ids(event).tolist())
        self._resize()

    def reweigh(self, event: Event) -> None:
        """Change the weights of clients."""
        self._reweigh(self._ids(event), self._in_units(event))

    def _reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Give the policy new weights of known clients, in the population's units."""
        self.learner.reweigh(ids, weights, weights / self._weights[ids])
        self._weights[ids] = weights

    def _resize(self) -> None:
        """Give the policy the number of clients in the population."""
        self._state.resize(self.learner, self._count - len(self._departed))

    def _ids(self, event: Event) -> IntArray:
        """Ids of the clients that an event names."""
        return self._state.population.ids(event.record["keys"])

    def _in_units(self, event: Event) -> FloatArray:
        """The weights of an event, in the population's units."""
        return self._state.population.in_units(positive_weights(event.record["weights"]))


Lessons = dict[str, Callable[[Pupil, Event], None]]
"""Methods of a pupil by the kind of event that they take."""
_ROUNDS: Lessons = {"draw": Pupil.draw, "update": Pupil.feedback, "finish": Pupil.feedback}
"""Events of rounds."""
_CHANGES: Lessons = {"join": Pupil.join, "leave": Pupil.leave, "reweigh": Pupil.reweigh}
"""Events that change the population."""

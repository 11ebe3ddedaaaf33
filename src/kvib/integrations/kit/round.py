"""One cohort between its draw and its step: who was asked, who was heard, and who was not."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from kvib.cohort import Cohort
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class Silence(Enum):
    """Why there is nothing usable from a client."""

    OFFLINE = "offline"
    """It could not be reached."""
    LATE = "late"
    """It was reached, and did not answer in time."""
    REFUSED = "refused"
    """It answered, and the answer is no update."""


class Refusal(NamedTuple):
    """Why a client was not heard."""

    kind: Silence
    why: str


class Round:
    """A drawn cohort, and what is known of its clients so far. Clients are known by position.

    An adapter asks `answers` whose answer it holds, and says `refuse` where that is no update. The
    round ends once, in one of four ways: `Visible().begin(round, model)` sums arrays, `step` takes
    all updates at once, `learn` takes norms where the framework sums, and `give_up` learns nothing.

    Args:
        sampler: which drew the cohort.
        cohort: as it was drawn.
        keys: what the framework calls its clients; None: the sampler's keys.
    """

    def __init__(
        self, sampler: AnySampler, cohort: Cohort, keys: Sequence[Key] | None = None
    ) -> None:
        self.sampler, self.cohort = sampler, cohort
        self.keys = sampler.keys(cohort.ids) if keys is None else list(keys)
        """In the order of the cohort."""
        self.unanswered: dict[Key, Refusal] = {}
        """Clients that were not heard, and why."""
        self._waiting = {key: position for position, key in enumerate(self.keys)}
        """Positions of clients that have not answered yet."""

    def __len__(self) -> int:
        """The number of clients drawn."""
        return len(self.cohort)

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients were not heard."""
        return {key: refusal.why for key, refusal in self.unanswered.items()}

    def answers(self, key: Key) -> int | None:
        """The position of a client that answers; None if it was not asked, or answered before."""
        return self._waiting.pop(key, None)

    def refuse(self, position: int, why: str, kind: Silence = Silence.REFUSED) -> None:
        """A client's answer does not count."""
        key = self.keys[position]
        self._waiting.pop(key, None)
        self.unanswered[key] = Refusal(kind, why)

    def refuse_silent(self) -> None:
        """Clients that have not answered are late."""
        for position in list(self._waiting.values()):
            self.refuse(position, "no answer", Silence.LATE)

    def step(self, updates: dict[int, Any]) -> Any:
        """The estimated step from updates by position; the sampler has learned then."""
        ordered = [updates.get(position) for position in range(len(self))]
        return self.sampler.step(self.cohort, ordered)

    def learn(self, norms: ArrayLike) -> None:
        """Norms of the updates that the framework summed itself; NaN: no answer."""
        self.sampler.update(self.cohort, norms)

    def give_up(self) -> None:
        """The round was lost; the sampler learns nothing from it."""
        self.sampler.give_up(self.cohort)

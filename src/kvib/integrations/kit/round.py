"""One cohort between its draw and its step: which clients answered, and which did not."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from kvib.cohort import Cohort
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class Silence(Enum):
    """Names the reason why a drawn client sent nothing usable.

    Examples:
        >>> from kvib.integrations.kit import Silence
        >>> Silence("late") is Silence.LATE
        True
    """

    OFFLINE = "offline"
    """The client could not be reached."""
    LATE = "late"
    """The client was reached and did not answer in time."""
    REFUSED = "refused"
    """The client answered, and the answer is not an update."""


class Refusal(NamedTuple):
    """Explains why a drawn client counts as silent.

    Examples:
        >>> from kvib.integrations.kit import Refusal, Silence
        >>> Refusal(Silence.OFFLINE, "it is offline").why
        'it is offline'
    """

    kind: Silence
    """The kind of the reason."""
    why: str
    """The reason in words, for logs."""


class Round:
    """Keeps a drawn cohort, and records which of its clients answered.

    Clients are known by their position in the cohort. When an answer arrives, an adapter calls
    `answers` for the position of its client. It calls `refuse` if the answer is not an update. The
    round ends once, in one of four ways: `Visible().begin(round, model)` sums arrays, `step` takes
    all updates at once, `learn` takes norms where the framework sums the updates itself, and
    `give_up` learns nothing.

    Args:
        sampler: The sampler that drew the cohort.
        cohort: The cohort.
        keys: The names that the framework has for the clients of the cohort, in its order. None
            means the sampler's keys.

    Examples:
        >>> import kvib
        >>> from kvib.integrations.kit import Round
        >>> options = {"keys": ["ann", "bob"], "response": kvib.EstimatedRate()}
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1, 1], budget=2, **options)
        >>> round = Round(sampler, sampler.draw())
        >>> position = round.answers("ann")
        >>> round.refuse_silent()
        >>> round.refused
        {'bob': 'no answer'}
        >>> float(round.step({position: 3.0}))
        1.5
    """

    def __init__(
        self, sampler: AnySampler, cohort: Cohort, keys: Sequence[Key] | None = None
    ) -> None:
        self.sampler, self.cohort = sampler, cohort
        self.keys = sampler.keys(cohort.ids) if keys is None else list(keys)
        """The names of the clients, in the order of the cohort."""
        self.unanswered: dict[Key, Refusal] = {}
        """The clients that did not answer, and the reason of each."""
        self._waiting = {key: position for position, key in enumerate(self.keys)}
        """The positions of the clients that have not answered yet, by key."""

    def __len__(self) -> int:
        """The number of drawn clients."""
        return len(self.cohort)

    @property
    def refused(self) -> dict[Key, str]:
        """The reasons why clients did not answer, by key."""
        return {key: refusal.why for key, refusal in self.unanswered.items()}

    def answers(self, key: Key) -> int | None:
        """Record that a client answers, and return its position in the cohort.

        Args:
            key: The name of the client. The result is None if the client was not drawn, or if it
                has answered or was refused before.
        """
        return self._waiting.pop(key, None)

    def refuse(self, position: int, why: str, kind: Silence = Silence.REFUSED) -> None:
        """Record that a client counts as silent.

        Args:
            position: The position of the client in the cohort.
            why: The reason in words, for logs.
            kind: The kind of the reason.
        """
        key = self.keys[position]
        self._waiting.pop(key, None)
        self.unanswered[key] = Refusal(kind, why)

    def refuse_silent(self) -> None:
        """Mark all clients that have not answered yet as late."""
        for position in list(self._waiting.values()):
            self.refuse(position, "no answer", Silence.LATE)

    def step(self, updates: dict[int, Any]) -> Any:
        """Estimate the step from all updates at once, and let the sampler learn.

        Args:
            updates: The updates by position. A position that is missing did not answer.
        """
        ordered = [updates.get(position) for position in range(len(self))]
        return self.sampler.step(self.cohort, ordered)

    def learn(self, norms: ArrayLike) -> None:
        """Let the sampler learn where the framework has summed the updates itself.

        Args:
            norms: The norms of the updates, in the order of the cohort. NaN marks a client that did
                not answer.
        """
        self.sampler.update(self.cohort, norms)

    def give_up(self) -> None:
        """Close a round that was lost, so that the sampler learns nothing from it."""
        self.sampler.give_up(self.cohort)

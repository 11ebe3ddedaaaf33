"""The cool-down: a client that was drawn waits some rounds before it can be drawn again."""

from typing import Any

import numpy as np

from kvib.files import intact
from kvib.files.intact import Range
from kvib.files.part import Part, Saved
from kvib.types import Arrays, BoolArray, IntArray


class CoolDown(Part):
    """The clients that wait. A client drawn in round t can be drawn again from t + 1 + rounds on.

    Args:
        rounds: The number of rounds that a client waits.
    """

    def __init__(self, rounds: int) -> None:
        if isinstance(rounds, bool) or not rounds >= 0 or rounds % 1:
            raise ValueError(f"cool_down={rounds} is not a number of rounds ≥ 0")
        self.rounds = int(rounds)
        self._queue: list[tuple[int, IntArray]] = []
        self._waiting: set[int] = set()

    @property
    def ids(self) -> IntArray:
        """Ids of the clients that wait, departed clients included."""
        return np.concatenate([np.empty(0, np.int64), *(ids for _, ids in self._queue)])

    def has(self, ids: IntArray) -> BoolArray:
        """Whether these clients wait, [m]."""
        return np.array([i in self._waiting for i in ids.tolist()], np.bool_)

    def add(self, ids: IntArray, round: int) -> IntArray:
        """Let the clients drawn in this round wait; returns those that now wait."""
        if self.rounds == 0:
            return ids[:0]
        self._queue.append((round, ids))
        self._waiting.update(ids.tolist())
        return ids

    def released(self, round: int) -> IntArray:
        """End the wait of the clients that can be drawn in this round again; returns their ids."""
        free = [ids for drawn, ids in self._queue if drawn + self.rounds < round]
        self._queue = self._queue[len(free) :]
        released = np.concatenate([np.empty(0, np.int64), *free])
        self._waiting.difference_update(released.tolist())
        return released

    HEADER = ("cool down",)
    ARRAYS = ("resting",)

    def about(self) -> dict[str, Any]:
        """The number of rounds that clients wait, for the header of a file."""
        return {"cool down": self.rounds}

    def packed(self, clients: int) -> Arrays:
        """The clients that wait, and the rounds in which they were drawn."""
        rounds = [np.full(len(ids), t) for t, ids in self._queue]
        since = np.concatenate([np.empty(0, np.int64), *rounds])
        return {"resting.ids": self.ids, "resting.rounds": since}

    def restore(self, saved: Saved) -> None:
        """Take over the clients that a file lists as waiting."""
        arrays, last = saved.part("resting"), saved.round - 1
        intact.names("resting", arrays, ("ids", "rounds"))
        ids, rounds = intact.ids("resting.ids", arrays["ids"], saved.clients), arrays["rounds"]
        intact.shaped("resting.rounds", rounds, ids.shape, "iu")
        first = max(0, saved.round - self.rounds)
        late = Range("the last rounds", first, last, whole=True)
        intact.within("resting.rounds", rounds, late)
        self._queue = [(int(t), ids[rounds == t]) for t in np.unique(rounds)]
        self._waiting = set(ids.tolist())

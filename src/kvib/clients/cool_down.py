"""Clients that wait: drawn not long ago, they cannot be drawn again yet."""

from typing import Any

import numpy as np

from kvib.files import intact
from kvib.files.intact import Range
from kvib.files.part import Part, Saved
from kvib.types import Arrays, BoolArray, IntArray


class CoolDown(Part):
    """A client drawn in round t can be drawn again from round t + 1 + `rounds` on."""

    def __init__(self, rounds: int) -> None:
        if isinstance(rounds, bool) or not rounds >= 0 or rounds % 1:
            raise ValueError(f"cool_down={rounds} is not a number of rounds ≥ 0")
        self.rounds = int(rounds)
        self._queue: list[tuple[int, IntArray]] = []
        self._who: set[int] = set()

    @property
    def ids(self) -> IntArray:
        """Who waits, whether here or gone."""
        return np.concatenate([np.empty(0, np.int64), *(ids for _, ids in self._queue)])

    def has(self, ids: IntArray) -> BoolArray:
        """Whether they wait."""
        return np.array([i in self._who for i in ids.tolist()], np.bool_)

    def add(self, ids: IntArray, round: int) -> IntArray:
        """These were drawn in this round; those of them who now wait."""
        if self.rounds == 0:
            return ids[:0]
        self._queue.append((round, ids))
        self._who.update(ids.tolist())
        return ids

    def released(self, round: int) -> IntArray:
        """Whoever need not wait in this round any more."""
        free = [ids for drawn, ids in self._queue if drawn + self.rounds < round]
        self._queue = self._queue[len(free) :]
        released = np.concatenate([np.empty(0, np.int64), *free])
        self._who.difference_update(released.tolist())
        return released

    HEADER = ("cool down",)
    ARRAYS = ("resting",)

    def about(self) -> dict[str, Any]:
        """The number of rounds, for the header of a file."""
        return {"cool down": self.rounds}

    def packed(self, clients: int) -> Arrays:
        """Who waits, and since when."""
        rounds = [np.full(len(ids), t) for t, ids in self._queue]
        since = np.concatenate([np.empty(0, np.int64), *rounds])
        return {"resting.ids": self.ids, "resting.rounds": since}

    def restore(self, saved: Saved) -> None:
        """What was saved."""
        arrays, last = saved.part("resting"), saved.round - 1
        intact.names("resting", arrays, ("ids", "rounds"))
        ids, rounds = intact.ids("resting.ids", arrays["ids"], saved.clients), arrays["rounds"]
        intact.shaped("resting.rounds", rounds, ids.shape, "iu")
        first = max(0, saved.round - self.rounds)
        late = Range("the last rounds", first, last, whole=True)
        intact.within("resting.rounds", rounds, late)
        self._queue = [(int(t), ids[rounds == t]) for t in np.unique(rounds)]
        self._who = set(ids.tolist())

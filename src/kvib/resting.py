"""Clients that wait: drawn not long ago, they cannot be drawn again yet."""

import numpy as np

from kvib.cohort import Arrays, IntArray


class Resting:
    """A client drawn in round t can be drawn again from round t + 1 + `rounds` on."""

    def __init__(self, rounds: int) -> None:
        if isinstance(rounds, bool) or int(rounds) != rounds or rounds < 0:
            raise ValueError(f"cool_down={rounds} is not a number of rounds ≥ 0")
        self.rounds = int(rounds)
        self._queue: list[tuple[int, IntArray]] = []

    @property
    def ids(self) -> IntArray:
        """Who waits."""
        return np.concatenate([np.empty(0, np.int64), *(ids for _, ids in self._queue)])

    def add(self, ids: IntArray, round: int) -> IntArray:
        """These were drawn in this round; those of them who now wait."""
        if self.rounds == 0:
            return ids[:0]
        self._queue.append((round, ids))
        return ids

    def released(self, round: int) -> IntArray:
        """Whoever need not wait in this round any more."""
        free = [ids for drawn, ids in self._queue if drawn + self.rounds < round]
        self._queue = self._queue[len(free) :]
        return np.concatenate([np.empty(0, np.int64), *free])

    def drop(self, gone: IntArray) -> None:
        """These left."""
        self._queue = [(t, np.setdiff1d(ids, gone)) for t, ids in self._queue]

    def packed(self) -> Arrays:
        """As arrays."""
        rounds = [np.full(len(ids), t) for t, ids in self._queue]
        return {"ids": self.ids, "rounds": np.concatenate([np.empty(0, np.int64), *rounds])}

    def restore(self, arrays: Arrays) -> None:
        """What `packed` packed."""
        rounds, ids = arrays["rounds"], arrays["ids"].astype(np.int64)
        self._queue = [(int(t), ids[rounds == t]) for t in np.unique(rounds)]

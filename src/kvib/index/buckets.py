"""Clients sorted by the exponent of a score: threshold, draws and changes that never look at all.

A client with score s lies in the bucket (2^(e−1), 2^e] that holds s. Buckets are segments of one
array, so that moving a client from one to the next moves a border. The scores themselves stay where
they are: whoever calls knows them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib import exact_sum
from kvib.compiled import kernel
from kvib.files import intact
from kvib.files.intact import CLOSE, FINITE, Range, demand
from kvib.types import Arrays, BoolArray, FloatArray, IntArray, Scores

EXPONENTS = 2048
"""One bucket for each exponent that a float64 can have."""
ZERO = 1023
"""The bucket of scores in (½, 1]."""
SMALLEST = 2.0**-1000
"""Scores below it count as this: a score of 0 would mean probability 0."""
CHUNK = 1 << 16
"""Clients looked at together when all are."""

Places = NDArray[np.int32]
"""Clients, or positions: four bytes each suffice."""


class Threshold(NamedTuple):
    """c of p = min(1, c·score)."""

    c: float
    certain: IntArray
    """Clients with p = 1, ascending."""


class Buckets:
    """Who is in which bucket, and what the scores of each sum to."""

    def __init__(self, room: int) -> None:
        self.order: Places = np.full(room, -1, np.int32)
        """Clients, bucket by bucket."""
        self.place: Places = np.full(room, -1, np.int32)
        """Where each client is in `order`; −1: nowhere."""
        self.start = np.zeros(EXPONENTS + 1, np.int64)
        """Where each bucket begins in `order`."""
        self.sums = np.zeros((2, EXPONENTS))
        """Σ price·score of each bucket and the rounding error of that sum: after any number of
        changes it is as good as a sum made afresh."""

    def __len__(self) -> int:
        return int(self.start[-1])

    def widen(self, room: int) -> None:
        """Room for more clients."""
        more = np.full(room - len(self.place), -1, np.int32)
        self.order = np.concatenate([self.order, more])
        self.place = np.concatenate([self.place, more])

    def build(self, ids: IntArray, scores: Scores, prices: Scores) -> None:
        """Put these clients in, and nobody else."""
        self.place[:], self.sums[:] = -1, 0.0
        counts = np.zeros(EXPONENTS, np.int64)
        parts = range(0, len(ids), CHUNK)
        for low in parts:
            some = ids[low : low + CHUNK]
            s = scores(some)
            at = _buckets(s)
            _count(at, counts)
            exact_sum.add_at(self.sums, at, prices(some) * s)
        self.start[1:] = np.cumsum(counts)
        free = self.start[:-1].copy()
        for low in parts:
            some = ids[low : low + CHUNK]
            _fill(some, _buckets(scores(some)), free, self.order, self.place)

    def insert(self, ids: IntArray, scores: FloatArray, prices: FloatArray) -> None:
        """Put clients in that are nowhere."""
        at = _buckets(scores)
        _insert(ids, at, self.order, self.place, self.start)
        exact_sum.add_at(self.sums, at, prices * scores)

    def remove(self, ids: IntArray, scores: FloatArray, prices: FloatArray) -> None:
        """Take clients out."""
        at = _buckets(scores)
        last = _remove(ids, at, self.order, self.place, self.start)
        exact_sum.take_at(self.sums, at, prices * scores, last)

    def change(self, ids: IntArray, old: FloatArray, new: FloatArray, prices: FloatArray) -> None:
        """Clients that are in, with new scores."""
        source, target = _buckets(old), _buckets(new)
        last = _change(ids, source, target, self.order, self.place, self.start)
        exact_sum.change_at(self.sums, source, prices * old, last, target, prices * new)

    def packed(self) -> Arrays:
        """All but what follows from it."""
        return {"order": self.order[: len(self)], "start": self.start, "sums": self.sums}

    def restore(self, arrays: Arrays, out: IntArray, name: str) -> None:
        """What `packed` packed, of all clients but these."""
        intact.names(name, arrays, ("order", "start", "sums"))
        order, start, sums = arrays["order"], arrays["start"], arrays["sums"]
        room = len(self.place)
        intact.shaped(f"{name}.order", order, (room - len(out),), "iu")
        intact.within(f"{name}.order", order, Range("ids", 0, room - 1, whole=True))
        intact.shaped(f"{name}.start", start, self.start.shape, "iu")
        demand(
            start[0] == 0 and start[-1] == len(order) and (start[:-1] <= start[1:]).all(),
            f"{name}.start does not part {len(order)} clients into buckets",
        )
        intact.shaped(f"{name}.sums", sums, self.sums.shape)
        intact.within(f"{name}.sums", sums, FINITE)
        self.start[:], self.sums[:] = start, sums
        self.order[: len(order)] = order
        self.place[:] = -1
        at = np.arange(len(order), dtype=np.int32)
        self.place[order] = at
        demand((self.place[order] == at).all(), f"{name}.order lists a client twice")
        demand((self.place[out] < 0).all(), f"{name}.order lists one who cannot be drawn")

    def agree(self, scores: Scores, prices: Scores) -> bool:
        """Whether clients are in the buckets of their scores, and sums are those of the buckets."""
        sums = np.zeros(EXPONENTS)
        for low in range(0, len(self), CHUNK):
            at = np.arange(low, min(low + CHUNK, len(self)))
            ids = self.order[at].astype(np.int64)
            s = scores(ids)
            bucket = _buckets(s)
            if not ((self.start[bucket] <= at) & (at < self.start[bucket + 1])).all():
                return False
            sums += np.bincount(bucket, prices(ids) * s, EXPONENTS)
        return bool((np.abs(self.sums.sum(axis=0) - sums) <= CLOSE * sums).all())

    def members(self, bucket: int) -> IntArray:
        """Clients of one bucket."""
        return self.order[self.start[bucket] : self.start[bucket + 1]].astype(np.int64)

    def occupied(self) -> IntArray:
        """Buckets with clients in them, ascending."""
        return np.flatnonzero(np.diff(self.start))

    def threshold(
        self, budget: float, scores: Scores, prices: Scores, cap: float = 1.0
    ) -> Threshold:
        """c with Σ price·min(cap, c·score) = budget.

        From the top down: whoever exceeds the cap is taken out and the rest share what is left.
        A bucket is opened only if its upper end exceeds the cap, and then it holds few: scores in
        it differ by a factor of 2, so its prices are at most twice what is left of the budget.
        """
        occupied = self.occupied()
        sums = self.sums[:, occupied].sum(axis=0)
        below = np.concatenate([[0.0], np.cumsum(sums)])  # Σ of the lower ones: no cancellation
        left, rest, certain, least = budget, float(below[-1]), [], 0.0
        for k in range(len(occupied) - 1, -1, -1):
            rest = float(below[k + 1])
            if not np.isfinite(cap) or upper_end(occupied[k]) * left < cap * rest:
                break
            ids = self.members(int(occupied[k]))
            s = scores(ids)
            falling = np.lexsort((ids, -s))
            ids, s, price = ids[falling], s[falling], prices(ids[falling])
            tails = below[k] + np.cumsum((price * s)[::-1])[::-1]
            spent = cap * np.concatenate([[0.0], np.cumsum(price)])
            over = s * (left - spent[:-1]) >= cap * tails
            n = len(over) if over.all() else int(np.argmin(over))
            certain.append(ids[:n])
            if n:  # whoever is certain stays so, also where rounding leaves nothing of the budget
                least = cap / float(s[n - 1])
            left -= float(spent[n])
            rest = float(below[k] if n == len(ids) else tails[n])
            if n < len(ids):
                break
        c = max(left / rest, least) if rest > 0 else np.inf
        return Threshold(c, np.sort(np.concatenate([np.empty(0, np.int64), *certain])))

    def candidates(
        self, bound: Callable[[FloatArray], FloatArray], rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        """Every client independently with a probability that is the same for its whole bucket:
        `bound` of the largest score that the bucket may hold; and that bound.

        Jumps between hits are geometric, so the cost is that of the hits.
        """
        buckets = self.occupied()
        bounds = np.minimum(bound(upper_end(buckets)), 1.0)
        buckets, bounds = buckets[bounds > 0], bounds[bounds > 0]
        first, last = self.start[buckets], self.start[buckets + 1]
        at, whose = _walk(first, last, bounds, rng)
        return self.order[at].astype(np.int64), bounds[whose]


def upper_end(bucket: Any) -> Any:
    """2^e: no score in the bucket exceeds it."""
    return np.ldexp(1.0, np.asarray(bucket) - ZERO)


def _buckets(scores: FloatArray) -> IntArray:
    """The bucket of each score, from the bits of its exponent."""
    bits = np.maximum(scores, SMALLEST).view(np.int64)
    bits -= 1  # a power of two is the upper end of its bucket
    bits >>= 52
    bits += ZERO - 1022
    return bits


@kernel
def _count(buckets: IntArray, counts: IntArray) -> None:
    for b in buckets:
        counts[b] += 1


@kernel
def _fill(ids: IntArray, buckets: IntArray, free: IntArray, order: Places, place: Places) -> None:
    for k in range(len(ids)):
        at = free[buckets[k]]
        order[at], place[ids[k]] = ids[k], at
        free[buckets[k]] += 1


@kernel
def _move(
    client: int, source: int, target: int, order: Places, place: Places, start: IntArray
) -> None:
    """The client changes places with the last of its bucket, then the border passes it; and so on,
    or with the first, downwards. Most buckets are empty: there only the border moves."""
    at = place[client]
    while source < target:
        source += 1
        start[source] -= 1
        if start[source] != at:
            at = start[source]
            _swap(client, at, order, place)
    while source > target:
        if start[source] != at:
            at = start[source]
            _swap(client, at, order, place)
        start[source] += 1
        source -= 1


@kernel
def _swap(client: int, position: int, order: Places, place: Places) -> None:
    other = order[position]
    order[place[client]], place[other] = other, place[client]
    order[position], place[client] = client, position


@kernel
def _insert(
    ids: IntArray, buckets: IntArray, order: Places, place: Places, start: IntArray
) -> None:
    top = _highest(start)
    for k in range(len(ids)):
        top = max(top, buckets[k])
    for k in range(len(ids)):
        end = start[top + 1]
        order[end], place[ids[k]] = ids[k], end
        start[top + 1] += 1
        _move(ids[k], top, buckets[k], order, place, start)
    start[top + 2 :] = start[top + 1]


@kernel
def _remove(
    ids: IntArray, buckets: IntArray, order: Places, place: Places, start: IntArray
) -> BoolArray:
    """Returns where a client was the last one of its bucket, [m]."""
    top, last = _highest(start), np.empty(len(ids), np.bool_)
    for k in range(len(ids)):
        b = buckets[k]
        _move(ids[k], b, top, order, place, start)
        start[top + 1] -= 1
        _swap(ids[k], start[top + 1], order, place)
        place[ids[k]] = -1
        last[k] = start[b] == start[b + 1]
    start[top + 2 :] = start[top + 1]
    return last


@kernel
def _highest(start: IntArray) -> int:
    """The last bucket that is not empty: the thousand above it have one border, which those who
    come and go move once for all."""
    top = len(start) - 2
    while top > 0 and start[top] == start[-1]:
        top -= 1
    return top


@kernel
def _change(
    ids: IntArray,
    source: IntArray,
    target: IntArray,
    order: Places,
    place: Places,
    start: IntArray,
) -> BoolArray:
    """Returns where a client was the last one of the bucket that it left, [m]."""
    last = np.empty(len(ids), np.bool_)
    for k in range(len(ids)):
        if source[k] != target[k]:
            _move(ids[k], source[k], target[k], order, place, start)
        last[k] = start[source[k]] == start[source[k] + 1]
    return last


@kernel
def _walk(
    first: IntArray, last: IntArray, bounds: FloatArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Positions hit, and the segment of each."""
    at, whose = np.empty(64, np.int64), np.empty(64, np.int64)
    n = 0
    for k in range(len(first)):
        position = first[k] - 1
        while True:
            jump = 1 if bounds[k] >= 1.0 else rng.geometric(bounds[k])
            # beyond the end, without a sum that could overflow; or beyond what an integer can hold
            if not 1 <= jump < last[k] - position:
                break
            position += jump
            if n == len(at):
                more, other = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
                more[:n], other[:n] = at, whose
                at, whose = more, other
            at[n], whose[n] = position, k
            n += 1
    return at[:n], whose[:n]

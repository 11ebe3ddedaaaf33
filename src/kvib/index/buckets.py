"""Clients sorted by the exponent of a score: threshold, draws and changes that never look at all.

A client with score s lies in the bucket (2^(e−1), 2^e] that holds s. Buckets are segments of one
array, so that moving a client from one bucket to the next moves a border. The scores themselves are
not kept here: every method is given them.
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
"""The bucket of scores in (½, 1], whose upper end is 2^0."""
SMALLEST = 2.0**-1000
"""Scores below it lie in its bucket: a score of 0 would mean probability 0."""
CHUNK = 1 << 16
"""Clients per chunk where all clients are processed: it bounds the bytes in use."""
FIRST_HITS = 64
"""Hits of a draw that there is room for at first. The room doubles when it is full."""

Places = NDArray[np.int32]
"""Ids of clients, or positions in `Buckets.order`. Four bytes each suffice."""


class Threshold(NamedTuple):
    """The factor c of p = min(cap, c·score)."""

    c: float
    """The factor, infinite where all clients are at the cap."""
    certain: IntArray
    """The clients at the cap, ascending."""


class Buckets:
    """The clients of each bucket, and the sum of their scores.

    Args:
        room: The number of ids: all ids are below it.
    """

    def __init__(self, room: int) -> None:
        self.order: Places = np.full(room, -1, np.int32)
        """The clients, bucket by bucket."""
        self.place: Places = np.full(room, -1, np.int32)
        """The position of each client in `order`, −1 for clients that are in no bucket."""
        self.start = np.zeros(EXPONENTS + 1, np.int64)
        """The position in `order` at which each bucket begins."""
        self.sums = np.zeros((2, EXPONENTS))
        """Σ price·score of each bucket, and the rounding error of that sum. After any number of
        changes it is as good as a new sum."""

    def __len__(self) -> int:
        return int(self.start[-1])

    def widen(self, room: int) -> None:
        """Make room for more ids."""
        more = np.full(room - len(self.place), -1, np.int32)
        self.order = np.concatenate([self.order, more])
        self.place = np.concatenate([self.place, more])

    def build(self, ids: IntArray, scores: Scores, prices: Scores) -> None:
        """Empty all buckets, then insert these clients."""
        self.place[:], self.sums[:] = -1, 0.0
        # First pass: count the clients of each bucket, and sum their scores.
        counts = np.zeros(EXPONENTS, np.int64)
        chunks = range(0, len(ids), CHUNK)
        for low in chunks:
            chunk = ids[low : low + CHUNK]
            s = scores(chunk)
            at = _buckets(s)
            _count(at, counts)
            exact_sum.add_at(self.sums, at, prices(chunk) * s)
        self.start[1:] = np.cumsum(counts)
        # Second pass: write each client to the next free position of its bucket.
        free = self.start[:-1].copy()
        for low in chunks:
            chunk = ids[low : low + CHUNK]
            _fill(chunk, _buckets(scores(chunk)), free, self.order, self.place)

    def insert(self, ids: IntArray, scores: FloatArray, prices: FloatArray) -> None:
        """Insert clients that are in no bucket."""
        at = _buckets(scores)
        _insert(ids, at, self.order, self.place, self.start)
        exact_sum.add_at(self.sums, at, prices * scores)

    def remove(self, ids: IntArray, scores: FloatArray, prices: FloatArray) -> None:
        """Remove clients from their buckets."""
        at = _buckets(scores)
        last = _remove(ids, at, self.order, self.place, self.start)
        exact_sum.take_at(self.sums, at, prices * scores, last)

    def change(self, ids: IntArray, old: FloatArray, new: FloatArray, prices: FloatArray) -> None:
        """Move clients from the buckets of their old scores to those of their new scores."""
        source, target = _buckets(old), _buckets(new)
        last = _change(ids, source, target, self.order, self.place, self.start)
        exact_sum.change_at(self.sums, source, prices * old, last, target, prices * new)

    def packed(self) -> Arrays:
        """The arrays for a file. `place` follows from `order` and is not saved."""
        return {"order": self.order[: len(self)], "start": self.start, "sums": self.sums}

    def restore(self, arrays: Arrays, out: IntArray, name: str) -> None:
        """Take over what `packed` packed, checked: all clients except those in `out`."""
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
        """Whether clients are in the buckets of their scores, and sums are those of the scores."""
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
        """The clients of one bucket."""
        return self.order[self.start[bucket] : self.start[bucket + 1]].astype(np.int64)

    def occupied(self) -> IntArray:
        """The buckets that hold clients, ascending."""
        return np.flatnonzero(np.diff(self.start))

    def threshold(
        self, budget: float, scores: Scores, prices: Scores, cap: float = 1.0
    ) -> Threshold:
        """The factor c with Σ price·min(cap, c·score) = budget.

        It goes through the buckets from the highest down. Clients above the cap are set to the cap,
        and the others share what is left of the budget. A bucket is opened only if its upper end
        exceeds the cap, and then it holds few clients: scores in it differ by a factor of 2, so its
        prices are at most twice what is left of the budget.
        """
        occupied = self.occupied()
        sums = self.sums[:, occupied].sum(axis=0)
        below = np.concatenate([[0.0], np.cumsum(sums)])  # Σ of the lower ones: no cancellation
        left, rest, certain, least = budget, float(below[-1]), [], 0.0
        for k in range(len(occupied) - 1, -1, -1):
            # Stop where no client of the bucket can be at the cap.
            rest = float(below[k + 1])
            if not np.isfinite(cap) or upper_end(occupied[k]) * left < cap * rest:
                break
            # Open the bucket: its clients by falling score.
            ids = self.members(int(occupied[k]))
            s = scores(ids)
            falling = np.lexsort((ids, -s))
            ids, s, price = ids[falling], s[falling], prices(ids[falling])
            # The first n are at the cap: c·score ≥ cap with c = left/rest after those before them.
            tails = below[k] + np.cumsum((price * s)[::-1])[::-1]
            spent = cap * np.concatenate([[0.0], np.cumsum(price)])
            over = s * (left - spent[:-1]) >= cap * tails
            n = len(over) if over.all() else int(np.argmin(over))
            certain.append(ids[:n])
            if n:  # they stay at the cap, also where rounding leaves nothing of the budget
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
        """Draw clients independently, each with a bound on its probability, and return both.

        The bound is the same for a whole bucket: `bound` of the largest score that the bucket may
        hold. The jumps from one hit to the next are geometric, so the cost grows with the hits.
        """
        buckets = self.occupied()
        bounds = np.minimum(bound(upper_end(buckets)), 1.0)
        buckets, bounds = buckets[bounds > 0], bounds[bounds > 0]
        first, last = self.start[buckets], self.start[buckets + 1]
        at, segment = _walk(first, last, bounds, rng)
        return self.order[at].astype(np.int64), bounds[segment]


def upper_end(bucket: Any) -> Any:
    """2^e, which no score in the bucket exceeds."""
    return np.ldexp(1.0, np.asarray(bucket) - ZERO)


def _buckets(scores: FloatArray) -> IntArray:
    """The bucket of each score, from the bits of its exponent."""
    bits = np.maximum(scores, SMALLEST).view(np.int64)
    bits -= 1  # a power of two is the upper end of its bucket
    bits >>= 52  # the exponent is above the 52 bits of the fraction
    bits += ZERO - 1022  # scores in (½, 1] have 1022 here
    return bits


@kernel
def _count(buckets: IntArray, counts: IntArray) -> None:
    """Count the clients of each bucket."""
    for b in buckets:
        counts[b] += 1


@kernel
def _fill(ids: IntArray, buckets: IntArray, free: IntArray, order: Places, place: Places) -> None:
    """Write each client to the next free position of its bucket."""
    for k in range(len(ids)):
        at = free[buckets[k]]
        order[at], place[ids[k]] = ids[k], at
        free[buckets[k]] += 1


@kernel
def _move(
    client: int, source: int, target: int, order: Places, place: Places, start: IntArray
) -> None:
    """Move a client from bucket to bucket, until it is in the target.

    Upwards the client swaps places with the last client of its bucket, and then the border moves
    past it. Downwards it swaps with the first client. Most buckets are empty: there only the border
    moves.
    """
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
    """Let a client swap places with the client at this position."""
    other = order[position]
    order[place[client]], place[other] = other, place[client]
    order[position], place[client] = client, position


@kernel
def _insert(
    ids: IntArray, buckets: IntArray, order: Places, place: Places, start: IntArray
) -> None:
    """Append each client to the highest bucket, and move it down to its own."""
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
    """Move each client up to the highest bucket, and cut it off the end.

    Returns where a client was the last one of its bucket, [m].
    """
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
    """The highest bucket that is not empty.

    The thousand buckets above it share one border, which moves once for all clients that are
    inserted or removed.
    """
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
    """Move each client from its source to its target.

    Returns where a client was the last one of the bucket that it left, [m].
    """
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
    """The positions that are hit, and the segment of each."""
    at, segment = np.empty(FIRST_HITS, np.int64), np.empty(FIRST_HITS, np.int64)
    n = 0
    for k in range(len(first)):
        position = first[k] - 1
        while True:
            jump = 1 if bounds[k] >= 1.0 else rng.geometric(bounds[k])
            # Beyond the end, without a sum that could overflow, or beyond what an integer holds.
            if not 1 <= jump < last[k] - position:
                break
            position += jump
            if n == len(at):  # full: twice the room
                more, other = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
                more[:n], other[:n] = at, segment
                at, segment = more, other
            at[n], segment[n] = position, k
            n += 1
    return at[:n], segment[:n]

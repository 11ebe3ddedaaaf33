"""Clients as intervals, each as long as its probability, side by side in the order of ids."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvib.index.mixture import Mixture
from kvib.index.sum_tree import FANOUT, SumTree, ids_of
from kvib.types import BoolArray, FloatArray, IntArray, Scores

_TOGETHER = 1 << 16
"""Blocks whose sums are computed together: it bounds the bytes in use."""


class IntervalTree:
    """The intervals of all eligible clients, in which a point is found in O(log N).

    The length of an interval is a sum of four parts, each with a factor: the score, the weight (or
    1), 1 instead of the score for a client at the cap by score, and 1 instead of the weight for a
    client at the cap by weight. From round to round only the four factors change, and the parts of
    the drawn clients. A tree holds the sums of the parts.

    Args:
        place: −1 for clients that cannot be drawn, [room].
        scores: The scores of clients.
        weights: The weights of clients. None: all are 1.
        expected: The probabilities of clients.
    """

    def __init__(
        self,
        place: NDArray[np.int32],
        scores: Scores,
        weights: Scores | None,
        expected: Callable[[Mixture, IntArray], FloatArray],
    ) -> None:
        self._place, self._scores, self._weights, self._expected = place, scores, weights, expected
        no_clients = np.empty(0, np.int64)
        self._certain = no_clients, no_clients
        """The clients at the cap, by score and by weight."""
        self.tree = SumTree(4, len(place))
        self._refresh(np.arange(self.tree.blocks))

    def touch(self, ids: IntArray) -> None:
        """Update the sums after these clients were inserted, removed or got other scores."""
        if len(ids):
            self._refresh(np.unique(ids // FANOUT))

    def clients(self, mixture: Mixture, points: Callable[[float], FloatArray]) -> IntArray:
        """The client whose interval holds each point, [m].

        Args:
            mixture: The probabilities of the round.
            points: Gives the points, from 0 to Σp, when it is called with Σp.
        """
        # The tree finds the block of each point.
        factors = self._factors(mixture)
        positions = points(float(factors @ self.tree.total))
        blocks, left = self.tree.find(positions, factors)
        # Within the block, a running sum of probabilities finds the client.
        ids, inside = self._members(blocks)
        p = np.zeros(ids.shape)
        p[inside] = self._expected(mixture, ids[inside])
        ends = np.cumsum(p, axis=1)
        at = (ends <= left[:, None]).sum(axis=1)
        # By rounding a point may lie beyond the last client: take the last with a probability.
        last = FANOUT - 1 - np.argmax(p[:, ::-1] > 0, axis=1)
        found: IntArray = ids[np.arange(len(ids)), np.minimum(at, last)]
        return found

    def _factors(self, mixture: Mixture) -> FloatArray:
        """The factors of the four parts, [4]. The clients at the cap are updated first."""
        by_weight = mixture.by_weight
        certain = mixture.main.certain, self._certain[1] if by_weight is None else by_weight.certain
        before, self._certain = self._certain, certain
        for now, then in zip(certain, before, strict=True):
            if not np.array_equal(now, then):
                self.touch(np.setxor1d(now, then))
        θ, explored = mixture.mix, mixture.uniform if by_weight is None else by_weight.c
        factors: FloatArray = np.array([(1 - θ) * mixture.main.c, θ * explored, 1 - θ, θ])
        factors[self.tree.total == 0] = 0.0  # c is infinite where all are at the cap
        return factors

    def _refresh(self, blocks: IntArray) -> None:
        """Compute the sums of these blocks from the values of their eligible clients."""
        for low in range(0, len(blocks), _TOGETHER):
            chunk = blocks[low : low + _TOGETHER]
            ids, inside = self._members(chunk)
            values = np.zeros((4, *ids.shape))
            values[0][inside] = self._scores(ids[inside])
            values[1][inside] = 1.0 if self._weights is None else self._weights(ids[inside])
            for k, certain in enumerate(self._certain):
                if len(certain):
                    at_cap = inside & np.isin(ids, certain)
                    values[k][at_cap], values[k + 2][at_cap] = 0.0, 1.0
            self.tree.refresh(chunk, values)

    def _members(self, blocks: IntArray) -> tuple[IntArray, BoolArray]:
        """The clients of these blocks, [m, 8], and which of them can be drawn."""
        ids = ids_of(blocks)
        within = np.minimum(ids, len(self._place) - 1)  # the last block may go beyond all ids
        return within, (self._place[within] >= 0) & (ids == within)

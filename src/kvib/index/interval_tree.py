"""Clients side by side in the order of their ids, each as long as its probability."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvib.index.mixture import Mixture
from kvib.index.sum_tree import FANOUT, SumTree, ids_of
from kvib.types import BoolArray, FloatArray, IntArray, Scores

_TOGETHER = 1 << 16
"""Blocks whose sums are made together."""


class IntervalTree:
    """Where a point lies is found in O(log N), in a tree of sums.

    Lengths are sums of four parts: score, weight (or 1), and 1 instead for those at the cap by
    either. Only the factors of the parts change from round to round, and what the drawn have.

    Args:
        place: −1 for clients that cannot be drawn, [room].
        scores: of clients.
        weights: likewise; None: 1.
        expected: probabilities of clients.
    """

    def __init__(
        self,
        place: NDArray[np.int32],
        scores: Scores,
        weights: Scores | None,
        expected: Callable[[Mixture, IntArray], FloatArray],
    ) -> None:
        self._place, self._scores, self._weights, self._expected = place, scores, weights, expected
        nobody = np.empty(0, np.int64)
        self._certain = nobody, nobody
        """Clients at the cap, by score and by weight."""
        self.tree = SumTree(4, len(place))
        self._refresh(np.arange(self.tree.blocks))

    def touch(self, ids: IntArray) -> None:
        """These clients came, went, or have other scores."""
        if len(ids):
            self._refresh(np.unique(ids // FANOUT))

    def clients(self, mixture: Mixture, points: Callable[[float], FloatArray]) -> IntArray:
        """Who lies at the points that are named for a line of length Σp."""
        factors = self._factors(mixture)
        named = points(float(factors @ self.tree.total))
        blocks, left = self.tree.find(named, factors)
        ids, inside = self._members(blocks)
        p = np.zeros(ids.shape)
        p[inside] = self._expected(mixture, ids[inside])
        ends = np.cumsum(p, axis=1)
        at = (ends <= left[:, None]).sum(axis=1)
        # by rounding a point may lie beyond the last: it is the last with a probability
        last = FANOUT - 1 - np.argmax(p[:, ::-1] > 0, axis=1)
        found: IntArray = ids[np.arange(len(ids)), np.minimum(at, last)]
        return found

    def _factors(self, mixture: Mixture) -> FloatArray:
        """Of the four parts, once the tree counts as certain who is."""
        by_weight = mixture.by_weight
        certain = mixture.main.certain, self._certain[1] if by_weight is None else by_weight.certain
        before, self._certain = self._certain, certain
        for now, then in zip(certain, before, strict=True):
            if not np.array_equal(now, then):
                self.touch(np.setxor1d(now, then))
        θ, explored = mixture.mix, mixture.uniform if by_weight is None else by_weight.c
        factors: FloatArray = np.array([(1 - θ) * mixture.main.c, θ * explored, 1 - θ, θ])
        factors[self.tree.total == 0] = 0.0  # c is infinite where nobody is left
        return factors

    def _refresh(self, blocks: IntArray) -> None:
        """Sums of blocks anew, of who is in."""
        for low in range(0, len(blocks), _TOGETHER):
            some = blocks[low : low + _TOGETHER]
            ids, inside = self._members(some)
            values = np.zeros((4, *ids.shape))
            values[0][inside] = self._scores(ids[inside])
            values[1][inside] = 1.0 if self._weights is None else self._weights(ids[inside])
            for k, certain in enumerate(self._certain):
                if len(certain):
                    at_cap = inside & np.isin(ids, certain)
                    values[k][at_cap], values[k + 2][at_cap] = 0.0, 1.0
            self.tree.refresh(some, values)

    def _members(self, blocks: IntArray) -> tuple[IntArray, BoolArray]:
        """Clients of these blocks, [m, 8], and which of them can be drawn."""
        ids = ids_of(blocks)
        known = np.minimum(ids, len(self._place) - 1)
        return known, (self._place[known] >= 0) & (ids == known)

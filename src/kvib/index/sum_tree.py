"""Sums over blocks of clients, blocks of blocks, and so on: points are found in O(log N)."""

import numpy as np

from kvib.compiled import kernel
from kvib.types import FloatArray, IntArray

FANOUT = 8
"""Larger: fewer bytes, and more clients to look at for each that is drawn."""


class SumTree:
    """Several values per client, [J, N], of which only the sums over blocks of clients are kept.

    Sums are made from what is below them, never by subtraction, so they stay as good as new.
    """

    def __init__(self, kinds: int, room: int) -> None:
        sizes = [max(-(-room // FANOUT), 1)]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        self.levels = np.concatenate([[0], np.cumsum(sizes)])
        """Where each level begins; blocks of clients are the first, the root is the last."""
        self.sums = np.zeros((self.levels[-1], kinds))
        """[nodes, J]: what a search looks at lies together."""

    @property
    def blocks(self) -> int:
        """How many blocks of clients there are."""
        return int(self.levels[1])

    @property
    def total(self) -> FloatArray:
        """Of all clients, [J]."""
        whole: FloatArray = self.sums[-1]
        return whole

    def refresh(self, blocks: IntArray, values: FloatArray) -> None:
        """Blocks, ascending, whose clients now have these values, [J, m, 8]."""
        self.sums[blocks] = values.sum(axis=2).T
        _sum_up(blocks, self.levels, self.sums)

    def find(self, points: FloatArray, factors: FloatArray) -> tuple[IntArray, FloatArray]:
        """The block in which Σ factors·values reaches each point, and what is left of the point."""
        return _find(points, factors, self.levels, self.sums)


def ids_of(blocks: IntArray) -> IntArray:
    """Clients of some blocks, [m, 8]."""
    return blocks[:, None] * FANOUT + np.arange(FANOUT)


@kernel
def _sum_up(blocks: IntArray, levels: IntArray, sums: FloatArray) -> None:
    nodes = blocks.copy()
    m = len(nodes)
    for level in range(1, len(levels) - 1):
        parents = 0
        for k in range(m):
            parent = nodes[k] // FANOUT
            if parents > 0 and nodes[parents - 1] == parent:
                continue
            nodes[parents] = parent
            parents += 1
        m = parents
        for k in range(m):
            first = levels[level - 1] + FANOUT * nodes[k]
            last = min(first + FANOUT, levels[level])
            for j in range(sums.shape[1]):
                total = 0.0
                for child in range(first, last):
                    total += sums[child, j]
                sums[levels[level] + nodes[k], j] = total


@kernel
def _find(
    points: FloatArray, factors: FloatArray, levels: IntArray, sums: FloatArray
) -> tuple[IntArray, FloatArray]:
    blocks, left = np.empty(len(points), np.int64), points.copy()
    for k in range(len(points)):
        node = 0
        for level in range(len(levels) - 3, -1, -1):
            first = levels[level] + FANOUT * node
            last = min(first + FANOUT, levels[level + 1])
            inside = -1
            for child in range(first, last):
                value = 0.0
                for j in range(len(factors)):
                    value += factors[j] * sums[child, j]
                if value <= 0.0:
                    continue
                inside = child
                if left[k] < value:
                    break
                left[k] -= value
            # beyond the last by rounding: the last that has anything
            node = inside - levels[level]
        blocks[k] = node
    return blocks, left

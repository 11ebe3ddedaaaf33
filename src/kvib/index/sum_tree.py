"""A tree of sums over blocks of clients, in which a point is found in O(log N)."""

import numpy as np

from kvib.compiled import kernel
from kvib.types import FloatArray, IntArray

FANOUT = 8
"""Clients per block, and blocks per node. A larger number takes fewer bytes, and looks at more
clients for each that is drawn."""


class SumTree:
    """The sums of several values per client, [J, N], over blocks of clients and blocks of blocks.

    The values themselves are not kept. Each sum is computed from the sums below it, never by
    subtraction, so it stays as exact as a new one.

    Args:
        kinds: The number J of values per client.
        room: The number of ids: all ids are below it.
    """

    def __init__(self, kinds: int, room: int) -> None:
        sizes = [max(-(-room // FANOUT), 1)]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        self.levels = np.concatenate([[0], np.cumsum(sizes)])
        """The first node of each level. Level 0 are the blocks of clients, the last is the root."""
        self.sums = np.zeros((self.levels[-1], kinds))
        """The sums of all nodes, [nodes, J]: what a search looks at lies together."""

    @property
    def blocks(self) -> int:
        """The number of blocks of clients."""
        return int(self.levels[1])

    @property
    def total(self) -> FloatArray:
        """The sums over all clients, [J]."""
        whole: FloatArray = self.sums[-1]
        return whole

    def refresh(self, blocks: IntArray, values: FloatArray) -> None:
        """Compute the sums of these blocks, ascending, from values of their clients, [J, m, 8]."""
        self.sums[blocks] = values.sum(axis=2).T
        _sum_up(blocks, self.levels, self.sums)

    def find(self, points: FloatArray, factors: FloatArray) -> tuple[IntArray, FloatArray]:
        """The block in which Σ factors·values reaches each point, and what is left of the point."""
        return _find(points, factors, self.levels, self.sums)


def ids_of(blocks: IntArray) -> IntArray:
    """The clients of these blocks, [m, 8]."""
    return blocks[:, None] * FANOUT + np.arange(FANOUT)


@kernel
def _sum_up(blocks: IntArray, levels: IntArray, sums: FloatArray) -> None:
    """Compute the sums of all nodes above these blocks, level by level."""
    nodes = blocks.copy()
    m = len(nodes)
    for level in range(1, len(levels) - 1):
        # The parents of the nodes, each once.
        parents = 0
        for k in range(m):
            parent = nodes[k] // FANOUT
            if parents > 0 and nodes[parents - 1] == parent:
                continue
            nodes[parents] = parent
            parents += 1
        m = parents
        # The sum of each parent from its children.
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
    """For each point, go down from the root to the block that holds it."""
    blocks, left = np.empty(len(points), np.int64), points.copy()
    for k in range(len(points)):
        node = 0
        for level in range(len(levels) - 3, -1, -1):
            first = levels[level] + FANOUT * node
            last = min(first + FANOUT, levels[level + 1])
            # Pass the children that end before the point, and stop at the one that holds it.
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
            # By rounding a point may lie beyond the last child: take the last positive one.
            node = inside - levels[level]
        blocks[k] = node
    return blocks, left

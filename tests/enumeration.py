"""A generator that walks the tree of all its answers and drives the real code through it.

Every source of chance in kvib is one of six calls: random(), random(n), permutation(n),
multinomial(n, q), choice(n, size, replace=False) and geometric(p). Here each of them has finitely
many answers with known probabilities; `outcomes` runs a function once for every path through them.
A uniform number is decided only as far as the code looks at it: `u < p` is a branch with
probability p.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Tree:
    """Depth-first over all sequences of decisions."""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.fanout: list[int] = []
        self.depth = 0
        self.probability = 1.0

    def decide(self, probabilities: list[float]) -> int:
        """One of several alternatives; those of probability 0 are not visited."""
        alive = [k for k, p in enumerate(probabilities) if p > 0]
        if self.depth == len(self.path):
            self.path.append(0)
            self.fanout.append(len(alive))
        taken = alive[self.path[self.depth]]
        self.depth += 1
        self.probability *= probabilities[taken]
        return taken

    def restart(self) -> bool:
        """Go to the next path; False when all were walked."""
        while self.path and self.path[-1] == self.fanout[-1] - 1:
            self.path.pop()
            self.fanout.pop()
        if not self.path:
            return False
        self.path[-1] += 1
        self.depth, self.probability = 0, 1.0
        return True


class Undecided:
    """A uniform number of which only an interval is known."""

    __array_ufunc__ = None

    def __init__(self, tree: Tree) -> None:
        self.tree, self.low, self.high = tree, 0.0, 1.0

    def __lt__(self, threshold: Any) -> Any:
        if isinstance(threshold, np.ndarray):
            return np.array([self < float(t) for t in threshold])
        t = min(max(float(threshold), self.low), self.high)
        share = (t - self.low) / (self.high - self.low)
        below = self.tree.decide([share, 1 - share]) == 0
        if below:
            self.high = t
        else:
            self.low = t
        return below


class Jump:
    """A geometric number, decided only as far as the code looks: beyond the end, or which."""

    def __init__(self, tree: Tree, p: float) -> None:
        self.tree, self.p, self.below = tree, p, 0

    def __ge__(self, limit: int) -> bool:
        beyond = (1 - self.p) ** (int(limit) - 1)
        self.below = int(limit)
        return self.tree.decide([beyond, 1 - beyond]) == 0

    def __lt__(self, limit: int) -> bool:
        return not self >= limit

    def __radd__(self, position: Any) -> Any:
        chances = np.array([self.p * (1 - self.p) ** k for k in range(self.below - 1)])
        return position + 1 + self.tree.decide((chances / chances.sum()).tolist())


class EnumeratingGenerator:
    """Has the methods of numpy.random.Generator that kvib uses."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def random(self, size: int | None = None) -> Any:
        if size is None:
            return Undecided(self.tree)
        return np.array([Undecided(self.tree) for _ in range(size)], dtype=object)

    def permutation(self, n: int) -> np.ndarray:
        orders = list(itertools.permutations(range(n)))
        return np.array(orders[self.tree.decide([1 / len(orders)] * len(orders))], dtype=np.int64)

    def geometric(self, p: float) -> "Jump":
        return Jump(self.tree, p)

    def multinomial(self, n: int, q: np.ndarray) -> np.ndarray:
        outcomes = [c for c in itertools.product(range(n + 1), repeat=len(q)) if sum(c) == n]
        probabilities = [
            math.factorial(n)
            * math.prod(qi**ci / math.factorial(ci) for qi, ci in zip(q, c, strict=True))
            for c in outcomes
        ]
        return np.array(outcomes[self.tree.decide(probabilities)], dtype=np.int64)

    def choice(self, n: int, size: int, replace: bool, p: Any = None) -> np.ndarray:
        assert not replace
        left = np.full(n, 1 / n) if p is None else np.array(p, dtype=float)
        chosen: list[int] = []
        for _ in range(size):  # successive sampling, as NumPy does
            left[chosen] = 0
            left /= left.sum()
            chosen.append(self.tree.decide(left.tolist()))
        return np.array(chosen, dtype=np.int64)


def outcomes(function: Callable[[Any], Any]) -> Iterator[tuple[float, Any]]:
    """(probability, function(rng)) for every path that the function can take."""
    tree = Tree()
    while True:
        result = function(EnumeratingGenerator(tree))
        yield tree.probability, result
        if not tree.restart():
            return

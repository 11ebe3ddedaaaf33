"""Draws from very many clients whose cost is that of the drawn."""

import math
from typing import NamedTuple

import numpy as np

from kvib import sums
from kvib.buckets import CHUNK, Buckets, Scores, Threshold
from kvib.cohort import Arrays, BoolArray, FloatArray, IntArray
from kvib.procedures.procedure import whole_and_part
from kvib.sumtree import FANOUT, SumTree, ids_of


class Mixture(NamedTuple):
    """p = (1−θ)·min(cap, c·score) + θ·(what everybody gets, or what weights deserve)."""

    mix: float
    main: Threshold
    uniform: float
    by_weight: Threshold | None
    cap: float


class Index:
    """The clients that can be drawn now, by score, and by weight where a policy mixes with that.

    Args:
        room: ids are below it.
        scores: of a policy, which change for drawn clients only (`Policy.lasting`).
        prices: what drawing a client costs, in units of the budget.
        weights: λ up to a factor, for a mixture with p ∝ λ; else with uniform.
    """

    def __init__(
        self,
        room: int,
        scores: Scores,
        prices: Scores,
        weights: Scores | None = None,
    ) -> None:
        self.scores, self.prices, self.weights = scores, prices, weights
        self.main = Buckets(room)
        self.floor = None if weights is None else Buckets(room)
        self.tree: SumTree | None = None
        """Made when an ordered draw first needs it."""
        self.certain = (np.empty(0, np.int64), np.empty(0, np.int64))
        """Clients at the cap, by score and by weight, as the tree has them."""
        self.totals = np.zeros((3, 2))
        """Σ price, score and weight of all clients, each with its rounding error."""

    def __len__(self) -> int:
        return len(self.main)

    def widen(self, room: int) -> None:
        """Ids up to here."""
        self.main.widen(room)
        if self.floor is not None:
            self.floor.widen(room)
        self._forget_sums()

    def build(self, ids: IntArray) -> None:
        """These clients, ascending, and nobody else."""
        self.main.build(ids, self.scores, self.prices)
        if self.floor is not None and self.weights is not None:
            self.floor.build(ids, self.weights, self.prices)
        self.totals[:] = 0.0
        for low in range(0, len(ids), CHUNK):
            self._count(ids[low : low + CHUNK])
        self._forget_sums()

    def insert(self, ids: IntArray) -> None:
        """Clients that can be drawn again, or now."""
        if len(ids) == 0:
            return
        prices = self.prices(ids)
        self.main.insert(ids, self.scores(ids), prices)
        if self.floor is not None and self.weights is not None:
            self.floor.insert(ids, self.weights(ids), prices)
        self._count(ids)
        self._touch(ids)

    def remove(self, ids: IntArray) -> None:
        """Clients that cannot be drawn for now. Their scores are still those of the last change."""
        if len(ids) == 0:
            return
        prices = self.prices(ids)
        self.main.remove(ids, self.scores(ids), prices)
        if self.floor is not None and self.weights is not None:
            self.floor.remove(ids, self.weights(ids), prices)
        self._count(ids, -1)
        self._touch(ids)

    def change(self, ids: IntArray, old: FloatArray) -> None:
        """Scores of clients changed, from `old` to what they are now."""
        inside = self.main.place[ids] >= 0
        ids, old = ids[inside], old[inside]
        new = self.scores(ids)
        self.main.change(ids, old, new, self.prices(ids))
        sums.add(self.totals[1], -old)
        sums.add(self.totals[1], new)
        self._touch(ids)

    def _count(self, ids: IntArray, sign: int = 1) -> None:
        sums.add(self.totals[0], sign * self.prices(ids))
        sums.add(self.totals[1], sign * self.scores(ids))
        if self.weights is not None:
            sums.add(self.totals[2], sign * self.weights(ids))

    def _forget_sums(self) -> None:
        self.tree = None

    def _touch(self, ids: IntArray) -> None:
        if self.tree is not None and len(ids):
            self._refresh(self.tree, np.unique(ids // FANOUT))

    def packed(self) -> Arrays:
        """The layout, which decides what a random number means, and the sums to the last digit."""
        parts = {"main": self.main, "floor": self.floor}
        arrays: Arrays = {"totals": self.totals}
        for name, part in parts.items():
            if part is not None:
                arrays |= {f"{name}.{key}": array for key, array in part.packed().items()}
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """What `packed` packed."""
        missing = set(self.packed()) - set(arrays)
        if missing:
            raise ValueError(f"not a whole kvib sampler file: the index lacks {sorted(missing)}")
        self.totals[:] = arrays["totals"]
        for name, part in {"main": self.main, "floor": self.floor}.items():
            if part is not None:
                part.restore({k.split(".")[1]: v for k, v in arrays.items() if k.startswith(name)})
        self._forget_sums()

    def mixture(self, budget: float, mix: float, cap: float) -> Mixture:
        """The probabilities for this budget."""
        main = self.main.threshold(budget, self.scores, self.prices, cap)
        by_weight = None
        if self.floor is not None and self.weights is not None:
            by_weight = self.floor.threshold(budget, self.weights, self.prices, cap)
        return Mixture(mix, main, min(budget / self.price, cap), by_weight, cap)

    @property
    def price(self) -> float:
        """Of all clients together."""
        return float(self.totals[0].sum())

    def size(self, mixture: Mixture) -> float:
        """Σ p: how many clients are drawn on average."""
        explored = mixture.uniform * len(self)
        if mixture.by_weight is not None and self.weights is not None:
            explored = self._size(mixture.by_weight, self.weights, self.totals[2], mixture.cap)
        main = self._size(mixture.main, self.scores, self.totals[1], mixture.cap)
        return (1 - mixture.mix) * main + mixture.mix * explored

    def _size(self, threshold: Threshold, scores: Scores, total: FloatArray, cap: float) -> float:
        """Σ min(cap, c·score)."""
        certain = threshold.certain
        free = max(math.fsum([*total, *(-scores(certain))]), 0.0)
        # c is infinite where nobody is left
        return cap * len(certain) + (threshold.c * free if len(certain) < len(self) else 0.0)

    def expected(self, mixture: Mixture, ids: IntArray) -> FloatArray:
        """p of these clients, whether or not they can be drawn now."""
        return self._by_score(mixture, self.scores(ids)) + self._explored(mixture, ids)

    def _by_score(self, mixture: Mixture, scores: FloatArray) -> FloatArray:
        """(1−θ)·min(cap, c·score)."""
        if mixture.mix == 1:
            return np.zeros(len(scores))
        return (1 - mixture.mix) * np.minimum(mixture.cap, mixture.main.c * scores)

    def _by_weight(self, mixture: Mixture, weights: FloatArray) -> FloatArray:
        assert mixture.by_weight is not None
        return mixture.mix * np.minimum(mixture.cap, mixture.by_weight.c * weights)

    def _explored(self, mixture: Mixture, ids: IntArray) -> FloatArray:
        if self.weights is None or mixture.mix == 0:
            return np.full(len(ids), mixture.mix * mixture.uniform)
        return self._by_weight(mixture, self.weights(ids))

    def independent(self, mixture: Mixture, rng: np.random.Generator) -> IntArray:
        """Everybody's own coin, as if all N had been tossed, ascending."""
        if self.floor is None:
            always = mixture.mix * mixture.uniform
            ids, bound = self.main.candidates(
                lambda score: self._by_score(mixture, score) + always, rng
            )
            kept = rng.random(len(ids)) < self.expected(mixture, ids) / bound
            return np.sort(ids[kept])
        # a by score, b by weight. Whoever has a > ½ (at most 2K) tosses one coin for a + b; of the
        # others those by score come with a, and those by weight with b/(1−a) ≤ 2b: in all a + b.
        ids, bound = self.main.candidates(lambda s: _half(self._by_score(mixture, s)), rng)
        a = self._by_score(mixture, self.scores(ids))
        chance = np.where(a > 0.5, self.expected(mixture, ids), a)
        first = ids[rng.random(len(ids)) < chance / bound]
        ids, bound = self.floor.candidates(
            lambda w: np.minimum(2 * self._by_weight(mixture, w), 1.0), rng
        )
        a = self._by_score(mixture, self.scores(ids))
        chance = np.where(a > 0.5, 0.0, self._explored(mixture, ids) / (1 - np.minimum(a, 0.5)))
        second = ids[rng.random(len(ids)) < chance / bound]
        both = np.sort(np.concatenate([first, second]))
        return both[np.append(True, both[1:] != both[:-1])] if len(both) else both

    def ordered(self, mixture: Mixture, rng: np.random.Generator) -> IntArray:
        """Equal steps from a random start along the clients in the order of their ids."""
        tree = self._sums(mixture)
        θ, explored = mixture.mix, mixture.uniform
        if mixture.by_weight is not None:
            explored = mixture.by_weight.c
        factors: FloatArray = np.array([(1 - θ) * mixture.main.c, θ * explored, 1 - θ, θ])
        factors[tree.total == 0] = 0.0  # c is infinite where nobody is left
        total = float(factors @ tree.total)
        whole, part = whole_and_part(total, len(self))
        start = rng.random()
        steps = np.arange(whole + int(start < part), dtype=np.float64)
        points: FloatArray = (start + steps) * (total / (whole + part))
        blocks, left = tree.find(points, factors)
        return np.unique(self._within(mixture, blocks, left))

    def _sums(self, mixture: Mixture) -> SumTree:
        """The tree, with these clients counted as certain and the others by their scores."""
        changed = np.setxor1d(mixture.main.certain, self.certain[0])
        certain = (mixture.main.certain, self.certain[1])
        if mixture.by_weight is not None:
            changed = np.union1d(changed, np.setxor1d(mixture.by_weight.certain, certain[1]))
            certain = (mixture.main.certain, mixture.by_weight.certain)
        self.certain = certain
        if self.tree is None:
            self.tree = SumTree(4, len(self.main.place))
            self._refresh(self.tree, np.arange(self.tree.blocks))
        else:
            self._touch(changed)
        return self.tree

    def _refresh(self, tree: SumTree, blocks: IntArray) -> None:
        """Sums of blocks anew, of who is in: score, weight (or 1); 1 instead for the certain."""
        step = 1 << 16
        for low in range(0, len(blocks), step):
            some = blocks[low : low + step]
            ids, inside = self._members(some)
            values = np.zeros((4, *ids.shape))
            values[0][inside] = self.scores(ids[inside])
            values[1][inside] = 1.0 if self.weights is None else self.weights(ids[inside])
            for k, certain in enumerate(self.certain):
                if len(certain):
                    at_cap = inside & np.isin(ids, certain)
                    values[k][at_cap], values[k + 2][at_cap] = 0.0, 1.0
            tree.refresh(some, values)

    def _members(self, blocks: IntArray) -> tuple[IntArray, BoolArray]:
        """Clients of these blocks, [m, 16], and which of them can be drawn."""
        ids = ids_of(blocks)
        known = np.minimum(ids, len(self.main.place) - 1)
        return known, (self.main.place[known] >= 0) & (ids == known)

    def _within(self, mixture: Mixture, blocks: IntArray, left: FloatArray) -> IntArray:
        """The client of each block at which the running sum exceeds what is left of the point."""
        ids, inside = self._members(blocks)
        p = np.zeros(ids.shape)
        p[inside] = self.expected(mixture, ids[inside])
        ends = np.cumsum(p, axis=1)
        at = (ends <= left[:, None]).sum(axis=1)
        # by rounding a point may lie beyond the last: it is the last with a probability
        last = FANOUT - 1 - np.argmax(p[:, ::-1] > 0, axis=1)
        found: IntArray = ids[np.arange(len(ids)), np.minimum(at, last)]
        return found


def _half(probability: FloatArray) -> FloatArray:
    """1 for those above a half: they toss coins of their own."""
    return np.where(probability > 0.5, 1.0, probability)

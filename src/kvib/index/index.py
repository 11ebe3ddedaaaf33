"""Draws from very many clients whose cost is that of the drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvib import exact_sum
from kvib.files import intact, storage
from kvib.files.intact import CLOSE, FINITE
from kvib.index.buckets import CHUNK, Buckets, Threshold
from kvib.index.interval_tree import IntervalTree
from kvib.index.mixture import Mixture
from kvib.types import Arrays, FloatArray, IntArray, Scores


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
        self.by_weight = None if weights is None else Buckets(room)
        self.intervals: IntervalTree | None = None
        """Made when an ordered draw first needs it."""
        self.totals = np.zeros((3, 2))
        """Σ price, score and weight of all clients, each with its rounding error."""

    def __len__(self) -> int:
        return len(self.main)

    def widen(self, room: int) -> None:
        """Ids up to here."""
        self.main.widen(room)
        if self.by_weight is not None:
            self.by_weight.widen(room)
        self.intervals = None

    def build(self, ids: IntArray) -> None:
        """These clients, ascending, and nobody else."""
        self.totals[0] = _total(self.prices, ids)
        if self.by_weight is not None and self.weights is not None:
            self.by_weight.build(ids, self.weights, self.prices)
            self.totals[2] = _total(self.weights, ids)
        self.rescore(ids)

    def rescore(self, ids: IntArray) -> None:
        """The same clients; the scores of all have changed, and nothing else has."""
        self.main.build(ids, self.scores, self.prices)
        self.totals[1] = _total(self.scores, ids)
        self.intervals = None

    def insert(self, ids: IntArray) -> None:
        """Clients that can be drawn again, or now."""
        if len(ids) == 0:
            return
        prices, scores, weights = self._numbers(ids)
        self.main.insert(ids, scores, prices)
        if self.by_weight is not None:
            self.by_weight.insert(ids, weights, prices)
        self._count(prices, scores, weights)
        self._touch(ids)

    def remove(self, ids: IntArray) -> None:
        """Clients that cannot be drawn for now. Their scores are still those of the last change."""
        if len(ids) == 0:
            return
        prices, scores, weights = self._numbers(ids)
        self.main.remove(ids, scores, prices)
        if self.by_weight is not None:
            self.by_weight.remove(ids, weights, prices)
        self._count(-prices, -scores, -weights)
        self._touch(ids)

    def change(self, ids: IntArray, old: FloatArray) -> None:
        """Scores of clients changed, from `old` to what they are now."""
        inside = self.main.place[ids] >= 0
        ids, old = ids[inside], old[inside]
        new = self.scores(ids)
        self.main.change(ids, old, new, self.prices(ids))
        exact_sum.add(self.totals[1], -old)
        exact_sum.add(self.totals[1], new)
        self._touch(ids)

    def _numbers(self, ids: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Price, score and weight of these clients; no weights where nobody needs them."""
        weights = np.empty(0) if self.weights is None else self.weights(ids)
        return self.prices(ids), self.scores(ids), weights

    def _count(self, *numbers: FloatArray) -> None:
        for total, added in zip(self.totals, numbers, strict=True):
            exact_sum.add(total, added)

    def _touch(self, ids: IntArray) -> None:
        if self.intervals is not None:
            self.intervals.touch(ids)

    def packed(self) -> Arrays:
        """The layout, which decides what a random number means, and the sums to the last digit."""
        parts = {"main": self.main, "by_weight": self.by_weight}
        arrays: Arrays = {"totals": self.totals}
        for name, part in parts.items():
            if part is not None:
                arrays |= {f"{name}.{key}": array for key, array in part.packed().items()}
        return arrays

    def restore(self, arrays: Arrays, out: IntArray) -> None:
        """What `packed` packed, of all clients but these.

        The layout is made anew where scores are not those of the time it was made: the rule of a
        policy may have become another since.
        """
        intact.names("index", arrays, self.packed())
        totals = arrays["totals"]
        intact.shaped("index.totals", totals, self.totals.shape)
        intact.within("index.totals", totals, FINITE)
        self.totals[:], self.intervals = totals, None
        self.main.restore(storage.part(arrays, "main"), out, "index.main")
        agree = self.main.agree(self.scores, self.prices)
        if self.by_weight is not None and self.weights is not None:
            self.by_weight.restore(storage.part(arrays, "by_weight"), out, "index.by_weight")
            agree = self.by_weight.agree(self.weights, self.prices) and agree
        ids = np.flatnonzero(self.main.place >= 0)
        if agree:
            self._correct_totals(ids)
        else:
            self.build(ids)

    def _correct_totals(self, ids: IntArray) -> None:
        """Make those anew that are not the sums of these clients."""
        for total, numbers in zip(
            self.totals, (self.prices, self.scores, self.weights), strict=True
        ):
            truth = total if numbers is None else _total(numbers, ids)
            if not math.isclose(total.sum(), truth.sum(), rel_tol=CLOSE):
                total[:] = truth

    def mixture(self, budget: float, mix: float, cap: float) -> Mixture:
        """The probabilities for this budget."""
        main = self.main.threshold(budget, self.scores, self.prices, cap)
        by_weight = None
        if self.by_weight is not None and self.weights is not None:
            by_weight = self.by_weight.threshold(budget, self.weights, self.prices, cap)
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
        return mixture.of_scores(self.scores(ids)) + self._explored(mixture, ids)

    def _explored(self, mixture: Mixture, ids: IntArray) -> FloatArray:
        if self.weights is None:
            return np.full(len(ids), mixture.mix * mixture.uniform)
        return mixture.of_weights(self.weights(ids))

    def tossed(self, mixture: Mixture, rng: np.random.Generator) -> IntArray:
        """Clients whose own coin fell, as if all N had been tossed, ascending."""
        if self.by_weight is None:
            always = mixture.mix * mixture.uniform
            ids, bound = self.main.candidates(lambda score: mixture.of_scores(score) + always, rng)
            kept = rng.random(len(ids)) < self.expected(mixture, ids) / bound
            return np.sort(ids[kept])
        # a by score, b by weight. Whoever has a > ½ (at most 2K) tosses one coin for a + b; of the
        # others those by score come with a, and those by weight with b/(1−a) ≤ 2b: in all a + b.
        ids, bound = self.main.candidates(lambda s: _half(mixture.of_scores(s)), rng)
        a = mixture.of_scores(self.scores(ids))
        chance = np.where(a > 0.5, self.expected(mixture, ids), a)
        first = ids[rng.random(len(ids)) < chance / bound]
        ids, bound = self.by_weight.candidates(
            lambda w: np.minimum(2 * mixture.of_weights(w), 1.0), rng
        )
        a = mixture.of_scores(self.scores(ids))
        chance = np.where(a > 0.5, 0.0, self._explored(mixture, ids) / (1 - np.minimum(a, 0.5)))
        second = ids[rng.random(len(ids)) < chance / bound]
        both = np.sort(np.concatenate([first, second]))
        return both[np.append(True, both[1:] != both[:-1])] if len(both) else both

    def at(self, mixture: Mixture, points: Callable[[float], FloatArray]) -> IntArray:
        """The client at each point of the line of length Σp, in the order of ids, [m]."""
        if self.intervals is None:
            self.intervals = IntervalTree(self.main.place, self.scores, self.weights, self.expected)
        return self.intervals.clients(mixture, points)


@dataclass(frozen=True)
class IndexedDraw:
    """The clients of an index with the probabilities of one round: what a procedure is given."""

    index: Index
    mixture: Mixture

    def __len__(self) -> int:
        return len(self.index)

    def tossed(self, rng: np.random.Generator) -> IntArray:
        """Clients whose own coin fell, ascending."""
        return self.index.tossed(self.mixture, rng)

    def at(self, points: Callable[[float], FloatArray]) -> IntArray:
        """The client at each point of the line of length Σp, [m]."""
        return self.index.at(self.mixture, points)


def _half(probability: FloatArray) -> FloatArray:
    """1 for those above a half: they toss coins of their own."""
    return np.where(probability > 0.5, 1.0, probability)


def _total(numbers: Scores, ids: IntArray) -> FloatArray:
    """Their sum over these clients, [2]; see `exact_sum.running`."""
    parts = np.zeros(2)
    for low in range(0, len(ids), CHUNK):
        exact_sum.add(parts, numbers(ids[low : low + CHUNK]))
    return parts

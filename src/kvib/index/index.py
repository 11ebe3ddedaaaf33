"""Draws from very many clients at a cost that grows with the cohort, not with N."""

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
    """The eligible clients in buckets by score, and by weight where a policy explores by weight.

    Args:
        room: The number of ids: all ids are below it.
        scores: The scores of a policy, which change for drawn clients only (`Policy.lasting`).
        prices: What drawing a client takes from the budget.
        weights: λ up to a factor, for a mixture with p ∝ λ. None: the mixture is with uniform.
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
        """The clients by score."""
        self.by_weight = None if weights is None else Buckets(room)
        """The clients by weight."""
        self.intervals: IntervalTree | None = None
        """The clients as intervals, made when an ordered draw first needs them."""
        self.totals = np.zeros((3, 2))
        """Σ price, Σ score and Σ weight of all clients, each with its rounding error."""

    def __len__(self) -> int:
        return len(self.main)

    def widen(self, room: int) -> None:
        """Make room for more ids."""
        self.main.widen(room)
        if self.by_weight is not None:
            self.by_weight.widen(room)
        self.intervals = None

    def build(self, ids: IntArray) -> None:
        """Empty the index, then insert these clients, which are ascending."""
        self.totals[0] = _total(self.prices, ids)
        if self.by_weight is not None and self.weights is not None:
            self.by_weight.build(ids, self.weights, self.prices)
            self.totals[2] = _total(self.weights, ids)
        self.rescore(ids)

    def rescore(self, ids: IntArray) -> None:
        """Sort the clients again after the scores of all have changed, and nothing else has."""
        self.main.build(ids, self.scores, self.prices)
        self.totals[1] = _total(self.scores, ids)
        self.intervals = None

    def insert(self, ids: IntArray) -> None:
        """Insert clients that can be drawn from now on."""
        if len(ids) == 0:
            return
        prices, scores, weights = self._numbers(ids)
        self.main.insert(ids, scores, prices)
        if self.by_weight is not None:
            self.by_weight.insert(ids, weights, prices)
        self._add_to_totals(prices, scores, weights)
        self._touch(ids)

    def remove(self, ids: IntArray) -> None:
        """Remove clients that cannot be drawn. Their scores must still be those of the index."""
        if len(ids) == 0:
            return
        prices, scores, weights = self._numbers(ids)
        self.main.remove(ids, scores, prices)
        if self.by_weight is not None:
            self.by_weight.remove(ids, weights, prices)
        self._add_to_totals(-prices, -scores, -weights)
        self._touch(ids)

    def change(self, ids: IntArray, old: FloatArray) -> None:
        """Move clients whose scores changed from `old` to what they are now."""
        inside = self.main.place[ids] >= 0
        ids, old = ids[inside], old[inside]
        new = self.scores(ids)
        self.main.change(ids, old, new, self.prices(ids))
        exact_sum.add(self.totals[1], -old)
        exact_sum.add(self.totals[1], new)
        self._touch(ids)

    def _numbers(self, ids: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prices, scores and weights of these clients, [m] each; no weights where none are used."""
        weights = np.empty(0) if self.weights is None else self.weights(ids)
        return self.prices(ids), self.scores(ids), weights

    def _add_to_totals(self, *numbers: FloatArray) -> None:
        """Add prices, scores and weights to the totals."""
        for total, added in zip(self.totals, numbers, strict=True):
            exact_sum.add(total, added)

    def _touch(self, ids: IntArray) -> None:
        """Pass a change of these clients to the intervals, if there are any."""
        if self.intervals is not None:
            self.intervals.touch(ids)

    def packed(self) -> Arrays:
        """The arrays for a file: the order of clients, which decides what a random number draws,
        and the sums to the last digit."""
        parts = {"main": self.main, "by_weight": self.by_weight}
        arrays: Arrays = {"totals": self.totals}
        for name, part in parts.items():
            if part is not None:
                arrays |= {f"{name}.{key}": array for key, array in part.packed().items()}
        return arrays

    def restore(self, arrays: Arrays, out: IntArray) -> None:
        """Take over what `packed` packed, checked: all clients except those in `out`.

        The index is built again where scores are no longer those of the file, since the rule of a
        policy may have changed.
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
        """Compute those totals again that are not the sums over these clients."""
        for total, numbers in zip(
            self.totals, (self.prices, self.scores, self.weights), strict=True
        ):
            truth = total if numbers is None else _total(numbers, ids)
            if not math.isclose(total.sum(), truth.sum(), rel_tol=CLOSE):
                total[:] = truth

    def mixture(self, budget: float, mix: float, cap: float) -> Mixture:
        """The probabilities of all clients for this budget."""
        main = self.main.threshold(budget, self.scores, self.prices, cap)
        by_weight = None
        if self.by_weight is not None and self.weights is not None:
            by_weight = self.by_weight.threshold(budget, self.weights, self.prices, cap)
        return Mixture(mix, main, min(budget / self.price, cap), by_weight, cap)

    @property
    def price(self) -> float:
        """The price of all clients together."""
        return float(self.totals[0].sum())

    def size(self, mixture: Mixture) -> float:
        """Σp, the expected number of drawn clients."""
        explored = mixture.uniform * len(self)
        if mixture.by_weight is not None and self.weights is not None:
            explored = self._size(mixture.by_weight, self.weights, self.totals[2], mixture.cap)
        main = self._size(mixture.main, self.scores, self.totals[1], mixture.cap)
        return (1 - mixture.mix) * main + mixture.mix * explored

    def _size(self, threshold: Threshold, scores: Scores, total: FloatArray, cap: float) -> float:
        """Σ min(cap, c·score) over all clients."""
        certain = threshold.certain
        free = max(math.fsum([*total, *(-scores(certain))]), 0.0)
        # c is infinite where all are at the cap
        return cap * len(certain) + (threshold.c * free if len(certain) < len(self) else 0.0)

    def expected(self, mixture: Mixture, ids: IntArray) -> FloatArray:
        """The probabilities p of these clients, [m], as if all of them could be drawn."""
        return mixture.of_scores(self.scores(ids)) + self._explored(mixture, ids)

    def _explored(self, mixture: Mixture, ids: IntArray) -> FloatArray:
        """The part of p by exploration, [m]."""
        if self.weights is None:
            return np.full(len(ids), mixture.mix * mixture.uniform)
        return mixture.of_weights(self.weights(ids))

    def tossed(self, mixture: Mixture, rng: np.random.Generator) -> IntArray:
        """The clients drawn by independent coins, ascending, as if all N coins had been tossed.

        Each client is a candidate with a bound on its probability, and is kept with the ratio of
        its probability to the bound.
        """
        if self.by_weight is None:
            always = mixture.mix * mixture.uniform
            ids, bound = self.main.candidates(lambda score: mixture.of_scores(score) + always, rng)
            kept = rng.random(len(ids)) < self.expected(mixture, ids) / bound
            return np.sort(ids[kept])
        # p = a + b, a by score and b by weight. Clients with a > ½ (at most 2K) toss one coin for
        # a + b. The others toss two: by score with a, and by weight with b/(1−a) ≤ 2b. Together
        # that is a + (1−a)·b/(1−a) = a + b.
        ids, bound = self.main.candidates(lambda s: _one_above_half(mixture.of_scores(s)), rng)
        a = mixture.of_scores(self.scores(ids))
        p = np.where(a > 0.5, self.expected(mixture, ids), a)
        first = ids[rng.random(len(ids)) < p / bound]
        ids, bound = self.by_weight.candidates(
            lambda w: np.minimum(2 * mixture.of_weights(w), 1.0), rng
        )
        a = mixture.of_scores(self.scores(ids))
        p = np.where(a > 0.5, 0.0, self._explored(mixture, ids) / (1 - np.minimum(a, 0.5)))
        second = ids[rng.random(len(ids)) < p / bound]
        # Clients that both coins drew count once.
        both = np.sort(np.concatenate([first, second]))
        return both[np.append(True, both[1:] != both[:-1])] if len(both) else both

    def at(self, mixture: Mixture, points: Callable[[float], FloatArray]) -> IntArray:
        """The client whose interval holds each point, [m].

        Every client has an interval as long as its probability. They lie side by side in the order
        of ids, from 0 to Σp.

        Args:
            mixture: The probabilities of the round.
            points: Gives the points when it is called with Σp.
        """
        if self.intervals is None:
            self.intervals = IntervalTree(self.main.place, self.scores, self.weights, self.expected)
        return self.intervals.clients(mixture, points)


@dataclass(frozen=True)
class IndexedDraw:
    """The clients of an index with the probabilities of one round, as a procedure is given them."""

    index: Index
    """The eligible clients."""
    mixture: Mixture
    """Their probabilities."""

    def __len__(self) -> int:
        return len(self.index)

    def tossed(self, rng: np.random.Generator) -> IntArray:
        """The clients drawn by independent coins, ascending."""
        return self.index.tossed(self.mixture, rng)

    def at(self, points: Callable[[float], FloatArray]) -> IntArray:
        """The client whose interval holds each point, [m]. See `Index.at`."""
        return self.index.at(self.mixture, points)


def _one_above_half(probability: FloatArray) -> FloatArray:
    """The probabilities, with 1 for those above a half: these clients toss coins of their own."""
    return np.where(probability > 0.5, 1.0, probability)


def _total(numbers: Scores, ids: IntArray) -> FloatArray:
    """The sum of numbers over these clients, and its rounding error, [2]."""
    parts = np.zeros(2)
    for low in range(0, len(ids), CHUNK):
        exact_sum.add(parts, numbers(ids[low : low + CHUNK]))
    return parts

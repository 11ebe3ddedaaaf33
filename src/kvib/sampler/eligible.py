"""The clients that can be drawn now, and their expected counts."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvib import growing
from kvib.clients.cool_down import CoolDown
from kvib.clients.population import Population
from kvib.clients.prices import Prices
from kvib.cohort import Cohort, Pairs
from kvib.estimators.sketches import Sketches
from kvib.files import intact
from kvib.files.part import Part, Saved
from kvib.index.index import Index, IndexedDraw
from kvib.procedures import Procedure
from kvib.sampler.learner import Learner
from kvib.types import Arrays, FloatArray, IntArray

_NO_CLIENTS = np.empty(0, np.int64)


def _no_pairs() -> Pairs:
    """Second moments of a draw among no clients."""
    return Pairs(1.0, np.empty(0))


class Design(NamedTuple):
    """The sampling design of the coming round: expected counts, and the way to draw by them."""

    expected: Callable[[IntArray], FloatArray]
    """E[count] of these clients, [m], which is 0 for clients that cannot be drawn."""
    draw: Callable[[np.random.Generator], Cohort]
    """Draws a cohort."""
    budget: float
    """Σ E[count]: the requested budget, or less where few clients can be drawn."""
    requested: float
    """The requested budget: clients, or costs or answers where the budget counts those."""


class Eligible(Part):
    """The clients that can be drawn: they have not left, do not wait and are not absent.

    Where policy and procedure allow it the clients are kept in an index, and the cost of a draw
    grows with the cohort only. Elsewhere every draw looks at all clients.

    Args:
        population: All clients.
        cool_down: The clients that wait.
        prices: What drawing a client takes from the budget.
        learner: The policy, and what it has learned.
        procedure: The procedure that draws.
        variables: What is known of every client, [N, d], for procedures that balance on it.
        sketches: Sketches of last updates, for procedures that balance on them.
    """

    def __init__(
        self,
        population: Population,
        cool_down: CoolDown,
        prices: Prices,
        learner: Learner,
        procedure: Procedure,
        variables: FloatArray,
        sketches: Sketches,
    ) -> None:
        self._population = population
        self._cool_down = cool_down
        self._prices = prices
        self._learner = learner
        self._sketches = sketches
        self._variables = variables
        self._absent = _NO_CLIENTS
        self.index: Index | None = None
        """The scores of eligible clients. None where every draw looks at all clients."""
        self.draw_by(procedure)

    def draw_by(self, procedure: Procedure) -> None:
        """Draw by this procedure from now on, and by the current policy of the learner."""
        index = None
        if self._learner.policy.lasting and procedure.by_index is not None:
            index = self._new_index()
            index.build(self._population.here())  # an error here leaves all as it was
        self.procedure, self.index = procedure, index
        self.remove(self._cool_down.ids)

    @property
    def variables(self) -> FloatArray:
        """What is known of every client, [N, d]."""
        return self._variables[: self._population.count]

    ARRAYS = ("variables", "index")

    def packed(self, clients: int) -> Arrays:
        """The variables, and the index where there is one."""
        index = {} if self.index is None else self.index.packed()
        named = {f"index.{name}": array for name, array in index.items()}
        return {"variables": self.variables, **named}

    def restore(self, saved: Saved) -> None:
        """Take over the saved index, once all parts that it depends on are restored."""
        arrays = saved.part("index")
        if self.index is None:
            intact.names("index", arrays, ())
        else:
            departed = np.fromiter(self._population.departed, np.int64)
            self.index.restore(arrays, np.union1d(departed, self._cool_down.ids))

    def design(self, round: int, requested: float) -> Design:
        """The design of a draw among all eligible clients."""
        if self.index is None or len(self.index) == 0:
            return self.among(self.eligible(np.arange(self._population.count)), round, requested)
        return self._by_index(self.index, round, requested)

    def among(
        self, ids: IntArray, round: int, requested: float, learner: Learner | None = None
    ) -> Design:
        """The design of a draw among these clients, which are all looked at.

        Args:
            ids: The clients, ascending.
            round: The coming round.
            requested: The budget.
            learner: The learner to draw with. By default it is the sampler's.
        """
        weights = self._population.share(ids)
        prices = self._prices.of(ids) if self._prices.differ else None
        K = min(requested, len(ids) if prices is None else float(prices.sum()))
        expected, size = np.empty(0), 0.0
        if len(ids):
            learner = self._learner if learner is None else learner
            expected = learner.expected(ids, round, K, weights, prices)
            size = float(expected.sum())
            if math.isclose(size, K, rel_tol=1e-9):  # equal but for rounding
                size = K

        def expected_of(chosen: IntArray) -> FloatArray:
            counts = np.zeros(self._population.count)
            counts[ids] = expected
            return counts[chosen]

        def draw(rng: np.random.Generator) -> Cohort:
            if len(ids) == 0:
                return replace(self.cohort(ids, expected), pairs=_no_pairs)
            return self.procedure(
                expected, rng, weights=weights, ids=ids, variables=self.balanced_on(ids)
            )

        return Design(expected_of, draw, size, requested)

    def _by_index(self, index: Index, round: int, requested: float) -> Design:
        """The same design by the index, at a cost that grows with the cohort only."""
        spent = min(requested, index.price)
        policy, state = self._learner.policy, self._learner.state
        mixture = index.mixture(spent, policy.exploration(state, round).mix, self.procedure.cap)

        def expected_of(ids: IntArray) -> FloatArray:
            return np.where(index.main.place[ids] >= 0, index.expected(mixture, ids), 0.0)

        def draw(rng: np.random.Generator) -> Cohort:
            assert self.procedure.by_index is not None
            ids = self.procedure.by_index(IndexedDraw(index, mixture), rng)
            return self.cohort(ids, index.expected(mixture, ids))

        size = index.size(mixture) if self._prices.differ else spent
        return Design(expected_of, draw, size, requested)

    def balanced_on(self, ids: IntArray) -> FloatArray | None:
        """What a balancing procedure keeps the totals of, [m, d]: λ, λ·variables, λ·sketches.

        None where the procedure does not balance. Clients that were never seen have the mean sketch
        of those that were.
        """
        if not self.procedure.uses_variables:
            return None
        weights = self._population.shares()
        weight = weights[ids, None]
        sketches = self._sketches.filled(ids, weights)
        return np.concatenate([weight, weight * self._variables[ids], weight * sketches], axis=1)

    def cohort(self, ids: IntArray, expected: FloatArray) -> Cohort:
        """The cohort of these clients, each drawn once."""
        pairs = self.procedure.pairs
        return Cohort(
            ids=ids,
            count=np.ones(len(ids), np.int64),
            expected=expected,
            weight=self._population.share(ids),
            pairs=None if pairs is None else partial(pairs, expected, np.arange(len(ids))),
        )

    def eligible(self, ids: IntArray) -> IntArray:
        """Those of these clients that can be drawn, ascending."""
        departed = np.fromiter(self._population.departed, np.int64)
        waiting = self._cool_down.ids if self._cool_down.rounds else _NO_CLIENTS
        excluded = np.concatenate([departed, waiting, self._absent])
        return np.setdiff1d(ids, excluded) if len(excluded) else ids

    @contextmanager
    def without(self, absent: IntArray) -> Iterator[None]:
        """Within the context, which is for one draw, these clients cannot be drawn."""
        inside = self._inside(absent)
        self._absent = absent
        self._take_out(inside)
        try:
            yield
        finally:
            self._absent = _NO_CLIENTS
            self._put_in(inside)

    @contextmanager
    def changing(self, ids: IntArray) -> Iterator[None]:
        """Within the context learning may change the scores of these clients, or of all."""
        index = self.index
        if index is None:
            yield
            return
        old, epoch = index.scores(ids), self._epoch()
        yield
        if self._epoch() == epoch:
            index.change(ids, old)
        else:
            index.rescore(self.eligible(np.arange(self._population.count)))

    @contextmanager
    def reweighing(self, ids: IntArray) -> Iterator[None]:
        """Within the context the weights of these clients may change."""
        inside = self._inside(ids)
        self._take_out(inside)
        try:
            yield
        finally:  # no client is lost where a policy raises
            self._put_in(inside)

    def remove(self, ids: IntArray) -> None:
        """Make these clients ineligible from now on."""
        self._take_out(self._inside(ids))

    def insert(self, ids: IntArray) -> None:
        """Make these clients eligible, except those that have left or wait."""
        here = ids[self._population.is_here(ids)]
        self._put_in(here[~self._cool_down.has(here)])

    def widen(self, entries: int) -> None:
        """Make room for more clients."""
        self._variables = growing.widened(self._variables, entries, axis=0)
        if self.index is not None:
            self.index.widen(entries)

    def _epoch(self) -> int:
        """A number that changes when all scores have changed."""
        return self._learner.policy.epoch(self._learner.state)

    def _inside(self, ids: IntArray) -> IntArray:
        """Those of these clients that are in the index."""
        return ids[:0] if self.index is None else ids[self.index.main.place[ids] >= 0]

    def _take_out(self, ids: IntArray) -> None:
        """Remove these clients from the index, if there is one."""
        if self.index is not None:
            self.index.remove(ids)

    def _put_in(self, ids: IntArray) -> None:
        """Insert these clients into the index, if there is one."""
        if self.index is not None:
            self.index.insert(ids)

    def _new_index(self) -> Index:
        """An empty index."""
        policy, state, population = self._learner.policy, self._learner.state, self._population
        weights = None
        if policy.exploration(state, 0).by_weight:
            weights = self._prices.preferring(
                lambda ids: population.raw[ids]
            )  # not self: no reference cycle
        scores = self._prices.preferring(self._learner.scores)
        return Index(len(self._population.raw), scores, self._prices.of, weights)

"""A policy and a procedure over a population."""

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib import rates, saving, storage
from kvib.checkin import Admission, CheckIn, coin
from kvib.checks import (
    SMALLEST_FEEDBACK,
    all_norms,
    available_ids,
    checked_budget,
    checked_cost,
    checked_seed,
    checked_sketch,
    checked_variables,
    cohort_norms,
    positive_weights,
)
from kvib.cohort import Arrays, BoolArray, Cohort, FloatArray, Guarantee, IntArray
from kvib.difference import Difference
from kvib.estimation import Estimation
from kvib.estimators import Coefficients, answers, as_rows, unbiased
from kvib.guard import Guard
from kvib.index import Index
from kvib.ledger import Ledger
from kvib.policies import Forecasts, Policy, Setting
from kvib.population import Key, Population, listed
from kvib.procedures import Procedure, independent
from kvib.randomness import generator
from kvib.rates import EstimatedRate
from kvib.resting import Resting
from kvib.sketches import Sketches


class _Plan(NamedTuple):
    """Who can be drawn in a round, and how often on average."""

    ids: IntArray
    expected: FloatArray
    budget: float
    requested: float


class Sampler:
    """Decides which clients take part in each round, and learns from what came back.

    >>> import kvib
    >>> sampler = kvib.Sampler(kvib.KVib(), weights=[10, 20, 30, 40], budget=2, seed=0)
    >>> cohort = sampler.draw()
    >>> updates = [[1.0, 2.0] for client in cohort.ids]
    >>> step = kvib.estimate(cohort, updates)       # its mean is the full-participation step
    >>> sampler.update(cohort, kvib.norms(updates))

    Args:
        policy: whom to prefer.
        weights: λ of every client, any positive numbers (data sizes, say); normalised inside.
        budget: clients per round, on average or exactly: that is up to the procedure.
        procedure: how to draw; by default the one the policy was published with.
        seed: with the round number it decides every draw.
        response: probability that a drawn client answers: a number, one per client, or
            `EstimatedRate()`. Coefficients are divided by it.
        availability: probability that a client is among the `available` of a draw, likewise. Give
            it where the estimate shall stand for all clients; else it stands for the available.
        estimator: `Difference()` to remember updates; then call `step`, not `estimate`.
        guard: `Guard()` to bound what one client can do; likewise.
        variables: what is known of every client, [N, d] (data size, label histogram): for
            procedures that balance on it and policies that forecast from it.
        sketch: how many numbers of each client's last update to keep for that, likewise.
        keys: what clients are called, strings or integers; by default 0 to N − 1.
        cost: of drawing each client (bytes, energy); then the budget is in its units.
        cool_down: rounds that a drawn client waits before it can be drawn again. Estimates then
            stand for those who do not wait.
        over_select: let the budget be the expected number of answers, not of clients asked.
    """

    def __init__(
        self,
        policy: Policy[Any],
        weights: ArrayLike,
        budget: float,
        procedure: Procedure | None = None,
        *,
        seed: int = 0,
        response: ArrayLike | EstimatedRate = 1.0,
        availability: ArrayLike | EstimatedRate = 1.0,
        estimator: Difference | None = None,
        guard: Guard | None = None,
        variables: ArrayLike | None = None,
        sketch: int = 0,
        keys: Iterable[Key] | None = None,
        cost: ArrayLike | None = None,
        cool_down: int = 0,
        over_select: bool = False,
    ) -> None:
        self.policy = policy
        self.procedure = policy.procedure if procedure is None else procedure
        self.population = Population(weights, keys)
        N, λ = self.population.count, self.population.raw
        self.seed = checked_seed(seed)
        self._response = rates.start(response, N, "response")
        self._availability = rates.start(availability, N, "availability")
        self.cost = checked_cost(cost, N)
        self.over_select = over_select
        self.budget = checked_budget(budget, N, self.cost)
        self.estimator, self.guard = estimator, guard
        self.remembered = None if estimator is None else estimator.start(self.weights)
        self.usual_step = math.nan
        """What the guard measures by: a running mean of Σ coefficient·‖g‖."""
        self.variables = checked_variables(variables, N)
        self._usual = self.budget
        if self._priced:
            self._usual /= float(self._prices(np.arange(N)).mean())
        """How many clients the budget is enough for, of average ones."""
        self._state = policy.start(Setting(λ, self._usual, self.procedure.cap, self.variables))
        self.sketches = Sketches(N, checked_sketch(sketch))
        self.resting = Resting(cool_down)
        self._ledger = Ledger()
        self._shape: tuple[int, ...] | None = None
        self._lock = threading.RLock()
        self._check_in: CheckIn | None = None
        """The round that clients are checking in for."""
        self._index: Index | None = None
        if policy.lasting and self.procedure.by_index is not None:
            self._index = self._indexed()
            self._index.build(self.population.here())

    @property
    def round(self) -> int:
        """How many rounds were drawn."""
        return self._ledger.round

    @property
    def weights(self) -> FloatArray:
        """λ of every client, [N], with sum 1; 0 for those who left."""
        shares = self.population.shares()
        shares.flags.writeable = False
        return shares

    def __len__(self) -> int:
        """How many clients there are, those who left included: ids are below it."""
        return self.population.count

    def __repr__(self) -> str:
        return (
            f"<Sampler of {len(self)} clients: {self.policy!r}, {self.procedure!r}, "
            f"budget {self.budget:g}, seed {self.seed}, round {self.round}>"
        )

    def draw(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> Cohort:
        """Draw the clients of the next round.

        Args:
            available: who can be drawn: one boolean per client, or a list of ids. Nobody: the
                cohort is empty.
            budget: for this round instead of the sampler's; at most the number available.
            norms: ‖g‖ of all clients, for the policies that must know them (Optimal, AOCS).
            absent: who cannot be drawn: a list of ids, short where rounds shall be fast.
        """
        with self._lock:
            self._refuse_check_in("draw")
            self._must_be_listed(available)
            requested = self._requested(budget)
            away = None if absent is None else available_ids(np.asarray(absent), len(self))
            if self._index is not None and available is None and norms is None:
                drawn, spent = self._drawn_by_index(self._index, requested, away)
            else:
                plan = self._plan(available, requested, norms, away)
                drawn, spent = self._drawn_from_list(plan), plan.budget
                self._count_available(plan.ids)
            return self._opened(drawn, spent, requested)

    def _opened(self, drawn: Cohort, spent: float, requested: float) -> Cohort:
        """A draw as the cohort of the next round."""
        cohort = replace(
            drawn,
            response=self._reach(drawn.ids),
            availability=rates.at(self._availability, drawn.ids),
            round=self._ledger.open(),
            budget=spent,
            requested=requested,
            guarantee=self._guarantee(),
            token=self._ledger.token,
        )
        waiting = self.resting.add(cohort.ids, cohort.round)
        free = self.resting.released(self._ledger.round)
        if self._index is not None:
            self._index.remove(waiting)
            self._index.insert(free[self.population.is_here(free)])
        return cohort

    def _drawn_from_list(self, plan: _Plan) -> Cohort:
        if len(plan.ids) == 0:
            nothing = np.empty(0)
            return Cohort(ids=plan.ids, count=plan.ids, expected=nothing, weight=nothing)
        return self.procedure(
            plan.expected,
            generator(self.seed, self._ledger.round, "draw"),
            weights=self.population.share(plan.ids),
            ids=plan.ids,
            variables=self.balanced_on(plan.ids),
        )

    def _drawn_by_index(
        self, index: Index, requested: float, away: IntArray | None
    ) -> tuple[Cohort, float]:
        """The same law at the cost of the drawn."""
        out = np.empty(0, np.int64) if away is None else away[index.main.place[away] >= 0]
        index.remove(out)
        try:
            spent = min(requested, index.price.sum()) if len(index) else 0.0
            ids, p = out[:0], np.empty(0)
            if len(index):
                mixture = self._mixture(index, spent)
                rng = generator(self.seed, self._ledger.round, "draw")
                assert self.procedure.by_index is not None
                ids = self.procedure.by_index(index, mixture, rng)
                p = index.expected(mixture, ids)
        finally:
            index.insert(out)
        return self._cohort(ids, p), spent

    def _cohort(self, ids: IntArray, p: FloatArray) -> Cohort:
        """Clients that were drawn once, with these probabilities."""
        pairs = self.procedure.pairs
        return Cohort(
            ids=ids,
            count=np.ones(len(ids), np.int64),
            expected=p,
            weight=self.population.share(ids),
            pairs=None if pairs is None else partial(pairs, p, np.arange(len(p))),
        )

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates.

        Args:
            cohort: as drawn by this sampler; each can be updated once, in any order.
            norms: in the order of `cohort.ids`, NaN where a client did not answer; or a mapping
                from client id to norm, without those who did not answer.
        """
        values = cohort_norms(cohort, norms)
        with self._lock:
            self._ledger.check(cohort)
            self._refuse_check_in("update")
            self._warn_of_silence(cohort, ~np.isnan(values))
            self._learn(cohort, values)

    def _learn(self, cohort: Cohort, norms: FloatArray) -> None:
        answered = ~np.isnan(norms)
        if answered.any():
            self._observe(cohort.take(answered), norms[answered])
        self._response = rates.observe(self._response, cohort.ids, answered)
        self._ledger.close(cohort)

    def _observe(self, answers: Cohort, norms: FloatArray) -> None:
        pi = self.population.raw[answers.ids] * norms  # in units that do not move with the total
        feedback = _feedback(pi, answers.response, answers.availability)
        old = None if self._index is None else self._index.scores(answers.ids)
        epoch = self.policy.epoch(self._state)
        self._state = self.policy.observe(self._state, answers, feedback)
        if self._index is None or old is None:
            return
        if self.policy.epoch(self._state) == epoch:
            self._index.change(answers.ids, old)
        else:
            self._rebuild(self._index)

    def _rebuild(self, index: Index) -> None:
        index.build(np.setdiff1d(self.population.here(), self.resting.ids, assume_unique=True))

    def step(self, cohort: Cohort, updates: Any, coefficients: Coefficients = unbiased) -> Any:
        """The estimated step, as `kvib.estimate` but with memory and guard; learns from the round.

        Args:
            cohort: as drawn by this sampler.
            updates: one per client in the order of `cohort.ids`, arrays or tensors of one shape
                (or stacked along the first axis), None where a client did not answer.
            coefficients: `unbiased` or `self_normalised`.
        """
        answered, given = answers(cohort, updates)
        if answered.any():
            flat, shape = as_rows(given)
            self._shape = shape

        def among(cohort: Cohort) -> FloatArray:  # a mean is one of those who answered
            some = np.zeros(len(cohort))
            some[answered] = coefficients(cohort.take(answered))
            return some

        estimation = self.begin(cohort, coefficients if coefficients is unbiased else among)
        if not answered.any():
            d = estimation.finish()  # what is remembered, in the shape of earlier updates
            return d.reshape(self._shape) if np.ndim(d) and self._shape is not None else d
        estimation.add(answered, flat)
        return estimation.finish().reshape(shape)

    def begin(self, cohort: Cohort, coefficients: Coefficients = unbiased) -> Estimation:
        """The same in parts, for updates that do not fit into memory together."""
        if self.remembered is not None and coefficients is not unbiased:
            raise ValueError("a difference estimator is for coefficients=kvib.unbiased only")
        self._ledger.check(cohort)
        return Estimation(self, cohort, coefficients)

    def finish(
        self,
        cohort: Cohort,
        norms: FloatArray,
        sketches: FloatArray,
        usual: float,
        kept: list[tuple[Cohort, Any]],
    ) -> None:
        """Learn from a round that `begin` began; `Estimation.finish` calls it."""
        with self._lock:
            self._ledger.check(cohort)
            self._refuse_check_in("finish")
            self._warn_of_silence(cohort, ~np.isnan(norms))
            self._learn(cohort, cohort_norms(cohort, norms))
            answered = ~np.isnan(norms)
            self.sketches.keep(cohort.take(answered), sketches[answered])
            if self.guard is not None:
                self.usual_step = self.guard.learn(self.usual_step, usual)
            if self.remembered is not None:
                for part, updates in kept:
                    self.remembered.keep(part, updates)
                self.remembered.end_round()

    def balanced_on(self, ids: IntArray) -> FloatArray | None:
        """What a balancing procedure shall keep the totals of, [m, d]: λ, λ·variables, λ·sketches.

        Clients that were never seen stand for the mean of those that were.
        """
        if not self.procedure.uses_variables:
            return None
        weights = self.weights
        weight = weights[ids, None]
        sketches = self.sketches.filled(ids, weights)
        return np.concatenate([weight, weight * self.variables[ids], weight * sketches], axis=1)

    def probabilities(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
        *,
        absent: ArrayLike | None = None,
    ) -> FloatArray:
        """Expected counts of all clients for the coming round, [N]; same arguments as `draw`."""
        with self._lock:
            self._must_be_listed(available)
            requested = self._requested(budget)
            if available is None and norms is None and absent is None:
                return self._coming(requested).chances(np.arange(len(self)))
            away = None if absent is None else available_ids(np.asarray(absent), len(self))
            return self._everybody(self._plan(available, requested, norms, away))

    def _everybody(self, plan: _Plan) -> FloatArray:
        """Expected counts of all clients, [N]."""
        everybody = np.zeros(len(self))
        everybody[plan.ids] = plan.expected
        return everybody

    def _coming(self, requested: float) -> CheckIn:
        """Probabilities of the coming round, for as many clients as are asked about."""
        index = self._index
        if index is None or len(index) == 0:
            plan = self._plan(None, requested, None, None)
            everybody = self._everybody(plan)
            return CheckIn(lambda ids: everybody[ids], plan.budget, requested)
        spent = min(requested, float(index.price.sum()))
        mixture = self._mixture(index, spent)

        def chances(ids: IntArray) -> FloatArray:
            return np.where(index.main.place[ids] >= 0, index.expected(mixture, ids), 0.0)

        return CheckIn(chances, spent, requested)

    def forecast(self, level: float = 0.9) -> Forecasts:
        """‖g‖ of every client in the coming round: medians, and intervals of this probability."""
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not a probability between 0 and 1")
        with self._lock:
            told = self.policy.forecast(self._state, self._ledger.round, level)
            ids = np.arange(len(self))
            back = np.sqrt(self._reach(ids) * rates.at(self._availability, ids))
            return Forecasts(*(back * part[: len(self)] for part in told))

    def admit(self, key: Key) -> Admission:
        """Whether the client that asks takes part in the current round, and with what coefficient.

        For fleets that are not listed: every client tosses its own coin, made of (seed, round,
        key), so the answer is the same however often and in whatever order they ask, and from
        every server that loaded the same state. `gather` ends the round. Whoever knows the seed
        can choose keys that win: let it be a large random number, and a secret.

        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.KVib(), [1, 2, 3], 1, keys=["ann", "bob", "eve"])
        >>> here = [name for name in ("eve", "ann") if sampler.admit(name)]
        >>> cohort = sampler.gather(here)
        """
        with self._lock:
            ids = self.population.ids([key])
            if self._check_in is None:
                self._open_check_in()
            assert self._check_in is not None
            p = self._check_in.chances(ids)
            if self._coins(ids)[0] >= p[0]:
                return Admission(False, 0.0)
            return Admission(True, float((self.population.share(ids) / (self._reach(ids) * p))[0]))

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """End a round of check-ins: the cohort of those who asked and were admitted.

        The estimate stands for those who checked in, or for all where the sampler was told with
        which probability clients do (`availability`). Whoever was admitted belongs in, also those
        who then did not answer: their norms are NaN.
        """
        with self._lock:
            ids = np.unique(self.population.ids(keys))
            check_in = self._new_check_in() if self._check_in is None else self._check_in
            p = check_in.chances(ids)
            refused = ids[self._coins(ids) >= p]
            if len(refused):
                [name] = self.population.keys(refused[:1])
                raise ValueError(
                    f"client {name!r} was not admitted to round {self.round}; gather only those "
                    "that admit(key) admits"
                )
            self._check_in = None
            return self._opened(self._cohort(ids, p), check_in.budget, check_in.requested)

    def _open_check_in(self) -> None:
        self._check_in = self._new_check_in()

    def _new_check_in(self) -> CheckIn:
        """Probabilities of the coming round, for clients one by one."""
        if self.procedure is not independent:
            raise ValueError(
                f"only independent coins can be tossed one by one, not {self.procedure!r}; make "
                "the sampler with procedure=kvib.independent"
            )
        if not rates.is_known(self._availability):
            raise ValueError(
                "who does not ask is not known, so availability cannot be learned from check-ins; "
                "give Sampler(availability=…) the probability, or leave it out"
            )
        return self._coming(self._requested(None))

    def _coins(self, ids: IntArray) -> FloatArray:
        keys = self.population.keys(ids)
        return np.array([coin(self.seed, self.round, key) for key in keys])

    def _refuse_check_in(self, what: str) -> None:
        if self._check_in is not None:
            raise ValueError(
                f"round {self.round} is open for check-in, and its probabilities must not change; "
                f"gather(keys) ends it, then {what}"
            )

    def ids(self, keys: Any) -> IntArray:
        """Ids of clients by their keys."""
        return self.population.ids(keys)

    def keys(self, ids: ArrayLike) -> list[Key]:
        """What these clients are called."""
        return self.population.keys(ids)

    def join(
        self,
        weights: ArrayLike,
        keys: Sequence[Key] | Key | None = None,
        cost: ArrayLike | None = None,
    ) -> IntArray:
        """Clients come, or come back with their history; their ids. Costs nothing in N.

        Args:
            weights: of each, in the units of the weights at the beginning.
            keys: of each, where clients have keys.
            cost: of each, where drawing has costs.
        """
        given = positive_weights(np.atleast_1d(np.asarray(weights, np.float64)))
        names = None if keys is None else listed(keys)
        price = None if cost is None else checked_cost(np.atleast_1d(cost), len(given))
        with self._lock:
            self._can_change("join")
            own = self.population.in_units(given)
            ids, back = self.population.prepare(names, len(given))
            if (price is None) != (self.cost is None):
                raise ValueError("give newcomers a cost if, and only if, the others have one")
            fresh = ids[~back]
            self._make_room(len(self) + len(fresh))
            new = None if names is None else [names[k] for k in np.flatnonzero(~back)]
            self.population.add(fresh, own[~back], new)
            if self.cost is not None and price is not None:
                self.cost[ids] = price
            self._state = self.policy.enter(self._state, fresh, own[~back])
            self.population.come_back(ids[back])
            self._weighed(ids[back], own[back])
            self._resized()
            if self._index is not None:
                self._index.insert(ids[~self.resting.has(ids)])
            return ids

    def leave(self, keys: Any) -> None:
        """Clients go, with their share of the objective; their history is kept for a return."""
        with self._lock:
            self._refuse_check_in("leave")
            self._is_open()
            ids = np.unique(self.population.ids(keys))
            away = ids[~self.population.is_here(ids)]
            if len(away):
                raise ValueError(f"client {self.population.keys(away)[0]!r} has left before")
            if len(ids) == len(self.population):
                raise ValueError("all clients would be gone; end the run instead")
            if self._index is not None:
                self._index.remove(ids[self._index.main.place[ids] >= 0])
            self.population.leave(ids)
            self._resized()

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Weights of clients change, in the units of the weights at the beginning."""
        given = positive_weights(np.atleast_1d(np.asarray(weights, np.float64)))
        with self._lock:
            self._can_change("reweigh")
            own = self.population.in_units(given)
            ids = self.population.ids(keys)
            if len(ids) != len(given):
                raise ValueError(f"{len(given)} weights for {len(ids)} clients; give one each")
            if len(np.unique(ids)) != len(ids):
                raise ValueError("a client is listed twice; give each its one new weight")
            inside = ids[:0]
            if self._index is not None:
                inside = ids[self._index.main.place[ids] >= 0]
                self._index.remove(inside)
            self._weighed(ids, own)
            if self._index is not None:
                self._index.insert(inside)

    def _weighed(self, ids: IntArray, own: FloatArray) -> None:
        ratio = self.population.reweigh(ids, own)
        self._state = self.policy.reweigh(self._state, ids, own, ratio)

    def _can_change(self, what: str) -> None:
        """Refuse newcomers and new weights where they cannot be had, before anything changed."""
        self._refuse_check_in(what)
        self._is_open()
        nobody, nothing = np.empty(0, np.int64), np.empty(0)
        self._state = self.policy.enter(self._state, nobody, nothing)
        self._state = self.policy.reweigh(self._state, nobody, nothing, nothing)

    def _is_open(self) -> None:
        """Refuse what has one entry per client and nobody to give newcomers theirs."""
        fixed = {
            "an estimator that remembers updates": self.remembered is not None,
            "sketches": self.sketches.size > 0,
            "variables": self.variables.shape[1] > 0,
            "response or availability of each client": max(
                len(self._response.known), len(self._availability.known)
            )
            > 1,
        }
        for name, there in fixed.items():
            if there:
                raise ValueError(
                    f"a sampler with {name} has a fixed population; start a new one, or do without"
                )

    def _make_room(self, needed: int) -> None:
        """Arrays for so many ids, grown by half when they are full."""
        before = len(self.population.raw)
        room = self.population.widen(needed)
        if room == before:
            return
        more = room - before
        wider = {name: _padded(getattr(self._state, name), more) for name in self.policy.per_client}
        self._state = self._state._replace(**wider)
        if self.cost is not None:
            self.cost = _padded(self.cost, more)
        self._response = rates.widened(self._response, room)
        self._availability = rates.widened(self._availability, room)
        if self._index is not None:
            self._index.widen(room)

    def _resized(self) -> None:
        clients = len(self.population)
        self._state = self.policy.resized(self._state, clients, min(self._usual, clients))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one `.npz` file, atomically."""
        storage.write(path, self.packed())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        policy: Policy[Any] | None = None,
        procedure: Procedure | None = None,
    ) -> "Sampler":
        """The sampler that was saved: it draws what the other one would have drawn.

        Args:
            path: what `save` wrote.
            policy: needed if the policy is your own, not one of kvib's.
            procedure: likewise.
        """
        about, arrays = storage.read(path, "sampler")
        return saving.restored(cls, about, arrays, policy, procedure)

    def packed(self) -> Arrays:
        """Everything as arrays, to be kept in a file of your own; see `unpacked`."""
        with self._lock:
            return saving.packed(self)

    @classmethod
    def unpacked(
        cls,
        arrays: Arrays,
        policy: Policy[Any] | None = None,
        procedure: Procedure | None = None,
    ) -> "Sampler":
        """The sampler that `packed` packed."""
        about = storage.about(arrays["header"], "sampler")
        copies = {name: np.array(array) for name, array in arrays.items()}
        return saving.restored(cls, about, copies, policy, procedure)

    def _indexed(self) -> Index:
        """An index of nobody yet."""
        weights = None
        if self.policy.exploration(self._state, 0).by_weight:
            weights = self._by_price(lambda ids: self.population.raw[ids])
        scores = self._by_price(lambda ids: self.policy.scores(self._state, ids))
        return Index(len(self.population.raw), scores, self._prices, weights)

    def _by_price(
        self, scores: Callable[[IntArray], FloatArray]
    ) -> Callable[[IntArray], FloatArray]:
        """score/√price: whom to prefer when the budget is spent on prices."""
        if not self._priced:
            return scores
        return lambda ids: scores(ids) / np.sqrt(self._prices(ids))

    def _mixture(self, index: Index, budget: float) -> Any:
        mix, _, _ = self.policy.exploration(self._state, self._ledger.round)
        return index.mixture(budget, mix, self.procedure.cap)

    @property
    def _pays_for_answers(self) -> bool:
        """Over-selection with known rates: who answers seldom costs little."""
        return self.over_select and rates.is_known(self._response)

    @property
    def _priced(self) -> bool:
        """Whether clients differ in what drawing them takes from the budget."""
        return self.cost is not None or self._pays_for_answers

    def _prices(self, ids: IntArray) -> FloatArray:
        """What drawing these clients takes from the budget, [m]."""
        price = np.ones(len(ids)) if self.cost is None else self.cost[ids]
        return price * rates.at(self._response, ids) if self._pays_for_answers else price

    def _requested(self, budget: float | None) -> float:
        """The budget of a round, raised where it counts answers whose rate is being learned."""
        most = math.inf if self.cost is not None else len(self)  # costs are clipped, not summed up
        given = self.budget if budget is None else checked_budget(budget, most)
        if self.over_select and not rates.is_known(self._response):
            return given / rates.common(self._response)
        return given

    def _plan(
        self,
        available: ArrayLike | None,
        requested: float,
        norms: ArrayLike | None,
        away: IntArray | None,
    ) -> _Plan:
        ids = self._eligible(available, away)
        state = self._informed(norms)
        prices = self._prices(ids) if self._priced else None
        K = min(requested, len(ids) if prices is None else float(prices.sum()))
        if len(ids) == 0:
            return _Plan(ids, np.empty(0), 0.0, requested)
        known = {"weights": self.population.share(ids), "cost": prices}
        cap = self.procedure.cap
        expected = self.policy.expected(state, ids, self._ledger.round, K, cap, **known)
        # K but for rounding, or less where the policy says so (AOCS)
        spent = float((expected if prices is None else expected * prices).sum())
        return _Plan(ids, expected, K if math.isclose(spent, K, rel_tol=1e-9) else spent, requested)

    def _eligible(self, available: ArrayLike | None, away: IntArray | None) -> IntArray:
        """Ids that can be drawn, ascending."""
        ids = available_ids(available, len(self))
        out = [list(self.population.gone), self.resting.ids, [] if away is None else away]
        excluded = np.concatenate([np.asarray(part, np.int64) for part in out])
        return np.setdiff1d(ids, excluded) if len(excluded) else ids

    def _must_be_listed(self, available: ArrayLike | None) -> None:
        always = rates.is_known(self._availability) and (self._availability.known == 1).all()
        if available is None and not always:
            raise ValueError(
                "this sampler divides by the availability of clients, so each draw must be told "
                "who is there: draw(available=…)"
            )

    def _informed(self, norms: ArrayLike | None) -> Any:
        """The state to draw with: with all norms, if the policy wants them."""
        if norms is None:
            if self.policy.needs_norms:
                raise ValueError(
                    f"{type(self.policy).__name__} must know every client's norm before it draws; "
                    "call draw(norms=…) with all of them"
                )
            return self._state
        ids = np.arange(len(self))
        feedback = self.population.raw[ids] * all_norms(norms, len(self))
        reach, availability = self._reach(ids), rates.at(self._availability, ids)
        return self.policy.inform(self._state, _feedback(feedback, reach, availability))

    def _reach(self, ids: IntArray) -> FloatArray:
        """q: the probability that a client is available and answers."""
        return rates.at(self._availability, ids) * rates.at(self._response, ids)

    def _guarantee(self) -> Guarantee:
        known = rates.is_known(self._response) and rates.is_known(self._availability)
        return "unbiased" if known else "consistent"

    def _count_available(self, ids: IntArray) -> None:
        if rates.is_known(self._availability):
            return
        present = np.zeros(len(self), dtype=np.bool_)
        present[ids] = True
        self._availability = rates.observe(self._availability, np.arange(len(self)), present)

    def _warn_of_silence(self, cohort: Cohort, answered: BoolArray) -> None:
        certain = rates.at(self._response, cohort.ids) == 1
        silent = int(np.count_nonzero(~answered & certain))
        if silent and rates.is_known(self._response):
            warnings.warn(
                f"{silent} of {len(cohort)} clients of round {cohort.round} did not answer, but "
                "their response probability is 1: the estimate is too small on average; give "
                "Sampler(response=…) the probability of an answer, or EstimatedRate() to learn it",
                stacklevel=3,
            )


def _padded(array: FloatArray, more: int) -> FloatArray:
    """Room at the end of the last axis."""
    return np.concatenate([array, np.zeros((*array.shape[:-1], more), array.dtype)], axis=-1)


def _feedback(pi: FloatArray, reach: FloatArray, availability: FloatArray) -> FloatArray:
    """What policies shall learn, so that they minimise the variance that silence adds to.

    Silence after the draw leaves Σπ²/(r·p) to be minimised, as if the feedback were π/√r. Of those
    available with probability a the estimate takes π/a. With q = a·r: a·√r = √(a·q).
    """
    feedback = pi / np.sqrt(reach * availability)
    return np.where(feedback < SMALLEST_FEEDBACK, 0.0, feedback)

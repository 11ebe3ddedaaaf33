"""A policy and a procedure over a population."""

from __future__ import annotations  # so that help() shows names, not what they stand for

import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from kvib import rates, room, rows, saving, storage, switching
from kvib.checkin import Admission, coin
from kvib.checks import (
    all_norms,
    available_ids,
    checked_budget,
    checked_cohort,
    checked_cost,
    checked_kind,
    checked_seed,
    checked_sketch,
    checked_variables,
    cohort_norms,
    positive_weights,
    warn,
    warn_of_fraction,
    warn_of_waiting,
)
from kvib.cohort import Arrays, BoolArray, Cohort, FloatArray, Guarantee, IntArray
from kvib.difference import Difference
from kvib.estimation import Coefficients, Ended, Estimation, Parts
from kvib.estimators import answers, as_rows, unbiased
from kvib.guard import Guard
from kvib.learner import Learner
from kvib.ledger import Ledger
from kvib.policies import Forecasts, Policy, Setting
from kvib.policies.checked import checked_policy, checked_procedure
from kvib.population import Key, Population, listed
from kvib.prices import Prices
from kvib.procedures import Procedure, independent
from kvib.randomness import generator
from kvib.rates import EstimatedRate
from kvib.reach import Reach
from kvib.resting import Resting
from kvib.sketches import Sketches
from kvib.switching import Learned, NewGuard
from kvib.urn import Chances, Urn
from kvib.variance import Spread


class Sampler:
    """Decides which clients take part in each round, and learns from what came back.

    Examples:
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
        cool_down: rounds that a drawn client waits before it can be drawn again, at most N/K − 1 if
            rounds shall be full. Estimates then stand for those who do not wait.
        over_select: let the budget be the expected number of answers, not of clients asked.
    """

    keeps_variance: ClassVar[bool] = False
    """Whether `step` estimates the variance of its estimate, for `finish` to keep."""

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
        self.policy = checked_policy(policy)
        self.procedure = checked_procedure(procedure, policy, cost is not None)
        self.population = Population(weights, keys)
        N = self.population.count
        self.seed = checked_seed(seed)
        self._reach = Reach(response, availability, N)
        self._prices = Prices(checked_cost(cost, N), over_select, self._reach)
        self.budget = checked_budget(budget, N, self._prices.cost)
        if cost is None:
            warn_of_fraction(self.budget, N)
        self.estimator, self.guard = (
            checked_kind(estimator, Difference, "estimator"),
            checked_kind(guard, Guard, "guard"),
        )
        self.remembered = None if estimator is None else estimator.start(self.weights)
        self.usual_step = math.nan
        """What the guard measures by: a running mean of Σ coefficient·‖g‖."""
        self.cut = 0.0
        """What the guard cut off in the last round: a bound on its bias, 0 where it did nothing."""
        self.guarantee: Guarantee = self._reach.guarantee
        """Of the estimate of the last round, now that it is known who answered: as its cohort said,
        or biased, where a client is missing whose answer was certain, where the guard cut
        something off, or where coefficients were not `unbiased`."""
        self._clients_per_round = self.budget
        """Clients that the budget pays for at the average price."""
        if self._prices.differ:
            self._clients_per_round /= float(self._prices.of(np.arange(N)).mean())
        known = checked_variables(variables, N)
        self._learner = Learner(
            policy,
            Setting(self.population.raw, self._clients_per_round, self.procedure.cap, known),
        )
        self.sketches = Sketches(N, checked_sketch(sketch))
        self.resting = Resting(cool_down)
        warn_of_waiting(self.resting.rounds, N, self._clients_per_round)
        self._urn = Urn(
            self.population,
            self.resting,
            self._prices,
            self._learner,
            self.procedure,
            known,
            self.sketches,
        )
        self._ledger = Ledger()
        self._lock = threading.RLock()
        self._check_in: Chances | None = None
        """Of the round that clients are checking in for."""
        self._silence_said = False

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

    @property
    def reach(self) -> Reach:
        """Who is there and who answers, as far as it was given or learned."""
        return self._reach

    @property
    def prices(self) -> Prices:
        """What drawing a client takes from the budget."""
        return self._prices

    @property
    def variables(self) -> FloatArray:
        """What is known of every client, [N, d]."""
        return self._urn.variables[: len(self)]

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
            available: who can be drawn: one boolean per client, or a list or set of ids. Nobody:
                the cohort is empty.
            budget: for this round instead of the sampler's; at most the number available.
            norms: ‖g‖ of all clients, for the policies that must know them (Optimal, AOCS).
            absent: who cannot be drawn: a list or set of ids, short where rounds shall be fast.
        """
        with self._changing("draw"):
            away = self._absent(absent)
            with self._urn.without(away):
                chances = self._chances(available, budget, norms)
                drawn = chances.draw(generator(self.seed, self.round, "draw"))
            self._count_available(available, away)
            return self._opened(drawn, chances, self._left_out(available, away))

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """One thread at a time, and not while clients check in."""
        with self._lock:
            self._refuse_check_in(what)
            yield

    def _absent(self, absent: ArrayLike | None) -> IntArray:
        return available_ids([] if absent is None else absent, len(self), "absent")

    def _chances(
        self, available: ArrayLike | None, budget: float | None, norms: ArrayLike | None
    ) -> Chances:
        """Of the coming round."""
        self._reach.must_be_listed(available)
        requested = self._requested(budget)
        learner = self._informed(norms)
        if available is None and learner is self._learner:
            return self._urn.chances(self.round, requested)
        ids = self._urn.eligible(available_ids(available, len(self)))
        return self._urn.among(ids, self.round, requested, learner)

    def _requested(self, budget: float | None = None) -> float:
        return self._prices.requested(self.budget if budget is None else budget, len(self))

    def _informed(self, norms: ArrayLike | None) -> Learner:
        """What to draw with: told all norms, if the policy wants them."""
        if norms is None:
            if self.policy.needs_norms:
                raise ValueError(
                    f"{type(self.policy).__name__} must know every client's norm before it draws; "
                    "call draw(norms=…) with all of them"
                )
            return self._learner
        ids = np.arange(len(self))
        pi = self.population.raw[ids] * all_norms(norms, len(self))
        return self._learner.informed(pi, self._reach.at(ids), self._reach.available(ids))

    def _count_available(self, available: ArrayLike | None, away: IntArray) -> None:
        """Who was there, of those who had not left."""
        if rates.is_known(self._reach.availability):
            return
        present = np.zeros(len(self), dtype=np.bool_)
        present[available_ids(available, len(self))] = True
        present[away] = False
        here = self.population.here()
        self._reach.came(here, present[here])

    def _left_out(self, available: ArrayLike | None, away: IntArray) -> IntArray | None:
        """Whom the draw does not stand for; asked for by estimators that remember."""
        if self.remembered is None:
            return None
        if not self._reach.always:  # then it stands for those who are away too
            return self.resting.ids
        out = np.union1d(self.resting.ids, away)
        if available is None:
            return out
        there = np.setdiff1d(available_ids(available, len(self)), out)
        return np.setdiff1d(np.arange(len(self)), there)

    def _opened(self, drawn: Cohort, chances: Chances, left_out: IntArray | None) -> Cohort:
        """A draw as the cohort of the next round."""
        cohort = self._ledger.open(
            drawn,
            response=self._reach.at(drawn.ids),
            availability=self._reach.available(drawn.ids),
            budget=chances.budget,
            requested=chances.requested,
            guarantee=self._reach.guarantee,
            left_out=left_out,
        )
        self._urn.remove(self.resting.add(cohort.ids, cohort.round))
        self._urn.insert(self.resting.released(self.round))
        return cohort

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates.

        Args:
            cohort: as drawn by this sampler; each can be updated once, in any order.
            norms: in the order of `cohort.ids`, NaN where a client did not answer; or a mapping
                from client id to norm, without those who did not answer.
        """
        values = cohort_norms(cohort, norms)
        with self._changing("update"):
            self._ledger.check(cohort)
            self._warn(cohort, values)
            self._learn(cohort, values)

    def _warn(self, cohort: Cohort, norms: FloatArray) -> None:
        """Of what norms alone cannot do, and of silence."""
        answered = ~np.isnan(norms)
        if answered.any():
            self._warn_of_norms_only()
        self._warn_of_silence(cohort, answered)

    def _warn_of_norms_only(self) -> None:
        """What was asked for and cannot work without the updates themselves."""
        idle = {
            "guard": self.guard is not None,
            "sketch": self.sketches.size > 0,
            "estimator": self.remembered is not None,
        }
        if any(idle.values()):
            names = " and ".join(name for name, there in idle.items() if there)
            warn(
                f"{names} of this sampler see nothing in update(norms); call step(cohort, updates) "
                "instead of estimate and update, or make the sampler without"
            )

    def _learn(self, cohort: Cohort, norms: FloatArray) -> None:
        answered = ~np.isnan(norms)
        if answered.any():
            heard = cohort.take(answered)
            with self._urn.changing(heard.ids):
                self._learner.learn(heard, self.population.raw[heard.ids] * norms[answered])
        self.guarantee = "biased" if self._reach.lost(cohort, answered) else cohort.guarantee
        self._reach.heard(cohort.ids, answered)
        self._ledger.close(cohort)

    def give_up(self, cohort: Cohort) -> None:
        """Close a round that was lost (an outage, too few answers): nothing is learned from it,
        neither norms nor rates of answers."""
        with self._lock:
            self._ledger.check(checked_cohort(cohort))
            self._ledger.give_up(cohort)

    def _warn_of_silence(self, cohort: Cohort, answered: BoolArray) -> None:
        """Warn once where a client is silent that always answers."""
        silent = self._reach.lost(cohort, answered)
        if silent and not self._silence_said:
            warn(
                f"{silent} of {len(cohort)} clients of round {cohort.round} did not answer, but "
                "their response probability is 1: the estimate is too small on average; give "
                "Sampler(response=…) the probability of an answer, or EstimatedRate() to learn it. "
                "This is said once; sampler.guarantee says it of every round"
            )
            self._silence_said = True

    def step(
        self,
        cohort: Cohort,
        updates: Any,
        coefficients: Coefficients = unbiased,
        like: Any = None,
    ) -> Any:
        """The estimated step, as `kvib.estimate` but with memory and guard; learns from the round.

        Args:
            cohort: as drawn by this sampler.
            updates: one per client in the order of `cohort.ids`, arrays or tensors of one shape
                (or stacked along the first axis), None where a client did not answer. All real, and
                finite, but with a guard, which leaves the others out.
            coefficients: `unbiased` or `self_normalised`.
            like: what the model looks like; then a round without answers gives its form too, not
                what is remembered as a vector, or 0.0.
        """
        answered, given = answers(checked_cohort(cohort), updates)
        if answered.any():
            flat, shape = as_rows(given)
        estimation = self._begin(cohort, coefficients, answered, self.keeps_variance)
        if not answered.any():
            d = estimation.finish()  # what is remembered
            return d if like is None else rows.formed(like, d)
        estimation.borrow(answered, flat)
        return estimation.finish().reshape(shape)

    def begin(
        self, cohort: Cohort, coefficients: Coefficients = unbiased, *, spread: bool = False
    ) -> Estimation:
        """The same in parts, for updates that do not fit into memory together.

        Args:
            cohort: as drawn by this sampler.
            coefficients: `unbiased` or `self_normalised`.
            spread: estimate the variance on the way (`Estimation.variance`, and kept in a journal),
                which takes one more sum. `step` does so where the sampler is in a journal.
        """
        return self._begin(cohort, coefficients, spread=spread)

    def _begin(
        self,
        cohort: Cohort,
        coefficients: Coefficients,
        heard: BoolArray | None = None,
        spread: bool = False,
    ) -> Estimation:
        if self.remembered is not None and coefficients is not unbiased:
            raise ValueError("a difference estimator is for coefficients=kvib.unbiased only")
        with self._lock:  # `finish` of other rounds changes what is remembered
            self._ledger.check(checked_cohort(cohort))
            watching = Spread(cohort) if spread else None
            parts = Parts(
                guard=self.guard,
                usual_step=self.usual_step,
                memory=self.remembered,
                sketch=self.sketches.size,
                names=self.keys,
                silence=self._warn_of_silence,
                end=self._end,
            )
            estimation = Estimation(parts, cohort, coefficients, heard, watching)
        if coefficients is not unbiased:
            estimation.guarantee = "biased"
        return estimation

    def _end(self, ended: Ended) -> Guarantee:
        """Learn from a round that `begin` began, and say what came of it."""
        self._finish(ended)
        self.cut = ended.cut
        if ended.biased:
            self.guarantee = "biased"
        return self.guarantee

    def _finish(self, ended: Ended) -> None:
        cohort, norms = ended.cohort, ended.norms
        with self._lock:
            self._ledger.check(cohort)
            self._refuse_check_in("finish")
            self._learn(cohort, cohort_norms(cohort, norms))
            answered = ~np.isnan(norms)
            self.sketches.keep(cohort.take(answered), ended.sketches[answered])
            if self.guard is not None:
                self.usual_step = self.guard.learn(self.usual_step, ended.usual)
            if self.remembered is not None:
                for part, updates in ended.kept:
                    self.remembered.keep(part, updates)
                self.remembered.end_round()

    def balanced_on(self, ids: IntArray) -> FloatArray | None:
        """What a balancing procedure shall keep the totals of, [m, d]; see `Urn`."""
        return self._urn.balanced_on(ids)

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
            if absent is not None:  # as a list: to look must not move anybody in the index
                away = self._absent(absent)
                available = np.setdiff1d(available_ids(available, len(self)), away)
            return self._chances(available, budget, norms).of(np.arange(len(self)))

    def forecast(self, level: float = 0.9) -> Forecasts:
        """‖g‖ of every client in the coming round: medians, and intervals of this probability; with
        an estimator that remembers ‖g − βh‖, which is what the policy learns from."""
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not a probability between 0 and 1")
        with self._lock:
            ids = np.arange(len(self))
            reach = (self._reach.at(ids), self._reach.available(ids))
            return self._learner.forecast(self.round, level, *reach)

    def admit(self, key: Key) -> Admission:
        """Whether the client that asks takes part in the current round, and with what coefficient.

        For fleets that are not listed: every client tosses its own coin, made of (seed, round,
        key), so the answer is the same however often and in whatever order they ask, and from
        every server that loaded the same state. `gather` ends the round. Whoever knows the seed
        can choose keys that win: let it be a large random number, and a secret.

        Examples:
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
            p = self._check_in.of(ids)
            if self._coins(ids)[0] >= p[0]:
                return Admission(False, 0.0)
            reached = self._reach.at(ids) * p
            return Admission(True, float((self.population.share(ids) / reached)[0]))

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """End a round of check-ins: the cohort of those who asked and were admitted.

        The estimate stands for those who checked in, or for all where the sampler was told with
        which probability clients do (`availability`). Whoever was admitted belongs in, also those
        who then did not answer: their norms are NaN.
        """
        with self._lock:
            ids = np.unique(self.population.ids(keys))
            check_in = self._new_check_in() if self._check_in is None else self._check_in
            p = check_in.of(ids)
            refused = ids[self._coins(ids) >= p]
            if len(refused):
                [name] = self.population.keys(refused[:1])
                raise ValueError(
                    f"client {name!r} was not admitted to round {self.round}; gather only those "
                    "that admit(key) admits"
                )
            self._check_in = None
            return self._opened(self._urn.cohort(ids, p), check_in, self._left_out(None, ids[:0]))

    def _open_check_in(self) -> None:
        self._check_in = self._new_check_in()

    def _new_check_in(self) -> Chances:
        """Probabilities of the coming round, for clients one by one."""
        if self.procedure is not independent:
            raise ValueError(
                f"only independent coins can be tossed one by one, not {self.procedure!r}; make "
                "the sampler with procedure=kvib.independent"
            )
        if not rates.is_known(self._reach.availability):
            raise ValueError(
                "who does not ask is not known, so availability cannot be learned from check-ins; "
                "give Sampler(availability=…) the probability, or leave it out"
            )
        if self.remembered is not None and self._reach.always:
            raise ValueError(
                "who does not ask is not known, so an estimator that remembers cannot leave them "
                "out; give Sampler(availability=…) the probability that a client asks"
            )
        self._informed(None)  # or refuse
        return self._urn.chances(self.round, self._requested())

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
        names, first = None if keys is None else listed(keys), len(self)
        given = positive_weights(
            np.atleast_1d(weights), names or range(first, first + np.size(weights))
        )
        price = None if cost is None else checked_cost(np.atleast_1d(cost), len(given))
        with self._changing("join"):
            self._learner.takes_changes()
            self._refuse_fixed()
            own = self.population.in_units(given)
            ids, back = self.population.prepare(names, len(given))
            if (price is None) != (self._prices.cost is None):
                raise ValueError("give newcomers a cost if, and only if, the others have one")
            fresh, known = ids[~back], ids[back]
            self._make_room(len(self) + len(fresh))
            self._learner.enter(fresh, own[~back])  # the policy first: it may still refuse
            self._learner.reweigh(known, own[back], own[back] / self.population.raw[known])
            new = None if names is None else [names[k] for k in np.flatnonzero(~back)]
            self.population.add(fresh, own[~back], new)
            if self._prices.cost is not None and price is not None:
                self._prices.cost[ids] = price
            self.population.come_back(known)
            self.population.reweigh(known, own[back])
            self._resized()
            self._urn.insert(ids)
            return ids

    def leave(self, keys: Any) -> None:
        """Clients go, with their share of the objective; their history is kept for a return."""
        with self._changing("leave"):
            self._refuse_fixed()
            ids = np.unique(self.population.ids(keys))
            away = ids[~self.population.is_here(ids)]
            if len(away):
                raise ValueError(f"client {self.population.keys(away)[0]!r} has left before")
            if len(ids) == len(self.population):
                raise ValueError("all clients would be gone; end the run instead")
            self._urn.remove(ids)
            self.population.leave(ids)
            self._reach.left(ids)
            self._resized()

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Weights of clients change, in the units of the weights at the beginning."""
        given = positive_weights(np.atleast_1d(weights), np.atleast_1d(keys).tolist())
        with self._changing("reweigh"):
            self._learner.takes_changes()
            self._refuse_fixed()
            own = self.population.in_units(given)
            ids = self.population.ids(keys)
            if len(ids) != len(given):
                raise ValueError(f"{len(given)} weights for {len(ids)} clients; give one each")
            if len(np.unique(ids)) != len(ids):
                raise ValueError("a client is listed twice; give each its one new weight")
            with self._urn.reweighing(ids):
                self._learner.reweigh(ids, own, own / self.population.raw[ids])
                self.population.reweigh(ids, own)

    def _refuse_fixed(self) -> None:
        """Refuse what has one entry per client and nobody to give newcomers theirs."""
        fixed = {
            "an estimator that remembers updates": self.remembered is not None,
            "sketches": self.sketches.size > 0,
            "variables": self.variables.shape[1] > 0,
            "response or availability of each client": self._reach.of_each,
        }
        for name, there in fixed.items():
            if there:
                raise ValueError(
                    f"a sampler with {name} has a fixed population (`kvib.recommended` keeps "
                    "sketches); start a new one, or let clients come and go with "
                    "kvib.Sampler(kvib.Forecast(), weights, budget)"
                )

    def _make_room(self, needed: int) -> None:
        """Entries for this many ids in everything that has one per client."""
        before = len(self.population.raw)
        entries = room.enough(needed, before)
        if entries > before:
            parts = (self._learner, self._prices, self._reach, self.sketches, self._urn)
            for part in (self.population, *parts):
                part.widen(entries)

    def _resized(self) -> None:
        switching.resize(self, self._learner, len(self.population))

    def switch(
        self,
        policy: Policy[Any],
        procedure: Procedure | None = None,
        guard: NewGuard = "keep",
    ) -> Learned:
        """Draw by another policy from the next round on; outstanding cohorts stay valid.

        The policy starts fresh and learns from the rounds to come, since a sampler does not
        remember past ones; a journal does (`Journalled.switch`). Everything else stays as it is.
        The result says how many past rounds have taught the policy, and how many could not.

        Args:
            policy: whom to prefer.
            procedure: how to draw. By default it is the new policy's own if the old policy's own
                was in use, and stays as it is if another was.
            guard: another guard, or None for no guard; by default it stays.
        """
        with self._changing("switch"):
            return switching.switch(self, policy, procedure, guard)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one `.npz` file, atomically, that only its owner can read."""
        storage.write(path, self.packed())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        policy: Policy[Any] | None = None,
        procedure: Procedure | None = None,
    ) -> Sampler:
        """The sampler that was saved: it draws what the other one would have drawn.

        A file that is damaged, or says what no sampler can have said, is a ValueError.

        Args:
            path: what `save` wrote.
            policy: needed if the policy is your own, not one of kvib's.
            procedure: likewise.
        """
        about, arrays = storage.read(path, "sampler", saving.ARRAYS)
        return saving.restored(cls, about, arrays, policy, procedure, path)

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
    ) -> Sampler:
        """The sampler that `packed` packed."""
        with storage.whole("sampler"):
            about, others = storage.unheaded(arrays, "sampler")
        copies = {name: np.array(array) for name, array in others.items()}
        return saving.restored(cls, about, copies, policy, procedure)

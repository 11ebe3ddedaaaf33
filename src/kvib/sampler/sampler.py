"""A policy and a procedure over a population."""

from __future__ import annotations  # so that help() shows names, not what they stand for

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import (
    checked_kind,
    checked_seed,
    checked_sketch,
    checked_variables,
    warn_of_fraction,
    warn_of_waiting,
)
from kvib.clients.check_in import Admission
from kvib.clients.cool_down import CoolDown
from kvib.clients.population import Population
from kvib.clients.prices import Prices
from kvib.clients.rates import EstimatedRate, Rates
from kvib.cohort import Cohort, Guarantee, checked_cohort, cohort_norms
from kvib.estimators.difference import Difference
from kvib.estimators.estimate import unbiased
from kvib.estimators.guard import Guard, StepLength
from kvib.estimators.sketches import Sketches
from kvib.estimators.streaming import Coefficients, Ended, Estimation
from kvib.files import storage
from kvib.files.part import Saved
from kvib.policies import Policy
from kvib.policies.checked import checked_policy, checked_procedure
from kvib.policies.policy import Setting
from kvib.procedures import Procedure
from kvib.sampler import saving, switching
from kvib.sampler.drawing import Conditions
from kvib.sampler.eligible import Eligible
from kvib.sampler.learner import Learner
from kvib.sampler.open_rounds import OpenRounds
from kvib.sampler.parts import Parts
from kvib.sampler.readable import ReadableSampler
from kvib.sampler.state import State, assembled
from kvib.sampler.switching import Learned, NewGuard
from kvib.types import Arrays, IntArray, Key


class Sampler(ReadableSampler):
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
        availability: probability that a client is among the `available` of a draw, given in the
            same ways. With it the estimate stands for all clients, without for the available.
        estimator: `Difference()` to remember updates; then call `step`, not `estimate`.
        guard: `Guard()` to bound what one client can do; then call `step` too.
        variables: what is known of every client, [N, d] (data size, label histogram): for
            procedures that balance on it and policies that forecast from it.
        sketch: length of the sketch of each client's last update, kept for the same purpose.
        keys: what clients are called, strings or integers; by default 0 to N − 1.
        cost: of drawing each client (bytes, energy); then the budget is in its units.
        cool_down: rounds that a drawn client waits before it can be drawn again, at most N/K − 1 if
            rounds shall be full. Estimates then stand for those who do not wait.
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
        checked_policy(policy)
        procedure = checked_procedure(procedure, policy, cost is not None)
        population = Population(weights, keys)
        N, seed = population.count, checked_seed(seed)
        rates = Rates(response, availability, N)
        prices = Prices(budget, cost, over_select, rates, N)
        if cost is None:
            warn_of_fraction(prices.budget, N)
        checked_kind(estimator, Difference, "estimator")
        checked_kind(guard, Guard, "guard")
        known = checked_variables(variables, N)
        setting = Setting(population.raw, prices.clients_per_round, procedure.cap, known)
        learner, sketches = Learner(policy, setting), Sketches(N, checked_sketch(sketch))
        waiting = CoolDown(cool_down)
        warn_of_waiting(waiting.rounds, N, prices.clients_per_round)
        parts = Parts(
            rounds=OpenRounds(),
            population=population,
            sketches=sketches,
            cool_down=waiting,
            step_length=StepLength(),
            memory=None if estimator is None else estimator.start(population.shares()),
            learner=learner,
            rates=rates,
            prices=prices,
            eligible=Eligible(population, waiting, prices, learner, procedure, known, sketches),
        )
        super().__init__(assembled(parts, seed, estimator, guard))

    @contextmanager
    def _changing(self, what: str) -> Iterator[State]:
        """One thread at a time, and not while clients check in."""
        with self.state.lock:
            if self.state.check_in.is_open:
                self.state.check_in.refuse(what)
            yield self.state

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
            available: who can be drawn: one boolean per client, or a list or set of ids. An empty
                list gives an empty cohort.
            budget: for this round instead of the sampler's; at most the number available.
            norms: ‖g‖ of all clients, for the policies that must know them (Optimal, AOCS).
            absent: who cannot be drawn: a list or set of ids, short where rounds shall be fast.
        """
        with self._changing("draw") as state:
            given = Conditions(available, budget, norms, absent)
            return state.drawing.open(state.drawing.draw(given))

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates.

        Args:
            cohort: as drawn by this sampler; each can be updated once, in any order.
            norms: in the order of `cohort.ids`, NaN where a client did not answer; or a mapping
                from client id to norm, without those who did not answer.
        """
        values = cohort_norms(cohort, norms)
        with self._changing("update") as state:
            state.rounds.check(cohort)
            state.learning.warn(cohort, values)
            state.learning.learn(cohort, values)

    def give_up(self, cohort: Cohort) -> None:
        """Close a round that was lost (an outage, too few answers): nothing is learned from it,
        neither norms nor rates of answers."""
        with self.state.lock:
            self.state.rounds.check(checked_cohort(cohort))
            self.state.rounds.give_up(cohort)

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
        return self.state.learning.step(cohort, updates, coefficients, like, self._end)

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
        return self.state.learning.begin(cohort, coefficients, self._end, spread=spread)

    def _end(self, ended: Ended) -> Guarantee:
        """Learn from a round that `begin` began, and say what came of it."""
        with self._changing("finish") as state:
            state.learning.finish(ended)
            return state.learning.judge(ended)

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
        with self.state.lock:
            self.ids([key])  # an unknown client opens no check-in
            if not self.state.check_in.is_open:
                self.state.check_in.open()
            return self.state.check_in.admit(key)

    def gather(self, keys: Sequence[Key]) -> Cohort:
        """End a round of check-ins: the cohort of those who asked and were admitted.

        The estimate stands for those who checked in, or for all where the sampler was told with
        which probability clients do (`availability`). Whoever was admitted belongs in, also those
        who then did not answer: their norms are NaN.
        """
        with self.state.lock:
            draw = self.state.check_in.gathered(keys)
            self.state.check_in.close()
            return self.state.drawing.open(draw)

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
        with self._changing("join") as state:
            return state.membership.join(weights, keys, cost)

    def leave(self, keys: Any) -> None:
        """Clients go, with their share of the objective; their history is kept for a return."""
        with self._changing("leave") as state:
            state.membership.leave(keys)

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Weights of clients change, in the units of the weights at the beginning."""
        with self._changing("reweigh") as state:
            state.membership.reweigh(keys, weights)

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
        with self._changing("switch") as state:
            return switching.switch(state, policy, procedure, guard)

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
            procedure: needed if the procedure is your own.
        """
        saved = Saved(*storage.read(path, "sampler", saving.ARRAYS))
        return cls.restored(saved, policy, procedure, path)

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
        return cls.restored(Saved(about, copies), policy, procedure)

    @classmethod
    def restored(
        cls,
        saved: Saved,
        policy: Policy[Any] | None = None,
        procedure: Procedure | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Sampler:
        """The sampler that was saved, from what a file holds of it.

        Args:
            saved: header and arrays. The arrays become the sampler's own.
            policy: needed if the policy is your own, not one of kvib's.
            procedure: needed if the procedure is your own.
            path: of the file, for what errors say.
        """
        with storage.whole("sampler", path):
            given = saving.options(saved, policy, procedure)
            first = [given.pop(name) for name in ("policy", "weights", "budget", "procedure")]
            sampler = cls(*first, **given)
            saving.fill(sampler.state, saved)
            return sampler

"""The sampler: a policy and a procedure over a population of clients."""

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
    """A sampler decides which clients take part in each round, and learns from their answers.

    The policy says how often each client is drawn on average, and the procedure draws by that. The
    estimated step counts each drawn client by one over its expected count, so that its mean over
    all draws is the step of full participation:

    d = Σ_{i ∈ S} λ_i·n_i·g_i / (q_i·e_i) with E[d] = Σ λ_i g_i. S are the drawn clients that
    answered, n_i is how often client i was drawn, e_i = E[n_i], and q_i is the probability that the
    client is available and answers.

    Args:
        policy: The policy, which decides how often each client is drawn.
        weights: The weight λ of every client: any positive numbers (data sizes, for example), which
            are normalised inside.
        budget: The number of clients per round, on average or exactly: that is up to the procedure.
            With `cost` or `over_select` it counts costs or answers instead.
        procedure: The procedure, which draws clients by the expected counts. By default it is the
            one that the policy was published with.
        seed: The seed, which decides every draw together with the round number.
        response: The probability r that a drawn client answers: a number, one per client, or
            `EstimatedRate()`. Coefficients are divided by it.
        availability: The probability a that a client is among the `available` of a draw: a number,
            one per client, or `EstimatedRate()`. With it the estimate stands for all clients,
            without it for the available clients.
        estimator: `Difference()` remembers updates. Then call `step`, not `estimate`.
        guard: `Guard()` bounds what one client can add to a step. Then call `step`, not `estimate`.
        variables: What is known of every client, [N, d] (data size, label histogram). Procedures
            balance on it, and policies forecast from it.
        sketch: The length of the sketch of each client's last update, which is kept for the same
            purpose. With 0 none is kept.
        keys: The names of the clients, strings or integers. By default they are 0 to N − 1.
        cost: The cost of drawing each client (bytes, energy). The budget is then in its units.
        cool_down: The number of rounds that a drawn client waits before it can be drawn again. For
            full rounds it is at most N/K − 1. Estimates then stand for the clients that do not
            wait.
        over_select: Whether the budget is the expected number of answers, not of clients asked.

    Examples:
        >>> import kvib
        >>> sampler = kvib.Sampler(kvib.KVib(), weights=[10, 20, 30, 40], budget=2, seed=0)
        >>> cohort = sampler.draw()
        >>> updates = [[1.0, 2.0] for client in cohort.ids]
        >>> step = kvib.estimate(cohort, updates)       # its mean is the full-participation step
        >>> sampler.update(cohort, kvib.norms(updates))

    References:
        Zeng et al., "Enhanced Federated Optimization", Alg. 1 and Section 2.
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
        features = checked_variables(variables, N)
        setting = Setting(population.raw, prices.clients_per_round, procedure.cap, features)
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
            eligible=Eligible(population, waiting, prices, learner, procedure, features, sketches),
        )
        super().__init__(assembled(parts, seed, estimator, guard))

    @contextmanager
    def _changing(self, call: str) -> Iterator[State]:
        """Hold the lock for a change, and refuse it while clients check in."""
        with self.state.lock:
            if self.state.check_in.is_open:
                self.state.check_in.refuse(call)
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
            available: The clients that can be drawn: one boolean per client, or a list or set of
                ids. An empty list gives an empty cohort.
            budget: The budget of this round instead of the sampler's. At most the available
                clients are drawn.
            norms: ‖g‖ of all clients, for the policies that must know them (Optimal, AOCS).
            absent: The clients that cannot be drawn: a list or set of ids. Rounds are fast where it
                is short.
        """
        with self._changing("draw") as state:
            conditions = Conditions(available, budget, norms, absent)
            return state.drawing.open(state.drawing.draw(conditions))

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates.

        Args:
            cohort: A cohort that this sampler drew. Each can be updated once, in any order.
            norms: The norms in the order of `cohort.ids`, NaN where a client did not answer. Or a
                mapping from client id to norm, without the clients that did not answer.
        """
        values = cohort_norms(cohort, norms)
        with self._changing("update") as state:
            state.rounds.check(cohort)
            state.learning.warn(cohort, values)
            state.learning.learn(cohort, values)

    def give_up(self, cohort: Cohort) -> None:
        """Give up a round that was lost (an outage, too few answers).

        Nothing is learned from it, neither norms nor rates of answers.

        Args:
            cohort: A cohort that this sampler drew and that was not updated.
        """
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
        """Estimate the step of a round, with memory and guard, and learn from the round.

        Without memory and guard it is the step of `kvib.estimate`.

        Args:
            cohort: A cohort that this sampler drew.
            updates: One update per client in the order of `cohort.ids`: arrays or tensors of one
                shape (or stacked along the first axis), None where a client did not answer. All
                must be real and finite. A guard leaves out those that are not finite.
            coefficients: `unbiased` or `self_normalised`.
            like: An example of the model's form. With it a round without answers has this form too.
                Without it that round gives what is remembered as a vector, or 0.0.
        """
        return self.state.learning.step(cohort, updates, coefficients, like, self._end)

    def begin(
        self, cohort: Cohort, coefficients: Coefficients = unbiased, *, spread: bool = False
    ) -> Estimation:
        """Begin a step whose updates come in parts, since they do not fit into memory together.

        Args:
            cohort: A cohort that this sampler drew.
            coefficients: `unbiased` or `self_normalised`.
            spread: Whether to estimate the variance on the way (`Estimation.variance`, which a
                journal keeps). It takes one more sum. `step` does so where the sampler is in a
                journal.
        """
        return self.state.learning.begin(cohort, coefficients, self._end, spread=spread)

    def _end(self, ended: Ended) -> Guarantee:
        """Learn from a round that `begin` began, and return the guarantee of its estimate."""
        with self._changing("finish") as state:
            state.learning.finish(ended)
            return state.learning.judge(ended)

    def admit(self, key: Key) -> Admission:
        """Decide whether a client that asks takes part in the current round.

        The answer holds the client's coefficient too. It is for fleets that are not listed: every
        client tosses its own coin, made of (seed, round, key). So the answer is the same however
        often and in whatever order clients ask, and from every server that loaded the same state.
        `gather` ends the round. Whoever knows the seed can choose keys that win, so it should be a
        large random number, and a secret.

        Args:
            key: The key of the client that asks.

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
        """End a round of check-ins, and return the cohort of the admitted clients.

        The estimate stands for the clients that checked in. Where the sampler knows with which
        probability clients check in (`availability`), it stands for all clients.

        Args:
            keys: The keys of all clients that were admitted. Clients that then did not answer
                belong in too, and their norms are NaN.
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
        """Let clients join, or return with their history, and return their ids.

        The cost does not depend on N, except where arrays are full and have to grow.

        Args:
            weights: The weight of each, in the units of the weights at the beginning.
            keys: The key of each, where clients have keys.
            cost: The cost of each, where drawing has costs.
        """
        with self._changing("join") as state:
            return state.membership.join(weights, keys, cost)

    def leave(self, keys: Any) -> None:
        """Let clients leave the population, with their share of the objective.

        Their history is kept for a return.

        Args:
            keys: The keys of the clients, or their ids where clients have no keys.
        """
        with self._changing("leave") as state:
            state.membership.leave(keys)

    def reweigh(self, keys: Any, weights: ArrayLike) -> None:
        """Change the weights of clients.

        Args:
            keys: The keys of the clients, or their ids where clients have no keys.
            weights: The new weight of each, in the units of the weights at the beginning.
        """
        with self._changing("reweigh") as state:
            state.membership.reweigh(keys, weights)

    def switch(
        self,
        policy: Policy[Any],
        procedure: Procedure | None = None,
        guard: NewGuard = "keep",
    ) -> Learned:
        """Draw by another policy from the next round on. Outstanding cohorts stay valid.

        The policy starts fresh and learns from the rounds to come, since a sampler does not
        remember past rounds. A journal does (`Journalled.switch`). Everything else stays as it is.
        The result says how many past rounds have taught the policy, and how many could not.

        Args:
            policy: The new policy.
            procedure: The procedure from now on. By default it is the new policy's own if the old
                policy's own was in use, and stays as it is if another was.
            guard: Another guard, or None for no guard. By default the guard stays.
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
        """Load the sampler that was saved. It draws what the saved sampler would have drawn.

        A file that is damaged, or holds what no sampler can have saved, is a ValueError.

        Args:
            path: The path of a file that `save` wrote.
            policy: The policy. It is needed if the policy is your own, not one of kvib's.
            procedure: The procedure. It is needed if the procedure is your own.
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
        """Restore the sampler that `packed` packed.

        Args:
            arrays: What `packed` returned.
            policy: The policy. It is needed if the policy is your own, not one of kvib's.
            procedure: The procedure. It is needed if the procedure is your own.
        """
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
        """Restore the sampler that was saved, from the header and the arrays of a file.

        Args:
            saved: The header and the arrays. The arrays become the sampler's own.
            policy: The policy. It is needed if the policy is your own, not one of kvib's.
            procedure: The procedure. It is needed if the procedure is your own.
            path: The path of the file, for the text of errors.
        """
        with storage.whole("sampler", path):
            options = saving.options(saved, policy, procedure)
            first = [options.pop(name) for name in ("policy", "weights", "budget", "procedure")]
            sampler = cls(*first, **options)
            saving.fill(sampler.state, saved)
            return sampler

"""A policy and a procedure over a population."""

import math
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvib import rates, storage
from kvib.checks import (
    SMALLEST_FEEDBACK,
    all_norms,
    available_ids,
    checked_budget,
    checked_seed,
    checked_sketch,
    checked_variables,
    checked_weights,
    cohort_norms,
)
from kvib.cohort import Arrays, BoolArray, Cohort, FloatArray, Guarantee, IntArray
from kvib.difference import Difference
from kvib.estimation import Estimation
from kvib.estimators import Coefficients, answers, as_rows, unbiased
from kvib.guard import Guard
from kvib.ledger import Ledger
from kvib.names import PROCEDURES
from kvib.policies import Forecasts, Policy, Setting
from kvib.procedures import Procedure
from kvib.randomness import generator
from kvib.rates import EstimatedRate
from kvib.sketches import Sketches

_HEADER = {"policy", "procedure", "budget", "seed", "round", "token", "estimator", "guard"} | {
    "sketch",
    "usual step",
}
_ARRAYS = {"weights", "updated", "variables", "sketches.rows", "sketches.returns"}


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
    ) -> None:
        self.policy = policy
        self.procedure = policy.procedure if procedure is None else procedure
        self.weights = checked_weights(weights)
        self.weights.flags.writeable = False
        self.budget = checked_budget(budget, len(self.weights))
        self.seed = checked_seed(seed)
        self._response = rates.start(response, len(self.weights), "response")
        self._availability = rates.start(availability, len(self.weights), "availability")
        self.estimator, self.guard = estimator, guard
        self.remembered = None if estimator is None else estimator.start(self.weights)
        self.usual_step = math.nan
        """What the guard measures by: a running mean of Σ coefficient·‖g‖."""
        self.variables = checked_variables(variables, len(self.weights))
        setting = Setting(self.weights, self.budget, self.procedure.cap, self.variables)
        self._state = policy.start(setting)
        self.sketches = Sketches(len(self.weights), checked_sketch(sketch))
        self._ledger = Ledger()
        self._shape: tuple[int, ...] | None = None
        self._lock = threading.RLock()

    @property
    def round(self) -> int:
        """How many rounds were drawn."""
        return self._ledger.round

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.weights)

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
    ) -> Cohort:
        """Draw the clients of the next round.

        Args:
            available: who can be drawn: one boolean per client, or a list of ids. Nobody: the
                cohort is empty.
            budget: for this round instead of the sampler's; at most the number available.
            norms: ‖g‖ of all clients, for the policies that must know them (Optimal, AOCS).
        """
        with self._lock:
            plan = self._plan(available, budget, norms)
            if len(plan.ids):
                rng = generator(self.seed, self._ledger.round, "draw")
                weights = self.weights[plan.ids]
                drawn = self.procedure(
                    plan.expected,
                    rng,
                    weights=weights,
                    ids=plan.ids,
                    variables=self.balanced_on(plan.ids),
                )
            else:
                drawn = Cohort(
                    ids=plan.ids, count=plan.ids, expected=plan.expected, weight=plan.expected
                )
            cohort = replace(
                drawn,
                response=self._reach(drawn.ids),
                availability=rates.at(self._availability, drawn.ids),
                round=self._ledger.open(),
                budget=plan.budget,
                requested=plan.requested,
                guarantee=self._guarantee(),
                token=self._ledger.token,
            )
            self._count_available(plan.ids)
            return cohort

    def update(self, cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> None:
        """Learn from the norms ‖g‖ of a cohort's updates.

        Args:
            cohort: as drawn by this sampler; each can be updated once, in any order.
            norms: in the order of `cohort.ids`, NaN where a client did not answer; or a mapping
                from client id to norm, without those who did not answer.
        """
        values = cohort_norms(cohort, norms)
        answered = ~np.isnan(values)
        with self._lock:
            self._ledger.check(cohort)
            self._warn_of_silence(cohort, answered)
            if answered.any():
                answers = cohort.take(answered)
                feedback = _feedback(
                    answers.weight * values[answered], answers.response, answers.availability
                )
                self._state = self.policy.observe(self._state, answers, feedback)
            self._response = rates.observe(self._response, cohort.ids, answered)
            self._ledger.close(cohort)

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
            self.update(cohort, norms)
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
        weight = self.weights[ids, None]
        sketches = self.sketches.filled(ids, self.weights)
        return np.concatenate([weight, weight * self.variables[ids], weight * sketches], axis=1)

    def probabilities(
        self,
        available: ArrayLike | None = None,
        budget: float | None = None,
        norms: ArrayLike | None = None,
    ) -> FloatArray:
        """Expected counts of all clients for the coming round, [N]; same arguments as `draw`."""
        with self._lock:
            plan = self._plan(available, budget, norms)
        everybody = np.zeros(len(self))
        everybody[plan.ids] = plan.expected
        return everybody

    def forecast(self, level: float = 0.9) -> Forecasts:
        """‖g‖ of every client in the coming round: medians, and intervals of this probability."""
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not a probability between 0 and 1")
        with self._lock:
            told = self.policy.forecast(self._state, self._ledger.round, level)
            ids = np.arange(len(self))
            back = np.sqrt(self._reach(ids) * rates.at(self._availability, ids))
            return Forecasts(*(back * part for part in told))

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
        return cls._restored(about, arrays, policy, procedure)

    def packed(self) -> Arrays:
        """Everything as arrays, to be kept in a file of your own; see `unpacked`."""
        with self._lock:
            about = {
                "policy": storage.describe_policy(self.policy),
                "procedure": self.procedure.name,
                "budget": self.budget,
                "seed": self.seed,
                "round": self._ledger.round,
                "token": self._ledger.token,
                "estimator": storage.describe(self.estimator),
                "guard": storage.describe(self.guard),
                "sketch": self.sketches.size,
                "usual step": None if math.isnan(self.usual_step) else self.usual_step,
            }
            memory = {} if self.remembered is None else self.remembered.packed()
            arrays = {
                "header": storage.header("sampler", about),
                "weights": self.weights,
                "updated": np.frombuffer(bytes(self._ledger.updated), dtype=np.uint8),
                **storage.pack("state", self._state),
                **storage.pack("response", self._response),
                **storage.pack("availability", self._availability),
                "variables": self.variables,
                **{f"sketches.{name}": array for name, array in self.sketches.packed().items()},
                **{f"estimator.{name}": array for name, array in memory.items()},
            }
            return {name: np.array(array) for name, array in arrays.items()}

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
        return cls._restored(about, copies, policy, procedure)

    @classmethod
    def _restored(
        cls,
        about: dict[str, Any],
        arrays: Arrays,
        policy: Policy[Any] | None,
        procedure: Procedure | None,
    ) -> "Sampler":
        missing = _HEADER - set(about) | _ARRAYS - set(arrays)
        if missing or len(arrays["updated"]) != about["round"]:
            raise ValueError(f"not a whole kvib sampler file: {missing or 'rounds'} missing")
        policy = storage.restore_policy(about["policy"], policy)
        procedure = PROCEDURES.get(about["procedure"]) if procedure is None else procedure
        if procedure is None:
            raise ValueError(
                f"{about['procedure']!r} is not one of kvib's procedures; give it: "
                "Sampler.load(path, procedure=…)"
            )
        weights = np.array(arrays["weights"])
        sampler = cls(
            policy,
            weights,
            about["budget"],
            procedure,
            seed=about["seed"],
            estimator=storage.described(about["estimator"]),
            guard=storage.described(about["guard"]),
            variables=arrays["variables"],
            sketch=about["sketch"],
        )
        sampler.sketches.restore(storage.part(arrays, "sketches"))
        sampler.usual_step = math.nan if about["usual step"] is None else about["usual step"]
        weights.flags.writeable = False
        sampler.weights = weights  # exactly as saved: normalising again may change the last digit
        if sampler.remembered is not None:
            sampler.remembered._weights = weights
            sampler.remembered.restore(storage.part(arrays, "estimator"))
        sampler._state = storage.unpack("state", sampler._state, arrays, len(sampler))
        for name in ("response", "availability"):
            fresh = getattr(sampler, f"_{name}")
            restored = storage.unpack(name, fresh, arrays, len(sampler))
            setattr(sampler, f"_{name}", rates.checked(restored, len(sampler)))
        updated = arrays["updated"].tobytes()
        sampler._ledger = Ledger(about["token"], about["round"], updated)
        return sampler

    def _plan(
        self, available: ArrayLike | None, budget: float | None, norms: ArrayLike | None
    ) -> _Plan:
        ids = self._available(available)
        requested = self.budget if budget is None else checked_budget(budget, len(self))
        state = self._informed(norms)
        K = min(requested, len(ids))
        if len(ids) == 0:
            return _Plan(ids, np.empty(0), 0.0, requested)
        cap = self.procedure.cap
        known = {"weights": self.weights[ids]}
        expected = self.policy.expected(state, ids, self._ledger.round, K, cap, **known)
        spent = float(expected.sum())  # K but for rounding, or less where the policy says so (AOCS)
        return _Plan(ids, expected, K if math.isclose(spent, K, rel_tol=1e-9) else spent, requested)

    def _available(self, available: ArrayLike | None) -> IntArray:
        always = rates.is_known(self._availability) and (self._availability.known == 1).all()
        if available is None and not always:
            raise ValueError(
                "this sampler divides by the availability of clients, so each draw must be told "
                "who is there: draw(available=…)"
            )
        return available_ids(available, len(self))

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
        feedback = self.weights * all_norms(norms, len(self))
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


def _feedback(pi: FloatArray, reach: FloatArray, availability: FloatArray) -> FloatArray:
    """What policies shall learn, so that they minimise the variance that silence adds to.

    Silence after the draw leaves Σπ²/(r·p) to be minimised, as if the feedback were π/√r. Of those
    available with probability a the estimate takes π/a. With q = a·r: a·√r = √(a·q).
    """
    feedback = pi / np.sqrt(reach * availability)
    return np.where(feedback < SMALLEST_FEEDBACK, 0.0, feedback)

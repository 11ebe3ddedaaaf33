"""A sampler whose clients come and go, against a model that is slow and obvious."""

import math
import shutil
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import kvib

MEMBERS = [
    (policy, procedure)
    for policy in (
        kvib.KVib(mix=0.3, gamma=1e-3),
        kvib.KVib(mix=0.3, gamma=1e-3, by_weight=True),
        kvib.Forecast(),
        kvib.BySize(),
        kvib.Uniform(),
    )
    for procedure in (kvib.independent, kvib.ordered, kvib.pivotal)
]
RESPONSE = 0.8
SEEDS = st.integers(0, 2**32 - 1)
"""Hypothesis decides what happens; how heavy, loud and silent clients are follows from a seed."""


class Clients(RuleBasedStateMachine):
    """Everything that can happen to a population, and a dictionary of what should be true."""

    @initialize(
        member=st.sampled_from(MEMBERS),
        clients=st.integers(2, 12),
        cool_down=st.integers(0, 3),
        named=st.booleans(),
        durable=st.booleans(),
        priced=st.booleans(),
        seed=SEEDS,
    )
    def begin(self, member, clients, cool_down, named, durable, priced, seed):
        self.policy, procedure = member
        rng = np.random.default_rng(seed)
        weights = rng.lognormal(0, 2, clients)
        self.named, self.durable, self.cool_down = named, durable, cool_down
        self.budget = min(3.0, clients) if not priced else 2.0
        self.total = float(weights.sum())
        self.weight, self.cost, self.feedback = {}, {}, {}
        self.here, self.drawn, self.order, self.outstanding = set(), {}, [], []
        for weight in weights:
            self.new_client(weight, rng.uniform(1, 3) if priced else None)
        self.folder = Path(mkdtemp())
        options = {"cool_down": cool_down, "response": RESPONSE, "seed": 1}
        if named:
            options["keys"] = self.order
        if priced:
            options["cost"] = list(self.cost.values())
        arguments = (self.policy, weights, self.budget, procedure)
        if durable:
            path = self.folder / "run.kvib"
            self.sampler = kvib.journalled(path, *arguments, snapshot_every=4, **options)
        else:
            self.sampler = kvib.Sampler(*arguments, **options)

    def teardown(self):
        if hasattr(self, "folder"):
            if self.durable:
                self.sampler.close()
            shutil.rmtree(self.folder)

    # The model

    def new_client(self, weight, cost):
        """Named by turns with a string and an integer that looks like it, or by its id."""
        n = len(self.order)
        key = n if not self.named else (f"{n // 2}" if n % 2 else n // 2)
        self.order.append(key)
        self.weight[key], self.feedback[key] = float(weight), 0.0
        self.here.add(key)
        if cost is not None:
            self.cost[key] = float(cost)
        return key

    def waits(self, key):
        return key in self.drawn and self.drawn[key] + self.cool_down >= self.sampler.round

    def eligible(self, absent=()):
        return [
            id
            for id, key in enumerate(self.order)
            if key in self.here and not self.waits(key) and id not in absent
        ]

    def shares(self):
        total = math.fsum(self.weight[key] for key in self.here)
        return np.array([self.weight[k] / total if k in self.here else 0.0 for k in self.order])

    def expected(self, absent=(), budget=None):
        """By the policy's own formula, over a list of those who can be drawn."""
        p, ids = np.zeros(len(self.order)), np.array(self.eligible(absent), np.int64)
        if len(ids) == 0:
            return p
        cost = np.array([self.cost[self.order[i]] for i in ids]) if self.cost else None
        most = len(ids) if cost is None else cost.sum()
        p[ids] = self.policy.expected(
            self.sampler.state.learned,
            ids,
            self.sampler.round,
            min(self.budget if budget is None else budget, most),
            1.0,
            weights=self.shares()[ids],
            cost=cost,
        )
        return p

    # What can happen

    @rule(new=st.integers(0, 3), back=st.integers(0, 3), seed=SEEDS)
    def join(self, new, back, seed):
        rng = np.random.default_rng(seed)
        gone = [key for key in self.order if key not in self.here]
        returning = [gone[i] for i in rng.permutation(len(gone))[:back]]
        if not self.named and returning:
            new = 0
        if new + len(returning) == 0:
            return
        weights = rng.lognormal(0, 2, new + len(returning))
        cost = rng.uniform(1, 3, len(weights)) if self.cost else np.full(len(weights), None)
        keys = [self.new_client(w, c) for w, c in zip(weights[:new], cost[:new], strict=True)]
        keys += returning
        for key, w, c in zip(keys, weights, cost, strict=True):
            self.feedback[key] *= (w / self.weight[key]) ** 2
            self.weight[key] = float(w)
            self.here.add(key)
            if self.cost:
                self.cost[key] = float(c)
        by_key = self.named or returning
        mixed = rng.permutation(len(keys)) if by_key else np.arange(len(keys))
        listed = [keys[i] for i in mixed] if by_key else None
        ids = self.sampler.join(weights[mixed], listed, cost[mixed] if self.cost else None)
        if listed is not None:
            assert ids.tolist() == self.sampler.ids(listed).tolist()
            if self.named:  # newcomers get ids in the order in which they are listed
                fresh = sorted(set(keys) - set(returning), key=listed.index)
                self.order[len(self.order) - len(fresh) :] = fresh

    @precondition(lambda self: len(self.here) > 1)
    @rule(number=st.integers(1, 3), seed=SEEDS)
    def leave(self, number, seed):
        here = [key for key in self.order if key in self.here]
        chosen = np.random.default_rng(seed).permutation(len(here))
        going = [here[i] for i in chosen[: min(number, len(here) - 1)]]
        self.sampler.leave(going)
        self.here.difference_update(going)

    @rule(number=st.integers(1, 3), seed=SEEDS)
    def reweigh(self, number, seed):
        rng = np.random.default_rng(seed)
        keys = [self.order[i] for i in rng.permutation(len(self.order))[:number]]
        weights = rng.lognormal(0, 2, len(keys))
        self.sampler.reweigh(keys, weights)
        for key, w in zip(keys, weights, strict=True):
            self.feedback[key] *= (w / self.weight[key]) ** 2
            self.weight[key] = float(w)

    @rule(absent=st.integers(0, 4), budget=st.none() | st.floats(0.5, 2), seed=SEEDS)
    def draw(self, absent, budget, seed):
        away = np.random.default_rng(seed).permutation(len(self.order))[:absent]
        p = self.expected(set(away.tolist()), budget)
        assert self.sampler.probabilities(absent=away, budget=budget) == pytest.approx(p, rel=1e-9)
        weights = self.shares()
        twin = kvib.Sampler.unpacked(self.sampler.packed())
        cohort = self.sampler.draw(absent=away, budget=budget)
        assert twin.draw(absent=away, budget=budget).ids.tolist() == cohort.ids.tolist()
        assert set(cohort.ids.tolist()) <= set(np.flatnonzero(p).tolist())
        assert cohort.expected == pytest.approx(p[cohort.ids], rel=1e-9)
        assert cohort.weight == pytest.approx(weights[cohort.ids], rel=1e-12)
        assert cohort.coefficients == pytest.approx(
            weights[cohort.ids] / p[cohort.ids] / RESPONSE, rel=1e-8
        )
        if self.sampler.procedure is not kvib.independent:
            assert abs(len(cohort) - p.sum()) < 1 + 1e-9
        self.drawn.update({self.order[i]: cohort.round for i in cohort.ids})
        self.outstanding.append(cohort)

    @precondition(lambda self: self.outstanding)
    @rule(which=st.integers(0, 9), silent=st.floats(0, 1), seed=SEEDS)
    def update(self, which, silent, seed):
        """In any order, also of clients that have left or changed since."""
        cohort = self.outstanding.pop(which % len(self.outstanding))
        rng = np.random.default_rng(seed)
        norms = rng.lognormal(0, 2, len(cohort)).astype(np.float32).astype(np.float64)
        norms[rng.random(len(cohort)) < silent] = np.nan
        self.sampler.update(cohort, norms)
        for k in np.flatnonzero(~np.isnan(norms)):
            key = self.order[cohort.ids[k]]
            π = self.weight[key] / self.total * norms[k]
            self.feedback[key] += π**2 / RESPONSE / (RESPONSE * cohort.expected[k])

    @rule()
    def resume(self):
        if not self.durable:
            self.sampler.save(self.folder / "state.npz")
            self.sampler = kvib.Sampler.load(self.folder / "state.npz")
        else:
            self.sampler.close()
            self.sampler = kvib.journalled(self.folder / "run.kvib")
            waiting = [cohort.ids.tolist() for cohort in self.outstanding]
            found = self.sampler.outstanding()
            assert sorted(waiting) == sorted(cohort.ids.tolist() for cohort in found)

    @rule(seed=SEEDS)
    def mistakes(self, seed):
        before = self.sampler.packed()
        someone = sorted(self.here, key=self.order.index)[seed % len(self.here)]
        cost = [1.0] if self.cost else None
        for wrong in (
            lambda: self.sampler.join([1.0], [someone], cost),
            lambda: self.sampler.leave([someone, "nobody"]),
            lambda: self.sampler.leave(sorted(self.here, key=self.order.index)),
            lambda: self.sampler.reweigh([someone], [-1.0]),
            lambda: self.sampler.reweigh([someone, someone], [1.0, 2.0]),
            lambda: self.sampler.draw(absent=[0, len(self.order)]),
            lambda: self.sampler.draw(budget=0),
        ):
            with pytest.raises(ValueError, match=r"\w"):
                wrong()
        after = self.sampler.packed()
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)

    # What is true all along

    @invariant()
    def weights_are_those_of_who_is_here(self):
        assert len(self.sampler) == len(self.order)
        assert self.sampler.keys(range(len(self.order))) == self.order
        assert self.sampler.weights == pytest.approx(self.shares(), rel=1e-12)
        assert self.sampler.weights.sum() == pytest.approx(1, rel=1e-12)

    @invariant()
    def probabilities_are_those_of_the_list(self):
        assert self.sampler.probabilities() == pytest.approx(self.expected(), rel=1e-9)

    @invariant()
    def feedback_is_what_was_heard(self):
        if isinstance(self.policy, kvib.KVib):
            told = [self.feedback[key] for key in self.order]
            assert self.sampler.state.learned.omega[: len(told)] == pytest.approx(told, rel=1e-9)

    @invariant()
    def the_index_has_exactly_the_eligible(self):
        index = self.sampler.state.index
        if index is not None:
            assert np.flatnonzero(index.main.place >= 0).tolist() == self.eligible()
            fresh = self.sampler.state.eligible._new_index()
            fresh.build(np.array(self.eligible(), np.int64))
            assert index.main.start.tolist() == fresh.main.start.tolist()
            assert index.main.sums.sum(axis=0) == pytest.approx(fresh.main.sums.sum(axis=0))
            assert index.totals.sum(axis=1) == pytest.approx(fresh.totals.sum(axis=1), abs=1e-12)


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Failures are printed as they were found: to shrink them takes longer than to read them."""
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": PHASES}


@pytest.mark.filterwarnings("ignore:cool_down")
def test_clients_against_the_model():
    quick = settings(max_examples=25, stateful_step_count=25, derandomize=True, **QUIET)
    run_state_machine_as_test(Clients, settings=quick)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:cool_down")
def test_clients_against_the_model_for_long():
    run_state_machine_as_test(
        Clients, settings=settings(max_examples=300, stateful_step_count=60, **QUIET)
    )

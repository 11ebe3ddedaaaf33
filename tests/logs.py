"""Rounds as a journal has them, in a world whose norms are all known."""

from typing import Any, NamedTuple

import numpy as np

import kvib
from kvib.journal import Joined, Left, Logged, Reweighed


def world(seed, clients=60, rounds=40, spread=0.7):
    """Weights [N] and norms [T, N]: heavy tails, drifting clients, all falling with training.

    Logarithms of weights and of norms have the deviation `spread`.
    """
    rng = np.random.default_rng([2024, seed])
    weights = rng.lognormal(0, spread, clients)
    drift = 0.1 * rng.normal(size=(rounds, clients)).cumsum(axis=0)
    own = spread * rng.normal(size=clients) + drift - 0.03 * np.arange(rounds)[:, None]
    norms = np.exp(own + 0.2 * rng.standard_t(4, size=(rounds, clients)).clip(-6, 6))
    return weights / weights.sum(), norms


def logged(policy, weights, norms, budget, procedure, seed=0, response=1.0):
    """A sampler's rounds, and the expected counts of all clients, [T, N]."""
    rng = np.random.default_rng([7, seed])
    sampler = kvib.Sampler(policy, weights, budget, procedure, seed=seed, response=response)
    rounds, expected = [], []
    for row in norms:
        expected.append(sampler.probabilities())
        cohort = sampler.draw()
        answers = np.where(rng.random(len(cohort)) < response, row[cohort.ids], np.nan)
        sampler.update(cohort, answers)
        rounds.append(Logged(cohort, answers))
    return rounds, np.array(expected)


COMING, GOING, RETURNING, CHANGING = 3, 4, 5, 2
"""Rounds between clients who come, leave, come back or change their weights."""


def come_and_go(sampler, total, rng, spread=0.7):
    """Clients come, leave, come back and change their weights before a round; as `changes`."""
    t, happened = sampler.round, []

    def weights(number):
        return rng.lognormal(0, spread, number)

    if t % COMING == 2:
        new = weights(2)
        happened.append(Joined(sampler.join(new), new / total))
    if t % GOING == 2:
        leaving = np.sort(rng.choice(sampler.state.population.here(), 3, replace=False))
        sampler.leave(leaving)
        happened.append(Left(leaving))
    if t % RETURNING == 4 and sampler.state.population.departed:
        back, new = rng.choice(sorted(sampler.state.population.departed), 1), weights(1)
        happened.append(Joined(sampler.join(new, back), new / total))
    if t % CHANGING == 1:
        some, new = rng.choice(len(sampler), 3, replace=False), weights(3)
        sampler.reweigh(some, new)
        happened.append(Reweighed(some, new / total))
    return tuple(happened)


def changing_world(seed, clients=60, rounds=40, spread=0.7):
    """Weights of the first clients, and norms of all who will ever come, [T, more than N]."""
    weights, norms = world(seed, clients + 2 * rounds, rounds, spread)
    return weights[:clients] * norms.shape[1], norms  # about 1, as those who come


class Changing(NamedTuple):
    """What a sampler did whose clients come and go."""

    rounds: list[Logged]
    here: list[Any]
    """Ids of those who could be drawn, of every round."""
    expected: list[Any]
    """Expected counts of those."""
    pi: list[Any]
    """λ‖g‖ of those."""


def changing(policy, weights, norms, budget, procedure, seed=0, response=1.0, spread=0.7):
    """A sampler's rounds while clients come and go."""
    rng, total = np.random.default_rng([8, seed]), weights.sum()
    sampler = kvib.Sampler(policy, weights, budget, procedure, seed=seed, response=response)
    log = Changing([], [], [], [])
    for row in norms:
        changes, here = come_and_go(sampler, total, rng, spread), sampler.state.population.here()
        log.here.append(here)
        log.expected.append(sampler.probabilities()[here])
        log.pi.append((sampler.weights * row[: len(sampler)])[here])
        cohort = sampler.draw()
        answers = np.where(rng.random(len(cohort)) < response, row[cohort.ids], np.nan)
        sampler.update(cohort, answers)
        log.rounds.append(Logged(cohort, answers, changes=changes))
    return log


class Spy(kvib.Policy[Any]):
    """Does what another policy does, and keeps what it expected in every round."""

    def __init__(self, policy):
        self.policy, self.told, self.per_client = policy, [], policy.per_client
        for name in ("start", "observe", "enter", "reweigh", "resized"):
            setattr(self, name, getattr(policy, name))

    def expected(self, *given, **named):
        self.told.append(self.policy.expected(*given, **named))
        return self.told[-1]

"""Rounds as a journal has them, in a world whose norms are all known."""

from typing import Any

import numpy as np

import kvib
from kvib.journal import Logged


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


class Spy(kvib.Policy[Any]):
    """Does what another policy does, and keeps what it expected in every round."""

    def __init__(self, policy):
        self.policy, self.told = policy, []
        self.start, self.observe = policy.start, policy.observe

    def expected(self, *given, **named):
        self.told.append(self.policy.expected(*given, **named))
        return self.told[-1]

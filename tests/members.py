"""Every member of the contract. A new policy or procedure is added here, and nowhere else."""

import itertools

import kvib

POLICIES = [
    kvib.Uniform(),
    kvib.BySize(),
    kvib.Optimal(),
    kvib.AOCS(),
    kvib.KVib(),
    kvib.KVib(rounds=40),
    kvib.KVib(mix=0.3, gamma=1e-3),
    kvib.KVib(mix=0.3, by_weight=True),
    kvib.Vrb(),
    kvib.Vrb(rounds=40),
    kvib.Mabs(),
    kvib.Mabs(rounds=40),
    kvib.Avare(),
    kvib.OSMD(),
    kvib.OSMD(rounds=40),
    kvib.OSMD(rounds=40, experts=1),
    kvib.Forecast(),
    kvib.Forecast(floor=0.5),
]

PROCEDURES = [
    kvib.independent,
    kvib.with_replacement,
    kvib.without_replacement,
    kvib.pivotal,
    kvib.systematic,
    kvib.ordered,
    kvib.conditional_poisson,
    kvib.balanced,
    kvib.neighbours,
]

EQUAL_ONLY = [kvib.without_replacement]
"""Procedures for equal probabilities, and so for the policies that give them."""

PAIRS = [
    (policy, procedure)
    for policy, procedure in itertools.product(POLICIES, PROCEDURES)
    if procedure not in EQUAL_ONLY or policy == kvib.Uniform()
]

IDS = [f"{policy!r}-{procedure!r}" for policy, procedure in PAIRS]

FIXED = (kvib.Optimal, kvib.AOCS, kvib.Mabs, kvib.Avare, kvib.OSMD)
"""Policies whose clients may leave, but neither join, return nor change their weight."""

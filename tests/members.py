"""Every member of the contract, from the lists of policies and procedures in the package.

A new one is a member by its line in `kvib/policies/catalogue.py` or `kvib/procedures/catalogue.py`.
"""

import itertools

import kvib
from kvib import names

POLICIES = [
    *(policy() for policy in names.POLICIES.values()),
    kvib.KVib(rounds=40),
    kvib.KVib(mix=0.3, gamma=1e-3),
    kvib.KVib(mix=0.3, by_weight=True),
    kvib.Vrb(rounds=40),
    kvib.Mabs(rounds=40),
    kvib.OSMD(rounds=40),
    kvib.OSMD(rounds=40, experts=1),
    kvib.Forecast(floor=0.5),
]
"""Each with its defaults, and some with other options."""

PROCEDURES = list(names.PROCEDURES.values())

EQUAL_ONLY = [kvib.without_replacement]
"""Procedures for equal probabilities, and so for the policies that give them."""

PAIRS = [
    (policy, procedure)
    for policy, procedure in itertools.product(POLICIES, PROCEDURES)
    if procedure not in EQUAL_ONLY or policy.equal
]

IDS = [f"{policy!r}-{procedure!r}" for policy, procedure in PAIRS]

LASTING = [policy for policy in POLICIES if policy.lasting]
"""Policies that are drawn from the index, where the procedure can be."""

BY_INDEX = [procedure for procedure in PROCEDURES if procedure.by_index is not None]

INDEXED = list(itertools.product(LASTING, BY_INDEX))
"""Pairs that are drawn from the index."""

FIXED = tuple(p for p in names.POLICIES.values() if p.enter is kvib.Policy.enter)
"""Policies whose clients may leave, but neither join, return nor change their weight."""

OPEN = [pair for pair in INDEXED if not isinstance(pair[0], FIXED)]
"""Pairs that are drawn from the index and take clients that join."""

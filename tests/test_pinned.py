"""The same seed and the same feedback draw the same clients on any machine, today and tomorrow.

These cohorts were drawn once and written down. A change that moves them breaks whoever resumes a
run or compares with an old one: make it on purpose, say so in the changelog, and write them anew
(`python tests/test_pinned.py` prints them). NumPy may move them too: of its generators it promises
the bits, not what is made of them.
"""

import numpy as np
import pytest

import kvib

N, BUDGET, ROUNDS = 30, 4, 6
WEIGHTS = 1.0 + np.arange(N) % 7
"""Exact in binary, as the norms are: no machine rounds them otherwise."""


def norms(t):
    return 2.0 ** -((np.arange(N) * 5 + t) % 8)


def cohorts(policy, procedure):
    """Ids of every round, those drawn twice given twice."""
    sampler = kvib.Sampler(policy, WEIGHTS, BUDGET, procedure, seed=7)
    drawn = []
    for t in range(ROUNDS):
        cohort = sampler.draw(norms=norms(t) if policy.needs_norms else None)
        drawn.append(np.repeat(cohort.ids, cohort.count).tolist())
        sampler.update(cohort, norms(t)[cohort.ids])
    return drawn


PAIRS = [
    (kvib.Uniform(), kvib.without_replacement),
    (kvib.BySize(), kvib.systematic),
    (kvib.KVib(rounds=40), kvib.independent),
    (kvib.Vrb(rounds=40), kvib.with_replacement),
    (kvib.Avare(), kvib.with_replacement),
    (kvib.OSMD(rounds=40), kvib.conditional_poisson),
    (kvib.Optimal(), kvib.ordered),
    (kvib.Forecast(), kvib.pivotal),
    (kvib.Forecast(), kvib.balanced),
    (kvib.Forecast(), kvib.neighbours),
]
NAMES = [f"{type(policy).__name__}, {procedure!r}" for policy, procedure in PAIRS]
PINNED = {
    "Uniform, without_replacement": [
        [2, 6, 24, 26],
        [2, 13, 20, 27],
        [5, 7, 15, 27],
        [3, 12, 14, 22],
        [4, 11, 12, 29],
        [0, 12, 24, 29],
    ],
    "BySize, systematic": [
        [3, 13, 22, 26],
        [4, 21, 25, 27],
        [0, 4, 19, 25],
        [3, 6, 19, 26],
        [13, 16, 19, 20],
        [3, 7, 10, 26],
    ],
    "KVib, independent": [
        [14, 16, 18, 19, 20],
        [4, 5, 6, 16],
        [4, 5, 18, 21, 23],
        [1, 8, 14, 15, 18, 19, 25, 26],
        [6, 25, 27],
        [1, 5, 14],
    ],
    "Vrb, with_replacement": [
        [0, 6, 20, 20],
        [4, 8, 22, 29],
        [1, 9, 17, 29],
        [5, 17, 26, 27],
        [1, 11, 16, 20],
        [8, 11, 15, 25],
    ],
    "Avare, with_replacement": [
        [0, 6, 20, 20],
        [4, 8, 22, 29],
        [1, 9, 17, 28],
        [5, 26, 27, 29],
        [1, 11, 16, 20],
        [8, 11, 13, 24],
    ],
    "OSMD, conditional_poisson": [
        [2, 3, 8, 19],
        [1, 7, 16, 29],
        [3, 11, 22, 26],
        [7, 8, 9, 25],
        [5, 9, 25, 29],
        [4, 7, 14, 29],
    ],
    "Optimal, ordered": [
        [8, 13, 24, 29],
        [3, 11, 19, 27],
        [3, 6, 14, 24],
        [6, 10, 19, 25],
        [4, 12, 19, 22],
        [7, 15, 20, 27],
    ],
    "Forecast, pivotal": [
        [4, 12, 15, 16],
        [5, 16, 19, 23],
        [13, 17, 18, 27],
        [11, 13, 19, 20],
        [6, 11, 24, 26],
        [6, 11, 13, 19],
    ],
    "Forecast, balanced": [
        [18, 19, 23, 27],
        [11, 12, 13, 22],
        [3, 5, 11, 20],
        [3, 13, 24, 25],
        [7, 17, 18, 25],
        [6, 17, 25, 29],
    ],
    "Forecast, neighbours": [
        [10, 19, 23, 27],
        [4, 5, 13, 22],
        [6, 16, 18, 20],
        [6, 16, 25, 26],
        [2, 6, 12, 25],
        [5, 12, 17, 24],
    ],
}


@pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=NAMES)
def test_the_same_cohorts_everywhere(policy, procedure):
    assert cohorts(policy, procedure) == PINNED[f"{type(policy).__name__}, {procedure!r}"]


def test_another_seed_draws_others():
    first, other = (kvib.Sampler(kvib.Uniform(), WEIGHTS, BUDGET, seed=s).draw() for s in (7, 8))
    assert first.ids.tolist() != other.ids.tolist()


if __name__ == "__main__":
    for name, pair in zip(NAMES, PAIRS, strict=True):
        print(f'    "{name}": {cohorts(*pair)},')

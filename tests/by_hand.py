"""What traces by hand share: N = 4 clients of equal weight ¼, K = 2 of them, T = 64 rounds.

The cohorts and norms are given; the expected counts before each round are computed twice.
"""

N, K, T = 4, 2, 64
# (ids, counts, norms) of three rounds
ROUNDS = [
    ([0, 2], [1, 1], [2.0, 4.0]),
    ([1, 2], [1, 1], [1.0, 6.0]),
    ([2, 3], [1, 1], [8.0, 1.0]),
]
REPEATS = [
    ([0, 2], [1, 1], [2.0, 4.0]),
    ([2], [2], [6.0]),
    ([2, 3], [1, 1], [8.0, 1.0]),
]


def capped(scores, budget):
    """p = min(1, c·score) with sum `budget`, by trying how many of the largest are 1."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    for at_one in range(len(scores)):
        rest = order[at_one:]
        c = (budget - at_one) / sum(scores[i] for i in rest)
        if c * scores[rest[0]] <= 1:
            return [1.0 if i in order[:at_one] else c * scores[i] for i in range(len(scores))]
    raise AssertionError


def floored(weights, floor):
    """q = max(floor, c·weight) with sum 1, by trying how many of the smallest are at the floor."""
    order = sorted(range(len(weights)), key=lambda i: weights[i])
    for at_floor in range(len(weights)):
        rest = order[at_floor:]
        c = (1 - at_floor * floor) / sum(weights[i] for i in rest)
        if c * weights[rest[0]] >= floor:
            return [floor if i in order[:at_floor] else c * weights[i] for i in range(len(weights))]
    raise AssertionError

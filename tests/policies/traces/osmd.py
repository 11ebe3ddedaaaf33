"""Plain, as published: q̂ = q·exp(η·count·π²/(K²q³)), projected on q ≥ α/N."""

import math

from by_hand import REPEATS, K, N, T, floored

OPTIONS = {"rounds": T, "experts": 1}
COHORTS = REPEATS


def expected():
    alpha, largest = 0.4, 1.0  # the largest π² of round 1 is (¼·4)²
    eta = K**2 * alpha**3 / (N**3 * largest) * math.sqrt(math.log(N) / (2 * T))
    q = [1 / N] * N
    yield [K * x for x in q]
    for ids, counts, norms in COHORTS:
        raised = list(q)
        for i, count, norm in zip(ids, counts, norms, strict=True):
            raised[i] *= math.exp(eta * count * (0.25 * norm) ** 2 / (K**2 * q[i] ** 3))
        q = floored(raised, alpha / N)
        yield [K * x for x in q]

"""q = (1−θ)·u + θ/N with u ∝ √(ω + γ); every draw adds π²/q to ω, repeats too."""

import math

from by_hand import REPEATS, K, N, T

OPTIONS = {"rounds": T}
COHORTS = REPEATS


def expected():
    theta = (N / T) ** (1 / 3)
    gamma = 0.75**2 * N / theta
    omega, q = [0.0] * N, [1 / N] * N
    yield [K * x for x in q]
    for ids, counts, norms in COHORTS:
        for i, count, norm in zip(ids, counts, norms, strict=True):
            for _ in range(count):
                omega[i] += (0.25 * norm) ** 2 / q[i]
        s = [math.sqrt(w + gamma) for w in omega]
        q = [(1 - theta) * x / sum(s) + theta / N for x in s]
        yield [K * x for x in q]

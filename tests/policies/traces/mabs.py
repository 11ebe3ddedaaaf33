"""q = (1−η)·w/Σw + η/N, w *= exp(δ·count·π²/q³): the weights themselves, not their logarithms."""

import math

from by_hand import REPEATS, K, N, T

OPTIONS = {"rounds": T}
COHORTS = REPEATS


def expected():
    eta = 0.4
    delta = eta**2 * math.sqrt(math.log(N) / (T * N**5)) / 0.75**2
    w, q = [1.0] * N, [1 / N] * N
    yield [K * x for x in q]
    for ids, counts, norms in COHORTS:
        for i, count, norm in zip(ids, counts, norms, strict=True):
            w[i] *= math.exp(delta * count * (0.25 * norm) ** 2 / q[i] ** 3)
        q = [(1 - eta) * x / sum(w) + eta / N for x in w]
        yield [K * x for x in q]

"""q ∝ the last π, the largest of all for clients never seen, above a floor that falls."""

from by_hand import ROUNDS, K, N, floored

OPTIONS = {}
COHORTS = ROUNDS


def expected():
    least = 1 / (5 * N)
    C = 1 / (1 / N - least)
    last: list[float | None] = [None] * N
    yield [K / N] * N
    largest = 0.0
    for t, (ids, _, norms) in enumerate(COHORTS, start=2):
        for i, norm in zip(ids, norms, strict=True):
            last[i] = 0.25 * norm
            largest = max(largest, 0.25 * norm)
        h = [largest if x is None else x for x in last]
        yield [K * x for x in floored(h, least + 1 / (C + (t - 1)))]

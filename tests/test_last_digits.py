"""Draws do not hang on last digits, which another CPU, NumPy or BLAS computes otherwise.

A random number that falls between two probabilities 10⁻¹⁶ apart is no concern. A number that is
equal to its limit in exact arithmetic is one: there the last digit decides every time.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from test_pinned import BUDGET, NAMES, PAIRS, PINNED, WEIGHTS, N, cohorts, norms

SALTS = [1, 2, 3]
DIGITS = [
    (np, "exp"),
    (np, "log"),
    (np, "log1p"),
    (np.linalg, "inv"),
    (np.linalg, "solve"),
    (np.linalg, "lstsq"),
]
"""Functions whose last digits differ between libraries."""


def noisy(x, salt):
    """Other last digits, the same ones wherever the same number comes again."""
    x = np.array(x, np.float64, ndmin=1)
    mixed = (x.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * salt)) >> np.uint64(61)
    return x * (1 + (mixed.astype(np.int64) - 4) * 2.0**-52)


@pytest.fixture(params=SALTS)
def other_library(request, monkeypatch):
    """Logarithms, exponentials and solutions with other last digits."""

    def replaced(function):
        def other(*args, **options):
            found = function(*args, **options)
            if isinstance(found, tuple):
                return noisy(found[0], request.param), *found[1:]
            return noisy(found, request.param).reshape(np.shape(found))

        return other

    for module, name in DIGITS:
        monkeypatch.setattr(module, name, replaced(getattr(module, name)))


@pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=NAMES)
def test_other_last_digits_draw_the_pinned_cohorts(policy, procedure, other_library):
    assert cohorts(policy, procedure) == PINNED[f"{type(policy).__name__}, {procedure!r}"]


def indexed(procedure):
    """Weights are powers of two: scores lie on the borders of the index's buckets."""
    sampler = kvib.Sampler(kvib.Forecast(), 2.0 ** (np.arange(N) % 4), BUDGET, procedure, seed=3)
    for t in range(12):
        cohort = sampler.draw()
        yield cohort.ids.tolist()
        sampler.update(cohort, norms(t)[cohort.ids])


INDEXED = {p: list(indexed(p)) for p in (kvib.independent, kvib.ordered)}
"""As the digits are here."""


@pytest.mark.parametrize("procedure", INDEXED, ids=repr)
def test_other_last_digits_leave_an_index_as_it_is(procedure, other_library):
    assert list(indexed(procedure)) == INDEXED[procedure]


FIXED = [
    kvib.pivotal,
    kvib.systematic,
    kvib.ordered,
    kvib.conditional_poisson,
    kvib.balanced,
    kvib.neighbours,
]
PROBABILITIES = {
    "sum 4": WEIGHTS * 4 / WEIGHTS.sum(),
    "sum 1 again and again": np.full(30, 0.1),
    "one is certain": np.array([1.0, *np.full(28, 2 / 28), 1.0]),
    "sum 3.5": np.full(7, 0.5),
}


@pytest.mark.parametrize("procedure", FIXED, ids=repr)
@pytest.mark.parametrize("p", PROBABILITIES.values(), ids=PROBABILITIES)
def test_last_digits_of_probabilities_do_not_matter(procedure, p):
    """Whole sums and certain clients are decided by what they are, not by how they are rounded."""
    for seed in range(30):
        plain, *others = (
            procedure(q, np.random.default_rng(seed)).ids.tolist()
            for q in (p, *(np.minimum(noisy(p, salt), 1.0) for salt in SALTS))
        )
        assert others == [plain] * len(others)


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.neighbours], ids=repr)
@pytest.mark.parametrize("digit", [-1e-15, 0.0, 1e-15])
def test_ties_keep_the_means(procedure, digit):
    """Ties in the middle and at the end, each read in one way: clients come as often as they
    should, and as many as they should."""
    p = np.array([0.3, 0.7 + digit, 0.1, 0.4, 0.5])
    drawn = np.zeros(len(p))
    for chance, cohort in outcomes(lambda rng: procedure(p, rng)):
        assert len(cohort) == 2
        drawn[cohort.ids] += chance
    assert drawn == pytest.approx(p, abs=1e-12)


KINDS = np.arange(N) % 3
KNOWN = {
    "shares of two labels": np.column_stack([KINDS / 2, 1 - KINDS / 2]),
    "one label each": np.eye(3)[KINDS],
}


@pytest.mark.parametrize("procedure", [kvib.balanced, kvib.neighbours], ids=repr)
@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_any_eigenvectors_draw_the_same(procedure, known, monkeypatch):
    """Either sign of an eigenvector is one, and any rotation among those of one eigenvalue."""
    p, plain = np.full(N, BUDGET / N), np.linalg.eigh

    def drawn():
        return [procedure(p, np.random.default_rng(s), variables=known).ids for s in range(10)]

    def another(matrix):
        values, vectors = plain(matrix)
        same = values >= values[-1] * (1 - 1e-9)
        turn = np.linalg.qr(rng.normal(size=(same.sum(), same.sum()))).Q
        vectors[:, same] = vectors[:, same] @ turn * (1 + 1e-15 * rng.normal(size=(len(values), 1)))
        return type(plain(matrix))(values, vectors)

    wanted, rng = drawn(), np.random.default_rng(1)
    monkeypatch.setattr(np.linalg, "eigh", another)
    for _ in range(5):
        assert np.array_equal(drawn(), wanted)


CHILD = """
import json, test_pinned
print(json.dumps([test_pinned.cohorts(*pair) for pair in test_pinned.PAIRS]))
"""
WIDE = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_CORETYPE": "Prescott"},
        {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1"},
        {"NPY_DISABLE_CPU_FEATURES": WIDE, "NUMBA_DISABLE_JIT": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_older_processors_draw_the_pinned_cohorts(environment):
    paths = {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [PINNED[name] for name in NAMES]

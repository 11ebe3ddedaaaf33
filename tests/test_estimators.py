"""One estimate for every kind of update."""

import numpy as np
import pytest
import torch

import kvib

COHORT = kvib.Cohort(
    ids=[1, 4, 6], count=[1, 2, 1], expected=[0.5, 1.5, 0.1], weight=[0.1, 0.3, 0.02]
)
FACTORS = np.array([0.2, 0.4, 0.2])
X = np.random.default_rng(0).normal(size=(3, 2, 5))
WANT = np.tensordot(FACTORS, X, axes=1)


def test_coefficients():
    assert kvib.unbiased(COHORT) == pytest.approx(FACTORS)
    assert kvib.self_normalised(COHORT) == pytest.approx(FACTORS / 0.8)


@pytest.mark.parametrize(
    ("updates", "read"),
    [
        (X, lambda d: d),
        (list(X), lambda d: d),
        (tuple(X.astype(np.float32)), lambda d: d),
        ([{"a": x[0], "b": {"c": x[1]}} for x in X], lambda d: np.stack([d["a"], d["b"]["c"]])),
        ([[x[0], x[1]] for x in X], np.stack),
        ([(x[0], [x[1]]) for x in X], lambda d: np.stack([d[0], d[1][0]])),
        (torch.tensor(X), lambda d: d.numpy()),
        ([torch.tensor(x) for x in X], lambda d: d.numpy()),
        ([{"w": torch.tensor(x)} for x in X], lambda d: d["w"].numpy()),
        ({1: X[0], 4: X[1], 6: X[2]}, lambda d: d),
        ({6: X[2], 4: X[1], 1: X[0]}, lambda d: d),  # a mapping cannot be misaligned
        (X.tolist(), np.array),
    ],
    ids=lambda value: type(value).__name__,
)
def test_forms_of_updates(updates, read):
    assert read(kvib.estimate(COHORT, updates)) == pytest.approx(WANT, rel=1e-6)


def test_updates_are_not_changed():
    updates = [x.copy() for x in X]
    kvib.estimate(COHORT, updates)
    assert all((a == b).all() for a, b in zip(updates, X, strict=True))


def test_dtype_is_kept():
    assert kvib.estimate(COHORT, X.astype(np.float32)).dtype == np.float32
    assert kvib.estimate(COHORT, list(X.astype(np.float32))).dtype == np.float32
    assert kvib.estimate(COHORT, [torch.tensor(x).float() for x in X]).dtype == torch.float32
    counters = [{"steps": np.array([3, 4])}] * 3  # integers become what an average is
    assert kvib.estimate(COHORT, counters)["steps"] == pytest.approx([2.4, 3.2])


@pytest.mark.parametrize("missing", [[None, X[1], X[2]], {4: X[1], 6: X[2]}])
def test_missing_answers(missing):
    want = np.tensordot(FACTORS[1:], X[1:], axes=1)
    assert kvib.estimate(COHORT, missing) == pytest.approx(want)
    mean = kvib.estimate(COHORT, missing, kvib.self_normalised)
    assert mean == pytest.approx(want / FACTORS[1:].sum())  # over those who answered


def test_nobody_answered():
    assert kvib.estimate(COHORT, [None] * 3) == 0.0
    like = {"w": torch.ones(3), "b": np.ones(2, np.float32)}
    zero = kvib.estimate(COHORT, {}, like=like)
    assert zero["w"].tolist() == [0] * 3
    assert zero["b"].dtype == np.float32
    assert kvib.estimate(COHORT, {}, like=np.array([np.inf, np.nan])).tolist() == [0, 0]
    nobody = kvib.Cohort(ids=[], count=[], expected=[], weight=[])
    assert kvib.estimate(nobody, torch.empty(0, 7)).shape == (7,)
    empty = kvib.Cohort(ids=[], count=[], expected=[], weight=[])
    assert kvib.estimate(empty, np.empty((0, 7))).shape == (7,)


def test_bad_updates():
    with pytest.raises(ValueError, match="2 updates for a cohort of 3"):
        kvib.estimate(COHORT, list(X[:2]))
    with pytest.raises(ValueError, match="client 9 is not in the cohort"):
        kvib.estimate(COHORT, {9: X[0]})
    for odd, message in [
        (np.ones(1), r"form \(1,\), another's \(2, 5\); all must be of one model"),
        ({"a": X[1]}, "all must be of one model"),
    ]:
        with pytest.raises(ValueError, match=message):
            kvib.estimate(COHORT, [X[0], odd, X[2]])
    named = [{"a": x} for x in X]
    for odd in ({"a": X[1], "b": X[1]}, {"b": X[1]}, {}):
        with pytest.raises(ValueError, match="all must be of one model"):
            kvib.estimate(COHORT, [named[0], odd, named[2]])


def test_norms():
    nested = [{"a": x[0], "b": [torch.tensor(x[1])]} for x in X]
    assert kvib.norms(nested) == pytest.approx(np.linalg.norm(X.reshape(3, -1), axis=1))
    assert np.isnan(kvib.norms([X[0], None])[1])
    assert kvib.norm([3.0, 4.0]) == 5.0
    assert kvib.norm(np.array([100, 100], np.int8)) == pytest.approx(100 * 2**0.5)
    assert kvib.norm(np.array([300], np.float16)) == 300
    assert kvib.norm(torch.tensor([1e20], requires_grad=True)) == pytest.approx(1e20)


@pytest.mark.parametrize("form", [list, torch.tensor, lambda x: [{"w": row} for row in x]])
def test_variance_estimate_takes_every_form(form):
    cohort = kvib.pivotal(np.full(6, 0.5), np.random.default_rng(0))
    want = kvib.estimated_variance(cohort, X)
    assert kvib.estimated_variance(cohort, form(X)).value == pytest.approx(want.value)
    assert not want.exact


def test_variance_estimate_of_many_pivotal_draws():
    """Deville's approximation against the truth: N = 60, within 5 %."""
    rng = np.random.default_rng(0)
    N, K = 60, 15
    updates = rng.normal(size=(N, 8)) + rng.normal(size=8)
    p = kvib.waterfill(rng.lognormal(0, 0.7, N), K)
    gram = updates @ updates.T / N**2
    for procedure in (kvib.pivotal, kvib.systematic):
        truth = kvib.metrics.variance(p, procedure=procedure, gram=gram, rng=rng, draws=20_000)
        cohorts = [procedure(p, rng) for _ in range(2000)]
        values = [kvib.estimated_variance(c, updates[c.ids]).value for c in cohorts]
        assert np.mean(values) == pytest.approx(truth.value, rel=0.05)


def test_selectors_have_no_variance():
    selector = kvib.Selector(kvib.PowerOfChoice(), [1, 2, 3], 2)
    with pytest.raises(ValueError, match="no inclusion probabilities"):
        kvib.estimated_variance(selector.draw(), [1.0, 2.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda x: {"w": np.array(x)}])
def test_an_update_without_numbers_is_refused(bad, kind):
    cohort = kvib.Cohort(ids=[2, 5], count=[1, 1], expected=[0.5, 0.1], weight=[0.2, 0.05])
    updates = [kind([1.0, 2.0]), kind([bad, 1.0])]
    with np.errstate(invalid="ignore"), pytest.raises(kvib.NotFiniteError, match="of client 5"):
        kvib.estimate(cohort, updates)
    assert kvib.estimate(cohort, [updates[0], None]) is not None

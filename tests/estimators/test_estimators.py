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


def test_no_client_answered():
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


# Precision

HALVES = {
    "float16": lambda x: x.astype(np.float16),
    "torch float16": lambda x: torch.tensor(x).half(),
    "torch bfloat16": lambda x: torch.tensor(x).bfloat16(),
    "float32": lambda x: x.astype(np.float32),
    "torch float32": lambda x: torch.tensor(x).float(),
}
FORMS = {
    "stacked": (lambda rows: rows, lambda d: d),
    "list": (list, lambda d: d),
    "mapping": (lambda rows: dict(zip(COHORT.ids.tolist(), rows, strict=True)), lambda d: d),
    "dict": (lambda rows: [{"w": row} for row in rows], lambda d: d["w"]),
    "nested": (lambda rows: [{"a": [row, (row,)]} for row in rows], lambda d: d["a"][1][0]),
}
halves = pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
forms = pytest.mark.parametrize(("form", "read"), FORMS.values(), ids=FORMS)


def in_double(array):
    return array.double().numpy() if hasattr(array, "double") else array.astype(np.float64)


@halves
@forms
def test_sums_are_made_in_double_precision(half, form, read):
    """And only the result is rounded to the precision of the updates."""
    rows = half(np.random.default_rng(1).normal(1, 0.1, size=(3, 2, 5)))
    total = read(kvib.estimate(COHORT, form(rows)))
    assert (type(total), total.dtype, tuple(total.shape)) == (type(rows), rows.dtype, (2, 5))
    want = np.tensordot(COHORT.coefficients, in_double(rows), axes=1)
    assert in_double(total).tolist() == in_double(half(want)).tolist()


@halves
@pytest.mark.parametrize("form", [lambda rows: rows, list])
def test_what_half_precision_used_to_lose(half, form):
    tiny = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[1, 1], weight=[1e-8, 1e-8])
    total = kvib.estimate(tiny, form(half(np.full((2, 2), 1000.0))))
    assert in_double(total) == pytest.approx([2e-5] * 2, rel=0.01)  # not 0
    m = 1000
    many = kvib.Cohort(ids=range(m), count=[1] * m, expected=[1] * m, weight=[1 / m] * m)
    rows = half(np.random.default_rng(0).normal(1, 0.1, (m, 1)))
    step = 2**-8 if rows.dtype == torch.bfloat16 else 2**-11  # half the distance of two numbers
    mean = in_double(kvib.estimate(many, form(rows)))
    assert mean == pytest.approx(in_double(rows).mean(), abs=step)
    cancelling = half(np.array([[3e4], [1.0], [-3e4]]))
    equal = kvib.Cohort(ids=[0, 1, 2], count=[1] * 3, expected=[1] * 3, weight=[1 / 3] * 3)
    left = in_double(kvib.estimate(equal, form(cancelling)))
    assert left == pytest.approx(1 / 3, rel=0.01)


LARGE = [HALVES["float16"], HALVES["torch float16"]]


@pytest.mark.parametrize("half", LARGE, ids=["numpy", "torch"])
@forms
def test_overflow_names_the_client(half, form, read):
    rows = half(np.full((3, 2, 5), 100.0))
    rows[1] = 6e4
    cohort = kvib.Cohort(ids=[1, 4, 6], count=[1] * 3, expected=[0.5] * 3, weight=[1, 0.9, 1])
    with pytest.raises(ValueError, match=r"overflows float16: client 4 adds most .* in float32"):
        kvib.estimate(cohort, form(rows))


def test_overflow_of_a_sum_of_many_and_of_single_precision():
    cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[1, 1], weight=[1, 1])
    with pytest.raises(ValueError, match="the estimate overflows float16: client 3 adds most"):
        kvib.estimate(cohort, np.array([[4e4], [5e4]], np.float16))
    with pytest.raises(ValueError, match=r"overflows float32: client 0 .* updates in float64"):
        kvib.estimate(cohort, [{"w": np.full(2, 3e38, np.float32)}] * 2)


@pytest.mark.parametrize("half", LARGE, ids=["numpy", "torch"])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("estimator", [None, kvib.Difference()])
def test_a_step_that_overflows_is_not_learned_from(half, parts, estimator):
    sampler = kvib.Sampler(kvib.BySize(), [1, 1, 1], 1, kvib.pivotal, estimator=estimator)
    cohort = sampler.draw()
    twice = kvib.Cohort(ids=cohort.ids, count=[9], expected=[1], weight=[1], budget=1)
    cohort, before = sampler.state.rounds.open(twice), sampler.packed()
    rows = half(np.full((1, 4), 6e4))

    def play():
        if not parts:
            return sampler.step(cohort, rows)
        estimation = sampler.begin(cohort)
        estimation.add(np.array([True]), rows)
        return estimation.finish()

    with pytest.raises(ValueError, match=f"overflows float16: client {cohort.ids[0]} adds most"):
        play()
    assert all(
        before[name].tobytes() == array.tobytes() for name, array in sampler.packed().items()
    )
    rows = rows.astype(np.float32) if half is LARGE[0] else rows.float()
    assert in_double(play()) == pytest.approx([9 * 6e4] * 4, rel=1e-3)


@pytest.mark.parametrize(
    "whole",
    [np.int8, np.uint8, np.bool_, np.int64, torch.int64, torch.uint8, torch.bool],
    ids=str,
)
@forms
def test_integers_become_double(whole, form, read):
    rows = np.ones((3, 2, 5))
    given = torch.tensor(rows).to(whole) if isinstance(whole, torch.dtype) else rows.astype(whole)
    total = read(kvib.estimate(COHORT, form(given)))
    assert str(total.dtype).endswith("float64")
    assert in_double(total) == pytest.approx(np.full((2, 5), 0.8))


def test_mixed_kinds_and_precisions():
    mixed = [X[0].astype(np.float32), X[1], torch.tensor(X[2])]
    assert kvib.estimate(COHORT, mixed).dtype == np.float32
    assert kvib.estimate(COHORT, mixed) == pytest.approx(WANT, rel=1e-6)
    assert kvib.estimate(COHORT, mixed[::-1]).dtype == torch.float64
    sampler = kvib.Sampler(kvib.BySize(), [1, 1], 2, kvib.pivotal)
    step = sampler.step(sampler.draw(), [torch.ones(3), np.ones(3)])
    assert step.tolist() == [1, 1, 1]


def test_sparse_tensors():
    sparse = kvib.estimate(COHORT, [torch.tensor(x).to_sparse() for x in X])
    assert sparse.to_dense().numpy() == pytest.approx(WANT)


@forms
def test_results_have_no_gradient_and_are_no_views(form, read):
    rows = torch.ones(3, 2, requires_grad=True)
    total = read(kvib.estimate(COHORT, form(rows * 2)))
    assert not total.requires_grad
    alone = kvib.Cohort(ids=[1], count=[1], expected=[1], weight=[1])
    update = np.ones(3)
    kvib.estimate(alone, [{"w": update}])["w"][:] = 7
    kvib.estimate(alone, update[None])[:] = 7
    assert update.tolist() == [1, 1, 1]


def test_a_step_has_no_gradient():
    sampler = kvib.Sampler(kvib.BySize(), [1, 1], 2, kvib.pivotal, estimator=kvib.Difference())
    for parts in (False, True):
        cohort, rows = sampler.draw(), torch.ones(2, 3, requires_grad=True)
        if parts:
            estimation = sampler.begin(cohort)
            assert not estimation.add(np.ones(2, bool), rows).requires_grad
            assert not estimation.finish().requires_grad
        else:
            assert not sampler.step(cohort, list(rows)).requires_grad


# What is no update

COMPLEX = {
    "stacked": np.full((2, 3), 1j),
    "list": [np.full(3, 1j)] * 2,
    "one of two": [np.ones(3), np.full(3, 1j)],
    "tensors": torch.ones(2, 3, dtype=torch.complex64),
    "list of tensors": [torch.ones(3, dtype=torch.complex64)] * 2,
    "one of two tensors": [torch.ones(3), torch.ones(3, dtype=torch.complex64)],
    "numbers": [1j, 2j],
    "one of two lists": [[1.0, 2.0], [1.0, 2j]],
}


@pytest.mark.parametrize("updates", COMPLEX.values(), ids=COMPLEX)
def test_complex_updates_are_refused(updates):
    sampler = kvib.Sampler(kvib.BySize(), [1, 1], 2, kvib.pivotal)
    cohort = sampler.draw()
    before = sampler.packed()
    rows = (
        updates[1][None] if hasattr(updates[1], "shape") else np.array(updates[1:]).reshape(1, -1)
    )
    for call in (
        lambda: kvib.estimate(cohort, updates),
        lambda: kvib.estimate(cohort, [{"w": u} for u in updates]),
        lambda: kvib.estimated_variance(cohort, updates),
        lambda: kvib.norms(updates),
        lambda: kvib.norm(updates[1]),
        lambda: kvib.norm({"w": [updates[1]]}),
        lambda: sampler.step(cohort, updates),
        lambda: sampler.begin(cohort).add(np.array([True, False]), rows),
    ):
        with pytest.raises(ValueError, match="an update is complex; give its real and imaginary"):
            call()
    assert all(
        before[name].tobytes() == array.tobytes() for name, array in sampler.packed().items()
    )


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("abc", "'abc' is not an update; give arrays"),
        (np.array(["a", "b"]), "is not an update"),
        (np.array([None, "x"], object), "is not an update"),
        (object(), "is not an update"),
        ({"w": None}, "None is not an update"),
        ({"w": [np.ones(2), "x"]}, "'x' is not an update"),
        ((x for x in (1.0, 2.0)), "is not an update"),
        (np.ma.masked_array(np.ones(2), [0, 1]), r"masked array; .* update\.filled"),
    ],
    ids=["text", "texts", "objects", "object", "none", "part", "generator", "masked"],
)
def test_what_is_no_update_is_refused(update, message):
    sampler = kvib.Sampler(kvib.BySize(), [1, 1], 2, kvib.pivotal)
    cohort = sampler.draw()
    for call in (
        lambda: kvib.estimate(cohort, [update, update]),
        lambda: kvib.norm(update),
        lambda: kvib.norms([update]),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="nested" if isinstance(update, dict) else message):
        sampler.step(cohort, [update, update])


@pytest.mark.parametrize(
    "form", [lambda rows: (row for row in rows), lambda rows: dict(enumerate(rows)).values(), iter]
)
def test_generated_updates(form):
    assert kvib.estimate(COHORT, form(X)) == pytest.approx(WANT)
    assert kvib.norms(form(X)) == pytest.approx(kvib.norms(X))
    cohort = kvib.pivotal(np.full(6, 0.5), np.random.default_rng(0))
    assert kvib.estimated_variance(cohort, form(X)) == kvib.estimated_variance(cohort, X)
    sampler = kvib.Sampler(kvib.BySize(), [1, 1, 1], 3, kvib.pivotal)
    assert sampler.step(sampler.draw(), form(X)) == pytest.approx(X.mean(axis=0))
    with pytest.raises(ValueError, match="2 updates for a cohort of 3"):
        kvib.estimate(COHORT, form(X[:2]))


@pytest.mark.parametrize("updates", [3.0, "abc", {1.0, 2.0, 3.0}, None], ids=repr)
def test_updates_without_an_order(updates):
    with pytest.raises(ValueError, match="are not in an order; give a list in the order of cohort"):
        kvib.estimate(COHORT, updates)

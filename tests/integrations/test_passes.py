"""Distances and sums of replies, read where they lie, against plain NumPy."""

import numpy as np
import pytest

from kvib import compiled
from kvib.integrations.kit import passes

RNG = np.random.default_rng(3)
X = RNG.normal(size=(7, 5, 3))
REPLIES = [X + RNG.normal(size=X.shape) for _ in range(6)]
KINDS = ["<f4", "<f8", "<f2", ">f4", ">f8", "g", "<i2", "F-ordered", "strided", "unaligned", "open"]


@pytest.fixture(params=["compiled", "interpreted"], autouse=True)
def way(request, monkeypatch):
    if request.param == "interpreted":
        monkeypatch.setattr(compiled, "available", lambda: False)


def of_kind(array, kind):
    if kind == "F-ordered":
        return np.asfortranarray(array)
    if kind == "strided":
        return np.stack([array, array], axis=-1)[..., 1]
    if kind == "unaligned":
        return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
    return array.copy() if kind == "open" else array.astype(kind)


def exactly(x, replies, weights):
    """Of what was given, in double precision."""
    apart = [np.asarray(x, np.float64) - np.asarray(y, np.float64) for y in replies]
    return [sum(w * g for w, g in zip(row, apart, strict=True)).ravel() for row in weights]


@pytest.mark.parametrize("tile", [4, 10**6])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["<f4", "<f8"])
def test_numbers_of_every_kind(kind, model, tile, monkeypatch):
    monkeypatch.setattr(passes, "TILE", tile)
    x = X.astype(model)
    for m in (1, 4, 6):
        replies = [of_kind(y, kind) for y in REPLIES[:m]]
        before = [y.copy() for y in replies]
        weights = RNG.normal(size=(2, m))
        step, other = exactly(x, replies, weights)
        for rows in (weights, weights[:1]):
            total = np.ones(x.size)
            squared = passes.add(x, replies, rows, total)
            assert total == pytest.approx(1 + step, rel=1e-13, abs=1e-13)
            assert squared == pytest.approx(other @ other if len(rows) > 1 else 0, rel=1e-12)
        for y in replies:
            apart = exactly(x, [y], [[1.0]])[0]
            assert passes.squared_distance(x, y) == pytest.approx(apart @ apart, rel=1e-12)
        assert all(np.array_equal(y, z) for y, z in zip(replies, before, strict=True))


def test_replies_of_several_kinds_together():
    replies = [of_kind(y, kind) for y, kind in zip(REPLIES, KINDS[:6], strict=True)]
    weights, total = RNG.normal(size=(1, 6)), np.zeros(X.size)
    passes.add(X, replies, weights, total)
    assert total == pytest.approx(exactly(X, replies, weights)[0])


def test_an_array_that_was_open_stays_open():
    """What is read is marked as read-only, and that is a mark of ours alone."""
    x, y = X.copy(), X.copy()
    passes.squared_distance(x, y)
    passes.add(x, [y], np.ones((1, 1)), np.zeros(X.size))
    assert x.flags.writeable
    assert y.flags.writeable


@pytest.mark.parametrize("shape", [(), (0,), (1,), (513,), (3 * passes.LANES + 5,)])
def test_shapes_of_every_length(shape):
    x, y = RNG.normal(size=shape), RNG.normal(size=shape)
    total = np.zeros(x.size)
    passes.add(x, [y], np.array([[2.0]]), total)
    assert total == pytest.approx(2 * (x - y).ravel(), rel=1e-14)
    assert passes.squared_distance(x, y) == pytest.approx(((x - y) ** 2).sum(), rel=1e-14)


def test_single_precision_is_added_in_double():
    """10^6 numbers of 10^-4 beside one of 10^4, which single precision would not notice."""
    x, y = np.zeros(10**6, np.float32), np.full(10**6, 1e-4, np.float32)
    y[0] = 1e4
    exact = 1e8 + (10**6 - 1) * float(np.float32(1e-4)) ** 2
    assert passes.squared_distance(x, y) == pytest.approx(exact, rel=1e-12)
    total = np.zeros(10**6)
    passes.add(x, [y, -y, y], np.array([[1.0, 1.0, 1e-9]]), total)
    assert total[1] == pytest.approx(-1e-9 * float(np.float32(1e-4)), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_what_is_no_distance_is_not_finite(bad):
    y = X.copy()
    y[3, 2, 1] = bad
    assert not np.isfinite(passes.squared_distance(X, y))

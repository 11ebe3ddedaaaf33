"""The algebra of updates in blocks, so that large ones have no second copy."""

import numpy as np
import pytest

from kvib.estimators import tensors

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("tensor", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(("m", "d"), [(0, 7), (1, 7), (5, 7), (5, 3), (6, 40)])
def test_blocks_do_not_change_what_is_computed(monkeypatch, tensor, m, d):
    rng = np.random.default_rng(m + d)
    a, b = (tensor(rng.normal(size=(m, d)).astype(np.float32)) for _ in range(2))
    weight = rng.random(m)
    whole = tensors.norms(a), tensors.dots(a, b), tensors.sketch(a, 4), tensors.doubled(weight, a)
    monkeypatch.setattr(tensors, "WIDE", 2 * d)  # two rows at a time
    monkeypatch.setattr(tensors, "TILE", (2, 3))
    parts = tensors.norms(a), tensors.dots(a, b), tensors.sketch(a, 4), tensors.doubled(weight, a)
    for one, other in zip(whole[:3], parts[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(parts[3], whole[3], rtol=1e-12, atol=1e-14)
    assert parts[3].shape == (d,)
    assert str(parts[3].dtype).endswith("float64")


@pytest.mark.parametrize("tensor", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(("m", "d"), [(1, 7), (5, 3), (40, 9000)])
def test_sums_of_one_array_and_of_many(monkeypatch, tensor, near, m, d):
    """Also of tensors that NumPy cannot look at, as those on another device."""
    if not near:
        monkeypatch.setattr(tensors, "_on_host", tensors.is_numpy)
    rng = np.random.default_rng(m + d)
    given, weight = rng.normal(size=(m, d)).astype(np.float32), rng.random(m)
    want = weight @ given.astype(np.float64)
    whole = tensor(given)
    for total in (tensors.doubled(weight, whole), tensors.summed(weight, list(whole))):
        np.testing.assert_allclose(total, want, rtol=1e-13, atol=1e-13)
        assert str(total.dtype).endswith("float64")


def test_no_copy_of_everything(monkeypatch):
    """At most a few blocks beside the updates."""
    monkeypatch.setattr(tensors, "WIDE", 100)
    monkeypatch.setattr(tensors, "TILE", (5, 20))
    largest = 0
    plain = tensors.double

    def watched(array):
        nonlocal largest
        largest = max(largest, int(np.prod(array.shape)))
        return plain(array)

    monkeypatch.setattr(tensors, "double", watched)
    a = torch.ones(50, 40)
    tensors.norms(a), tensors.sketch(a, 8), tensors.doubled(np.ones(50), a)
    assert 0 < largest <= 100

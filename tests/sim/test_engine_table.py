"""Every engine of the table trains softmax regression, or says that it does not, as all others."""

import numpy as np
import pytest

from kvib.sim import ClientData, LinearEngine, LocalSGD, SoftmaxRegression, Task
from kvib.sim.engines.make import AUTO, ENGINES, NAMES, EngineShelf, check_engine, make_engine
from kvib.sim.engines.place import HERE, Place
from kvib.sim.local import local_batches

LOCAL = LocalSGD(0.1, batch_size=4, prox=0.1)
ONE = Place(threads=1)


def small_task():
    rng = np.random.default_rng(0)
    sizes = np.array([3, 1, 9, 5])
    x = rng.normal(size=(sizes.sum() + 10, 6)).astype(np.float32)
    y = rng.integers(0, 4, len(x))
    train = ClientData(x[:-10], y[:-10], sizes)
    return Task("small", train, (x[-10:], y[-10:]), SoftmaxRegression(6, 4))


@pytest.fixture(scope="module")
def task():
    return small_task()


@pytest.mark.parametrize("name", [name for name, kind in ENGINES.items() if not kind.remote])
def test_engines_agree(task, name):
    try:
        engine, wanted = make_engine(name, task, LOCAL, ONE), LinearEngine(task, LOCAL, 1)
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    batches = local_batches(task.train, np.arange(len(task)), LOCAL, 0, 0)
    start = np.random.default_rng(1).normal(size=28).astype(np.float32)
    model = engine.from_numpy(start)
    assert engine.to_numpy(model).tolist() == start.tolist()
    assert engine.to_numpy(engine.initial(0)).shape == start.shape
    found = engine.to_numpy(engine.updates(model, batches))
    np.testing.assert_allclose(found, wanted.updates(start, batches), atol=1e-6)
    c = np.array([1.0, 0.5, 2.0, 0.0])
    norms, total = engine.summed(model, batches, c)
    np.testing.assert_allclose(norms, np.linalg.norm(found, axis=1), rtol=1e-5)
    np.testing.assert_allclose(engine.to_numpy(total), c @ found, atol=1e-5)
    for split in ("train", "test"):
        a, b = engine.evaluate(model, split), wanted.evaluate(start, split)
        assert a == pytest.approx(b, rel=1e-5)


def test_an_engine_by_its_name(task):
    assert (AUTO, *ENGINES) == NAMES
    assert type(make_engine(AUTO, task, LOCAL)) is LinearEngine
    with pytest.raises(ValueError, match="engine 'abacus' is not one of auto, linear"):
        make_engine("abacus", task, LOCAL)


def test_a_device_is_of_torch(task):
    pytest.importorskip("torch")
    from kvib.sim.engines.torch_engine import TorchEngine

    assert type(make_engine(AUTO, task, LOCAL, Place("cpu", threads=1))) is TorchEngine


@pytest.mark.parametrize("name", [AUTO, "linear", "torch"])
@pytest.mark.parametrize("place", [Place(address="auto"), Place(workers=2), Place(patience=1.0)])
def test_what_only_clusters_have(name, place):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="are of the Ray engine: --engine ray"):
        check_engine(name, place)
    check_engine("ray", place)
    check_engine(name, HERE)


def test_the_last_engine_is_kept(task):
    shelf = EngineShelf()
    first = shelf.get(AUTO, task, LOCAL, ONE)
    assert shelf.get(AUTO, task, LOCAL, ONE) is first
    assert shelf.get(AUTO, small_task(), LOCAL, ONE) is not first
    again = shelf.get(AUTO, task, LOCAL, ONE)
    assert again is not first
    shelf.clear()
    assert shelf.get(AUTO, task, LOCAL, ONE) is not again

"""Tasks: the paper's data to the digit, users' data checked at the border."""

import os
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import kvib
from kvib.sim import (
    ClientData,
    LinearEngine,
    LocalSGD,
    Simulation,
    SoftmaxRegression,
    Task,
    femnist,
    prepared,
    synthetic,
)
from needs import needs_data

LOCAL = LocalSGD(0.1, batch_size=4)


def by_hand(alpha, beta, seed, clients=100):
    """The recipe of the notes, client by client."""
    rng = np.random.RandomState(seed)
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    u, B = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    v = [rng.normal(B[i], 1, 60) for i in range(clients)]
    covariance = np.diag([j**-1.2 for j in range(1, 61)])
    data = []
    for i in range(clients):
        W, b = rng.normal(u[i], 1, (60, 10)), rng.normal(u[i], 1, 10)
        x = rng.multivariate_normal(v[i], covariance, sizes[i])
        data.append((x, np.argmax(x @ W + b, axis=1)))
    return data


def test_the_papers_counts():
    task = synthetic()
    assert len(task) == 100
    assert len(task.train.y) == 32_417
    assert len(task.train.y) + len(task.test[1]) == 36_068
    sizes = np.array([len(y) for _, y in by_hand(0, 0, 4399)])
    assert sizes.sum() == 36_068
    assert sizes.max() == 5744
    assert np.sort(sizes)[-10:].sum() / sizes.sum() == pytest.approx(0.63, abs=0.005)
    assert task.train.sizes.tolist() == (sizes * 9 // 10).tolist()
    assert task.weights.tolist() == task.train.sizes.tolist()
    assert task.train.x.dtype == np.float32
    assert task.name == "synthetic(0,0)"


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 1.0)])
def test_the_recipe(alpha, beta):
    """The same digits as client by client with `multivariate_normal`."""
    task, slow = synthetic(alpha, beta, clients=20), by_hand(alpha, beta, 4399, clients=20)
    train = ClientData.of([(x[: int(0.9 * len(x))], y[: int(0.9 * len(y))]) for x, y in slow])
    test = ClientData.of([(x[int(0.9 * len(x)) :], y[int(0.9 * len(y)) :]) for x, y in slow])
    assert task.train.sizes.tolist() == train.sizes.tolist()
    assert task.train.y.tolist() == train.y.tolist()
    np.testing.assert_allclose(task.train.x, train.x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(task.test[0], test.x, rtol=1e-6, atol=1e-6)
    assert task.test[1].tolist() == test.y.tolist()


def test_synthetic_differs_by_seed_and_heterogeneity():
    a, b, c = synthetic(clients=5), synthetic(clients=5, seed=1), synthetic(1, 1, clients=5)
    assert a.train.x.tobytes() == synthetic(clients=5).train.x.tobytes()
    assert a.train.sizes.tolist() != b.train.sizes.tolist()
    assert a.train.sizes.tolist() == c.train.sizes.tolist()
    assert a.train.x[0].tolist() != c.train.x[0].tolist()
    assert len({t.fingerprint for t in (a, b, c)}) == 3  # what a checkpoint tells them apart by


def test_local_models_are_local():
    """A linear model of one client's data says little about the next, unless it is iid."""

    def transfer(task):
        starts, sizes = task.train.starts, task.train.sizes
        order = np.argsort(-sizes)[:2]
        (x, y), (x2, y2) = (
            (task.train.x[starts[i] :][: sizes[i]], task.train.y[starts[i] :][: sizes[i]])
            for i in order
        )
        add = lambda z: np.hstack([z, np.ones((len(z), 1))])  # noqa: E731
        W = np.linalg.lstsq(add(x), np.eye(10)[y], rcond=None)[0]
        return (np.argmax(add(x2) @ W, axis=1) == y2).mean()

    assert transfer(synthetic(iid=True)) > 0.6
    assert transfer(synthetic()) < 0.4


def test_iid():
    task = synthetic(iid=True)
    assert task.name == "synthetic-iid"
    assert task.train.sizes.tolist() == synthetic().train.sizes.tolist()
    starts, sizes = task.train.starts, task.train.sizes
    large = np.argsort(-sizes)[:2]
    means = [task.train.x[starts[i] : starts[i] + sizes[i]].mean(axis=0) for i in large]
    spread = np.arange(1, 61) ** -0.6
    error = spread * np.sqrt((1 / sizes[large]).sum())
    assert (np.abs(means[0] - means[1]) < 5.5 * error).all()  # one mean for all


# Users' data

X, Y = np.zeros((6, 2), np.float32), np.array([0, 1, 2, 0, 1, 2])
TEST = (X, Y)
MODEL = SoftmaxRegression(2, 3)


def with_nan(at):
    x = X.copy()
    x[at, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y, [2, 0, 4]), "client 1 has no data; leave such clients out"),
        ((X, Y, [3, -1, 4]), "client 1 has no data"),
        ((X, Y, [2, 2]), "6 inputs and 6 targets for sizes that sum to 4"),
        ((X[:5], Y, [2, 4]), "5 inputs and 6 targets"),
        ((X, Y[:5], [2, 4]), "6 inputs and 5 targets"),
        ((with_nan(0), Y, [2, 1, 3]), "client 0 has a NaN or infinity in its data; clean it"),
        ((with_nan(2), Y, [2, 1, 3]), "client 1 has a NaN"),
        ((with_nan(3), Y, [2, 1, 3]), "client 2 has a NaN"),
        ((X, np.where(np.arange(6) == 5, np.nan, 0), [2, 1, 3]), "client 2 has a NaN"),
    ],
)
def test_bad_client_data(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClientData(*arguments)


def test_clients_one_by_one():
    data = ClientData.of([(X[:2], Y[:2]), (X[2:3], Y[2:3]), (X[3:], Y[3:])])
    assert (len(data), data.sizes.tolist(), data.starts.tolist()) == (3, [2, 1, 3], [0, 2, 3])
    assert [data.owner(k) for k in range(6)] == [0, 0, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="client 1 has 1 inputs and 2 targets"):
        ClientData.of([(X[:2], Y[:2]), (X[2:3], Y[2:4])])
    with pytest.raises(ValueError, match="client 1 has no data"):
        ClientData.of([(X[:2], Y[:2]), (X[:0], Y[:0])])
    with pytest.raises(ValueError, match="no clients"):
        ClientData.of([])


def task_of(y=Y, test=TEST, classes=3, **options):
    return Task("mine", ClientData(X, y, [2, 1, 3]), test, MODEL, classes, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"y": np.array([0, 1, 3, 0, 1, 2])},
            "label 3 of client 1 in the training .* 0 and 2",
        ),
        ({"y": np.array([0, 1, 2, 0, 1, -1])}, "label -1 of client 2 in the training data"),
        ({"test": (X, Y + 1)}, "label 3 of one in the test data is not between 0 and 2"),
        ({"classes": 2}, "2 classes, but a model of 3"),
        # classes that the model does not have: the compiled engine would write out of bounds
        ({"y": Y + 5, "test": (X, Y + 5), "classes": 10}, "classes"),
        ({"y": Y + 5, "test": (X, Y + 5), "classes": None}, "label 5 of client 0|classes"),
        ({"test": (X, Y[:4])}, "6 .* 4"),
        ({"test": (X[:0], Y[:0])}, "test"),
        ({"test": (with_nan(1), Y)}, "NaN"),
        ({"weights": np.ones(4)}, "4 weights|weights .* 4"),
    ],
)
def test_bad_tasks(options, message):
    with pytest.raises(ValueError, match=message):
        task_of(**options)


def test_features_that_the_model_does_not_have():
    with pytest.raises(ValueError, match=r"2 features|3 features"):
        LinearEngine(replace(task_of(), model=SoftmaxRegression(3, 3)), LOCAL)


def test_samplers_of_another_size():
    task = task_of()
    with pytest.raises(ValueError, match="budget 4 exceeds the 3 clients"):
        kvib.Sampler(kvib.KVib(), task.weights, 4)
    engine, sampler = LinearEngine(task, LOCAL), kvib.Sampler(kvib.KVib(), np.ones(5), 2)
    with pytest.raises(ValueError, match="the sampler has 5 clients, the task 3"):
        Simulation(task, engine, sampler, LOCAL)


def test_an_engine_of_another_task_or_other_local_work():
    task, sampler = task_of(), kvib.Sampler(kvib.KVib(), np.ones(3), 2)
    with pytest.raises(ValueError, match="engine"):
        Simulation(task, LinearEngine(synthetic(clients=3), LOCAL), sampler, LOCAL)
    with pytest.raises(ValueError, match="engine"):
        Simulation(task, LinearEngine(task, replace(LOCAL, learning_rate=1.0)), sampler, LOCAL)


# FEMNIST


@pytest.fixture(scope="module")
def writers():
    return femnist.read_writers()


@needs_data
def test_all_writers(writers):
    assert len(writers) == 3597
    assert len(writers.y) == 817_851
    assert writers.x.shape == (817_851, 28, 28)
    assert writers.x.dtype == np.uint8
    assert set(np.unique(writers.y)) == set(range(62))


@needs_data
def test_femnist_keeps_every_tenth_image_for_testing(writers):
    task = femnist.femnist(writers)
    assert len(task) == 3597
    assert task.classes == 62
    assert len(task.test[1]) == (writers.sizes // 10).sum()
    assert len(task.train.y) + len(task.test[1]) == 817_851
    first = writers.sizes[0]
    kept = [k for k in range(first) if k % 10 != 9]
    assert task.train.x[: task.train.sizes[0]].tobytes() == writers.x[:first][kept].tobytes()


@needs_data
@pytest.mark.parametrize(
    ("version", "clients", "whole", "share"),
    [("v1", 2231, 223, 0.82), ("v2", 1231, 246, 0.90), ("v3", 462, 231, 0.98)],
)
def test_digit_versions(writers, version, clients, whole, share):
    task = femnist.digits(version, writers)
    sizes = task.train.sizes
    assert (task.name, task.classes, len(task)) == (f"femnist-{version}", 10, clients)
    assert sizes[:whole].min() >= 60
    assert set(sizes[whole:]) <= {2, 3, 4}
    assert sizes[:whole].sum() / sizes.sum() == pytest.approx(share, abs=0.001)
    assert len(task.test[1]) == 8000
    assert set(np.unique(task.train.y)) == set(np.unique(task.test[1])) == set(range(10))
    assert femnist.digits(version, writers).train.x.tobytes() == task.train.x.tobytes()


@needs_data
@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_test_writers_do_not_train(writers, version):
    """Images that name their own position show who wrote them."""
    names = np.arange(len(writers.y), dtype=np.uint32).view(np.uint8).reshape(-1, 1, 4)
    task = femnist.digits(version, replace(writers, x=names))
    owner = np.repeat(np.arange(len(writers)), writers.sizes)
    at = lambda x: np.ascontiguousarray(x).reshape(-1, 4).view(np.uint32).ravel()  # noqa: E731
    train, test = at(task.train.x), at(task.test[0])
    assert len(np.unique(train)) == len(train)
    assert len(np.unique(test)) == 8000
    assert not set(owner[train]) & set(owner[test])
    assert len(set(owner[train])) == len(task)
    mixed = [len(set(owner[part])) for part in np.split(train, task.train.starts[1:])]
    assert mixed == [1] * len(task)  # a client is one writer
    assert (writers.y[train] == task.train.y).all()
    assert (writers.y[test] == task.test[1]).all()


@needs_data
def test_a_prepared_file_is_small(writers, tmp_path):
    path = tmp_path / "v1.npz"
    task = femnist.digits("v1", writers)
    prepared.prepare(task, path)
    assert path.stat().st_size < 20e6
    again = prepared.make_task(str(path))
    assert again.train.x.tobytes() == task.train.x.tobytes()
    assert again.train.y.tolist() == task.train.y.tolist()


def test_unknown_version():
    with pytest.raises(ValueError, match="FEMNIST version 'v4' is not one of v1, v2, v3"):
        femnist.digits("v4", ClientData(X, Y, [6]))


@pytest.mark.parametrize("folder", [None, "empty"])
def test_femnist_without_data(monkeypatch, tmp_path, folder):
    monkeypatch.setitem(sys.modules, "datasets", None)
    if folder is None:
        monkeypatch.delenv("KVIB_DATA", raising=False)
    else:
        monkeypatch.setenv("KVIB_DATA", str(tmp_path))
    told = "KVIB_DATA is not set" if folder is None else f"KVIB_DATA={tmp_path} does not hold"
    with pytest.raises(ValueError, match=f"{told}.* folder with .*`pip install datasets`"):
        femnist.digits("v1")
    with pytest.raises(ValueError, match="no FEMNIST data"):
        prepared.make_task("femnist")


def test_a_hub_that_does_not_answer(monkeypatch):
    class Hub:
        @staticmethod
        def load_dataset(*_, **__):
            raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    monkeypatch.delenv("KVIB_DATA", raising=False)
    with pytest.raises(ValueError, match=r"hub did not answer \(offline\): KVIB_DATA is not set"):
        femnist.femnist()


def test_rows_of_the_hub(monkeypatch):
    """Images of all writers mixed become clients, each with its images in the rows' order."""
    writers = ["b", "a", "c", "a", "b", "a"]
    images = [np.full((28, 28), 10 * k, np.uint8) for k in range(6)]
    data = femnist.from_rows(images, list(range(6)), writers)
    assert data.sizes.tolist() == [3, 2, 1]
    assert data.y.tolist() == [1, 3, 5, 0, 4, 2]
    assert data.x[:, 0, 0].tolist() == [10, 30, 50, 0, 40, 20]
    assert data.x.dtype == np.uint8

    class Hub:
        @staticmethod
        def load_dataset(name, split):
            assert (name, split) == ("flwrlabs/femnist", "train")
            return {"image": images, "character": list(range(6)), "writer_id": writers}

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    monkeypatch.delenv("KVIB_DATA", raising=False)
    assert femnist.read_writers().y.tolist() == data.y.tolist()


def test_the_paper_s_cnn():
    pytest.importorskip("torch")
    for classes, parameters in ((10, 1_663_370), (62, 1_663_370 + 52 * 513)):
        module = femnist.cnn(classes)
        assert sum(p.numel() for p in module.parameters()) == parameters


# Prepared files


@pytest.mark.parametrize("options", [{}, {"iid": True}, {"alpha": 1.0, "beta": 1.0}])
def test_prepared_tasks_come_back(tmp_path, options):
    task, path = synthetic(clients=8, **options), tmp_path / "task.npz"
    prepared.prepare(task, path)
    assert os.listdir(tmp_path) == ["task.npz"]
    for again in (prepared.read(path), prepared.make_task(str(path))):
        assert (again.name, again.classes, again.model) == (task.name, 10, task.model)
        for a, b in (
            (again.train.x, task.train.x),
            (again.train.y, task.train.y),
            (again.train.sizes, task.train.sizes),
            (again.test[0], task.test[0]),
            (again.test[1], task.test[1]),
            (again.weights, task.weights),
        ):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


def test_prepared_images_know_their_cnn(tmp_path):
    pytest.importorskip("torch")
    x = np.zeros((6, 28, 28), np.uint8)
    for name, classes in (("femnist", 62), ("femnist-v2", 10)):
        model = partial(femnist.cnn, classes)
        task = Task(name, ClientData(x, Y, [2, 4]), (x, Y), model, classes)
        prepared.prepare(task, tmp_path / "t.npz")
        assert prepared.read(tmp_path / "t.npz").model().head[-1].out_features == classes


def test_prepared_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"task 'minst' is not one of synthetic, .*, nor a prep"):
        prepared.make_task("minst")
    with pytest.raises(ValueError, match="only kvib's own models can be prepared"):
        prepared.prepare(replace(task_of(), model=lambda: None, classes=3), tmp_path / "mine.npz")
    kvib.Sampler(kvib.KVib(), [1, 2], 1).save(tmp_path / "sampler.npz")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="is a kvib sampler file, not a task file"):
        prepared.make_task(str(tmp_path / "sampler.npz"))
    with pytest.raises(ValueError, match="not a whole kvib task file"):
        prepared.make_task(str(tmp_path / "text"))


def test_a_name_that_only_begins_like_one_of_ours_is_not_ours(tmp_path):
    """A user's task comes back with its own model, not with that of a similar name."""
    task = replace(task_of(), name="synthetically-made")
    prepared.prepare(task, tmp_path / "mine.npz")
    assert prepared.read(tmp_path / "mine.npz").model == task.model


def test_known_names_make_tasks():
    assert prepared.make_task("synthetic-1-1").name == "synthetic(1,1)"
    assert prepared.make_task("synthetic-iid").name == "synthetic-iid"

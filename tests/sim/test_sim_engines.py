"""Every engine trains as the slow readable loop does, and says so where it cannot be fast."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kvib.sim import (  # noqa: E402
    ClientData,
    LinearEngine,
    LocalSGD,
    SoftmaxRegression,
    Task,
    models,
)
from kvib.sim.engines.engine import SLOWLY  # noqa: E402
from kvib.sim.engines.reference import ReferenceEngine  # noqa: E402
from kvib.sim.engines.torch_engine import TorchEngine  # noqa: E402
from kvib.sim.local import local_batches  # noqa: E402

SIZES = [7, 1, 12, 3, 1, 20, 5]
FEATURES, CLASSES = 6, 4


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small only wait for the other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clients(shape=(FEATURES,), images=False, sizes=SIZES, classes=CLASSES):
    """Random clients and test data."""
    rng = np.random.default_rng(0)
    n = sum(sizes) + 30
    x = rng.integers(0, 256, (n, *shape)) if images else rng.normal(size=(n, *shape))
    x = x.astype(np.uint8 if images else np.float32)
    y = rng.integers(0, classes, n)
    train = ClientData(x[:-30], y[:-30], np.array(sizes))
    return train, (x[-30:], y[-30:])


def linear_task():
    return Task("linear", *clients(), SoftmaxRegression(FEATURES, CLASSES), CLASSES)


class SmallConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, padding="same"), nn.Conv2d(3, 2, 3, stride=2)
        self.head = nn.Linear(2 * 3 * 3, CLASSES)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.a(x)), 1)
        return self.head(torch.relu(self.b(x)).flatten(1))


class Gated(nn.Module):
    """A user's own module: tied weights, a scalar parameter, a norm."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.again = self.inner
        self.norm = nn.LayerNorm(FEATURES)
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.out = nn.Linear(FEATURES, 1)

    def forward(self, x):
        x = self.norm(self.again(torch.tanh(self.inner(x))) * self.gain + x)
        return self.out(x).squeeze(-1)


def huber(outputs, targets):
    """A loss per sample that is not a class's."""
    return nn.functional.smooth_l1_loss(outputs, targets.float(), reduction="none")


def conv_task():
    return Task("conv", *clients((7, 7), images=True), SmallConv, CLASSES)


def regression_task():
    return Task("regression", *clients(), Gated, loss=huber)


def module_task(make, **options):
    return Task("module", *clients(), make, CLASSES, **options)


TASKS = {"linear": linear_task, "conv": conv_task, "regression": regression_task}
LOCALS = {
    "epochs": LocalSGD(0.1, batch_size=4, epochs=2),
    "steps": LocalSGD(0.1, batch_size=4, steps=3),
    "prox": LocalSGD(0.1, batch_size=3, epochs=2, prox=0.7),
    "one batch": LocalSGD(0.1, batch_size=1000, epochs=2),
    "steps of one sample": LocalSGD(0.05, batch_size=1, steps=5, prox=0.1),
}


def engines(task, local):
    """All engines but the reference, by name."""
    found = {
        "one after another": TorchEngine(task, local),
        "batched": TorchEngine(task, local, batched=True),
    }
    if isinstance(task.model, SoftmaxRegression):
        found["linear"] = LinearEngine(task, local)
        found["linear, one thread"] = LinearEngine(task, local, threads=1)
    return found


def start(reference, seed=3):
    """Some model that is not the initial one."""
    model = reference.to_numpy(reference.initial(seed))
    return (model + np.random.default_rng(9).normal(size=model.shape) * 0.1).astype(np.float32)


def trained(engine, model, batches):
    return engine.to_numpy(engine.updates(engine.from_numpy(model), batches))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("local", LOCALS)
def test_all_engines_equal_the_reference(task, local):
    task, local = TASKS[task](), LOCALS[local]
    reference = ReferenceEngine(task, local)
    model = start(reference)
    for ids in (np.arange(len(SIZES)), np.array([1]), np.array([0, 1, 4])):
        batches = local_batches(task.train, ids, local, seed=5, round=2)
        wanted = trained(reference, model, batches)
        assert wanted.shape == (len(ids), len(model))
        assert (np.abs(wanted).max(axis=1) > 1e-4).all()  # everybody moved
        for name, engine in engines(task, local).items():
            for _ in range(2):  # nothing is left over from the first call
                got = trained(engine, model, batches)
                np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("task", TASKS)
def test_all_engines_equal_the_reference_round_after_round(task):
    """Cohorts of changing size and order of steps, and evaluations in between."""
    task, local = TASKS[task](), LOCALS["epochs"]
    reference = ReferenceEngine(task, local)
    others = engines(task, local)
    rng = np.random.default_rng(0)
    for t in range(4):
        model = start(reference, seed=t)
        batches = local_batches(
            task.train, np.sort(rng.permutation(7)[: 7 - 2 * (t % 3)]), local, 0, t
        )
        wanted = trained(reference, model, batches)
        for name, engine in others.items():
            engine.evaluate(engine.from_numpy(model), "test")
            got = trained(engine, model, batches)
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_engines_agree_on_how_good_a_model_is(task, split):
    task, local = TASKS[task](), LOCALS["epochs"]
    reference = ReferenceEngine(task, local)
    model = start(reference)
    wanted = reference.evaluate(reference.from_numpy(model), split)
    for engine in engines(task, local).values():
        got = engine.evaluate(engine.from_numpy(model), split)
        assert got.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert got.accuracy == pytest.approx(wanted.accuracy, nan_ok=True)


def test_evaluation_by_hand():
    task = linear_task()
    engine = LinearEngine(task, LOCALS["epochs"])
    model = np.random.default_rng(0).normal(size=(FEATURES + 1) * CLASSES).astype(np.float32)
    W, b = model[:-CLASSES].reshape(CLASSES, FEATURES), model[-CLASSES:]
    x, y = task.test
    z = x @ W.T + b
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]
    loss, accuracy = engine.evaluate(model, "test")
    assert loss == pytest.approx(losses.mean(), rel=1e-5)
    assert accuracy == (z.argmax(axis=1) == y).mean()


@pytest.mark.parametrize("kind", [LinearEngine, TorchEngine])
def test_algebra(kind):
    engine = kind(linear_task(), LOCALS["epochs"])
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 28)).astype(np.float32)
    updates = rows if kind is LinearEngine else torch.stack([*map(engine.from_numpy, rows)])
    factors = np.array([0.5, 2.0, 3.0])
    assert engine.norms(updates) == pytest.approx(np.linalg.norm(rows, axis=1), rel=1e-6)
    assert engine.gram(updates) == pytest.approx(rows @ rows.T, rel=1e-4, abs=1e-5)
    some = engine.gram(updates[:2], updates[1:])
    assert some == pytest.approx(rows[:2] @ rows[1:].T, rel=1e-4, abs=1e-5)
    combined = engine.to_numpy(engine.combine(factors, updates))
    assert combined.dtype == np.float32
    assert combined == pytest.approx(factors @ rows, rel=1e-5, abs=1e-5)


def test_the_initial_model_is_decided_by_the_seed_alone():
    task = conv_task()
    a, b = TorchEngine(task, LOCALS["epochs"]), ReferenceEngine(task, LOCALS["steps"])
    before = torch.random.get_rng_state()
    first = a.initial(1)
    assert torch.equal(torch.random.get_rng_state(), before)  # the global generator is left alone
    torch.rand(3)
    assert torch.equal(first, b.initial(1))
    assert not torch.equal(first, a.initial(2))


def test_threads_do_not_change_the_linear_engine():
    task, local = linear_task(), LOCALS["prox"]
    model = np.zeros(28, np.float32)
    batches = local_batches(task.train, np.arange(7), local, 0, 0)
    one, five = (LinearEngine(task, local, threads=n).updates(model, batches) for n in (1, 5))
    assert one.tobytes() == five.tobytes()


# What cannot be batched


class Normed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, **options)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.out(self.norm(x))


def both(task, local=None):
    """Updates of the reference and of a batched engine, and the engine; clients of ≥ 3 samples."""
    local = local or LocalSGD(0.1, batch_size=30, epochs=2)
    reference = ReferenceEngine(task, local)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        engine = TorchEngine(task, local, batched=True)
    wanted = [f"{SLOWLY}: {engine.slow}"] if engine.slow else []
    assert [str(warning.message) for warning in told] == wanted
    model = start(reference)
    batches = local_batches(task.train, np.array([0, 2, 3, 5, 6]), local, 0, 0)
    return trained(reference, model, batches), trained(engine, model, batches), engine


def test_batch_norm_is_trained_one_after_another():
    wanted, got, engine = both(module_task(Normed))
    assert "norm.running_mean" in engine.slow
    assert "GroupNorm or LayerNorm" in engine.slow
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)
    running = slice(FEATURES * (CLASSES + 2) + CLASSES, None)
    assert np.abs(got[:, running]).min() > 0  # statistics are part of the update


def test_batch_norm_without_statistics():
    """It mixes the samples of a batch, so that padding would change the result."""
    wanted, got, engine = both(module_task(lambda: Normed(track_running_stats=False)))
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)
    assert engine.slow


def test_batch_norm_with_cumulative_statistics():
    """`num_batches_tracked` counts a client's batches, not those of the clients before it."""
    wanted, got, _ = both(module_task(lambda: Normed(momentum=None)))
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2.0 if x.abs().max().item() > 1 else 1.0)


class ThroughNumpy(nn.Linear):
    def forward(self, x):
        return super().forward(x) * float(x.detach().numpy().max() > 1)


@pytest.mark.parametrize("kind", [Branching, ThroughNumpy])
def test_modules_that_vmap_cannot_take(kind):
    wanted, got, engine = both(module_task(lambda: kind(FEATURES, CLASSES)))
    assert "vmap cannot take the module" in engine.slow
    assert "\n" not in engine.slow
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)


def test_no_client_is_slow_in_a_batch():
    for task in (linear_task(), conv_task(), regression_task()):
        assert TorchEngine(task, LOCALS["epochs"], batched=True).slow == ""
        assert TorchEngine(task, LOCALS["epochs"]).slow == ""


class ConvNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding="same")
        self.norm = nn.BatchNorm2d(2, track_running_stats=False)
        self.head = nn.Linear(2 * 7 * 7, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def test_batch_norm_of_images_without_statistics():
    """Works with one sample, but still mixes the samples of a batch."""
    task = Task("mixing", *clients((7, 7), images=True), ConvNormed, CLASSES)
    wanted, got, engine = both(task)
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)
    assert engine.slow


# Ordinary modules of users


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.out(torch.relu(self.features(x)))


class Unused(nn.Linear):
    def __init__(self, *shape):
        super().__init__(*shape)
        self.spare = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("make", [Frozen, lambda: Unused(FEATURES, CLASSES)], ids=["frozen", "un"])
def test_frozen_and_unused_parameters_stay(make, batched):
    task, local = module_task(make), LOCALS["prox"]
    reference, engine = ReferenceEngine(task, local), TorchEngine(task, local, batched=batched)
    model = start(reference)
    batches = local_batches(task.train, np.arange(7), local, 0, 0)
    wanted = trained(reference, model, batches)
    np.testing.assert_allclose(trained(engine, model, batches), wanted, rtol=2e-4, atol=3e-6)
    outputs = FEATURES * CLASSES + CLASSES
    if make is Frozen:  # no part of the model, and shared by all clients
        assert wanted.shape == (7, outputs)
        assert engine.flat.frozen == FEATURES * FEATURES + FEATURES
        for seed in (0, 3):
            engine.initial(seed)
            now, made = engine.flat.module.features, models.make(task, 0).features
            assert torch.equal(now.weight, made.weight)
            assert not torch.equal(engine.initial(seed), engine.initial(seed + 1))
    else:
        assert wanted.shape == (7, outputs + 3)
        assert ((wanted == 0).sum(axis=1) >= 3).all()


def test_nothing_to_train():
    task = module_task(lambda: nn.Linear(FEATURES, CLASSES).requires_grad_(False))
    with pytest.raises(ValueError, match="no parameter that requires gradients"):
        TorchEngine(task, LOCALS["prox"])


class DoubledInTraining(nn.Linear):
    """As dropout, another function in training than in evaluation, but without chance."""

    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


@pytest.mark.parametrize("batched", [False, True])
def test_training_is_in_training_mode_after_an_evaluation(batched):
    task, local = module_task(lambda: DoubledInTraining(FEATURES, CLASSES)), LOCALS["steps"]
    reference, engine = ReferenceEngine(task, local), TorchEngine(task, local, batched=batched)
    model = start(reference)
    engine.evaluate(engine.from_numpy(model), "test")
    batches = local_batches(task.train, np.arange(7), local, 0, 0)
    wanted = trained(reference, model, batches)
    np.testing.assert_allclose(trained(engine, model, batches), wanted, rtol=2e-4, atol=3e-6)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.filterwarnings("ignore:clients train slowly")
def test_dropout_is_decided_by_the_round(batched):
    """A resumed run must see the same dropout: nothing may come from the global generator."""
    task = module_task(
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES)),
    )
    engine = TorchEngine(task, LOCALS["epochs"], batched=batched)
    model = start(engine)
    batches = local_batches(task.train, np.arange(7), LOCALS["epochs"], 0, 0)
    state = torch.random.get_rng_state()
    first = trained(engine, model, batches)
    torch.rand(17)
    assert trained(engine, model, batches).tobytes() == first.tobytes()
    torch.random.set_rng_state(state)


def test_sequences_keep_their_shape():
    """Only images get a channel: a recurrent module sees [batch, time, features]."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.Linear(5, 5), nn.Linear(5, CLASSES)

        def forward(self, x):
            assert x.shape[1:] == (3, 5)
            return self.out(torch.tanh(self.cell(x)).mean(dim=1))

    task = Task("sequences", *clients((3, 5)), Recurrent, CLASSES)
    wanted, got, engine = both(task)
    assert engine.slow == ""
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=3e-6)


@pytest.mark.parametrize("kind", [ReferenceEngine, TorchEngine, LinearEngine])
def test_other_number_types(kind):
    """float64 inputs, 32-bit or unsigned labels, arrays that must not be written to."""
    train, (x, y) = clients()
    engine = kind(linear_task(), LOCALS["epochs"])
    model = start(engine)
    batches = local_batches(train, np.arange(7), LOCALS["epochs"], 0, 0)
    wanted = trained(engine, model, batches)
    for kind_of_label in (np.int32, np.uint8):
        other = ClientData(train.x.astype(np.float64), train.y.astype(kind_of_label), train.sizes)
        other.x.flags.writeable = False
        test = x.astype(np.float64), y.astype(kind_of_label)
        task = Task("other", other, test, SoftmaxRegression(FEATURES, CLASSES), CLASSES)
        engine = kind(task, LOCALS["epochs"])
        np.testing.assert_allclose(trained(engine, model, batches), wanted, rtol=1e-6, atol=1e-7)
        assert np.isfinite(engine.evaluate(engine.from_numpy(model), "test").loss)


# Options


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none(device):
    with pytest.raises(ValueError, match=f"device '{device}' was asked for, .* no CUDA .* cpu"):
        TorchEngine(linear_task(), LOCALS["epochs"], device=device)


def test_unknown_precision():
    with pytest.raises(ValueError, match="precision 'fp8' is not one of float32, tf32, bf16"):
        TorchEngine(linear_task(), LOCALS["epochs"], precision="fp8")


@pytest.mark.parametrize("batched", [False, True])
def test_bf16_is_near_and_leaves_settings_alone(batched):
    """Near after many steps: every step must see the weights of the step before."""
    task, local = linear_task(), LocalSGD(0.1, batch_size=4, epochs=4)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    exact, rough = TorchEngine(task, local), TorchEngine(task, local, "cpu", "bf16", batched)
    model, batches = start(exact), local_batches(task.train, np.arange(7), local, 0, 0)
    got, wanted = trained(rough, model, batches), trained(exact, model, batches)
    assert got.dtype == np.float32
    assert got.tobytes() != wanted.tobytes()
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_memory_decides_the_chunk():
    task = linear_task()
    small = TorchEngine(task, LOCALS["epochs"], chunk_bytes=6 * 4 * 28 * 3)
    assert small.chunk == 3
    assert TorchEngine(task, LOCALS["epochs"], chunk_bytes=1).chunk == 1


def test_the_linear_engine_is_for_softmax_regression():
    with pytest.raises(ValueError, match="the linear engine trains SoftmaxRegression, not"):
        LinearEngine(conv_task(), LOCALS["epochs"])


def test_a_model_that_makes_no_module():
    with pytest.raises(ValueError, match=r"makes a int, not a torch.nn.Module"):
        TorchEngine(module_task(lambda: 3), LOCALS["epochs"])

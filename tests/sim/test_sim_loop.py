"""The round loop: records, exact metrics, server rules, every policy, divergence."""

import dataclasses
import math

import numpy as np
import pytest

import kvib
from kvib.analysis import metrics
from kvib.sim import (
    ClientData,
    DivergedError,
    LinearEngine,
    LocalSGD,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    Simulation,
    SoftmaxRegression,
    Task,
)
from kvib.sim.local import local_batches
from members import POLICIES

LOCAL = LocalSGD(0.1, batch_size=8)
N, FEATURES, CLASSES = 12, 5, 3


def small_task(scale=1.0):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 30, N)
    x = rng.normal(size=(sizes.sum() + 40, FEATURES)).astype(np.float32) * np.float32(scale)
    y = np.argmax(x[:, :CLASSES] + 0.3 * rng.normal(size=(len(x), CLASSES)), axis=1)
    train = ClientData(x[:-40], y[:-40], sizes)
    return Task("small", train, (x[-40:], y[-40:]), SoftmaxRegression(FEATURES, CLASSES), CLASSES)


def new(policy=None, procedure=None, *, task=None, local=LOCAL, budget=4, server=None, **options):
    task = task or small_task()
    sampler = kvib.Sampler(policy or kvib.KVib(rounds=20), task.weights, budget, procedure, seed=1)
    return Simulation(task, LinearEngine(task, local), sampler, local, server, **options)


def everybody(simulation, t):
    """Norms and updates of all clients from the current model."""
    batches = local_batches(
        simulation.task.train, np.arange(N), simulation.local, simulation.seed, t
    )
    updates = simulation.engine.updates(simulation.model, batches).astype(float)
    return np.linalg.norm(updates, axis=1), updates


def test_records():
    simulation = new(evaluate_every=2, train_loss_every=3, exact_every=4)
    records = list(simulation.run(rounds=8))
    assert records == simulation.records
    assert [r.round for r in records] == list(range(8))
    for r in records:
        assert len(r.ids) == len(r.norms) == r.clients
        assert (np.diff(r.ids) > 0).all()
        assert (r.norms > 0).all()
        assert math.isfinite(r.loss) == math.isfinite(r.accuracy) == (r.round % 2 == 0)
        assert math.isfinite(r.train_loss) == (r.round % 3 == 0)
        for name in (
            "variance",
            "sampling_cost",
            "optimal_sampling_cost",
            "optimal_variance",
            "quality",
        ):
            assert math.isfinite(getattr(r, name)) == (r.round % 4 == 0)
        assert math.isfinite(r.estimated_variance)
        assert r.step_norm >= 0
    assert records[0].loss == pytest.approx(math.log(CLASSES))  # before the round
    assert records[6].loss < records[0].loss
    assert [set(laps) for laps in simulation.seconds] == [
        {"evaluate", "exact", "draw", "train", "update"}
    ] * 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        records[0].loss = 1


def test_never_evaluated():
    (record,) = new(evaluate_every=0).run(rounds=1)
    assert math.isnan(record.loss)
    assert math.isnan(record.accuracy)


def test_a_round_by_hand():
    simulation = new(kvib.BySize(), kvib.independent, server=ServerSGD(0.5))
    for t in range(3):
        norms, updates = everybody(simulation, t)
        before, sampler = simulation.model.copy(), simulation.sampler
        p = sampler.probabilities()
        record = simulation.round()
        assert record.norms == pytest.approx(norms[record.ids], rel=1e-6)
        d = (sampler.weights / p)[record.ids] @ updates[record.ids]
        assert simulation.model == pytest.approx(before - 0.5 * d, rel=1e-4, abs=1e-6)
        assert record.step_norm == pytest.approx(np.linalg.norm(d), rel=1e-5)


def test_exact_metrics_of_independent_draws():
    simulation = new(kvib.KVib(rounds=10), exact_every=1)
    for t in range(4):
        norms, _ = everybody(simulation, t)
        p = simulation.sampler.probabilities()
        pi = simulation.sampler.weights * norms
        record = simulation.round()
        assert record.variance == pytest.approx(metrics.variance(p, pi).value, rel=1e-5)
        assert record.variance_error == 0
        assert record.sampling_cost == pytest.approx(metrics.sampling_cost(p, pi), rel=1e-5)
        assert record.optimal_sampling_cost == pytest.approx(
            metrics.optimal_sampling_cost(pi, 4), rel=1e-5
        )
        assert record.quality == pytest.approx(metrics.quality(p, pi, 4), rel=1e-4)
        assert record.optimal_factor == pytest.approx(metrics.optimal_factor(pi, 4), rel=1e-5)
        best = metrics.optimal_probabilities(pi, 4)
        assert record.optimal_variance == pytest.approx(metrics.variance(best, pi).value, rel=1e-5)


@pytest.mark.parametrize(
    "procedure",
    [kvib.with_replacement, kvib.without_replacement, kvib.conditional_poisson, kvib.pivotal],
    ids=repr,
)
def test_exact_variance_of_other_draws(procedure):
    simulation = new(kvib.Uniform(), procedure, exact_every=1)
    _, updates = everybody(simulation, 0)
    scaled = updates * simulation.sampler.weights[:, None]
    p = simulation.sampler.probabilities()
    rng = np.random.default_rng(0)
    wanted = metrics.variance(p, None, procedure, gram=scaled @ scaled.T, draws=3000, rng=rng)
    record = simulation.round()
    error = math.hypot(record.variance_error, wanted.error)
    assert record.variance == pytest.approx(wanted.value, rel=1e-4, abs=5.5 * error)
    assert (record.variance_error > 0) == (procedure is kvib.pivotal)


def test_exact_metrics_change_nothing():
    plain, measured = new(), new(exact_every=1, train_loss_every=1)
    a, b = list(plain.run(rounds=5)), list(measured.run(rounds=5))
    assert plain.model.tobytes() == measured.model.tobytes()
    assert [r.ids.tolist() for r in a] == [r.ids.tolist() for r in b]


def test_chunks_change_nothing_but_digits():
    whole, cut = new(exact_every=1), new(exact_every=1)
    cut.engine.chunk = 2
    for a, b in zip(whole.run(rounds=4), cut.run(rounds=4), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert (a.variance, a.step_norm) == pytest.approx((b.variance, b.step_norm), rel=1e-4)
    assert whole.model == pytest.approx(cut.model, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.conditional_poisson], ids=repr)
def test_variances_from_inner_products_across_chunks(procedure):
    """All clients together have a Gram matrix, also where they do not train together."""
    whole, cut = (new(kvib.Uniform(), procedure, exact_every=1) for _ in range(2))
    cut.engine.chunk = 3
    for a, b in zip(whole.run(rounds=3), cut.run(rounds=3), strict=True):
        assert a.variance == pytest.approx(b.variance, rel=1e-4)


def test_no_gram_matrix_beyond_its_bytes():
    needed = len(new().task) * new().model.nbytes
    for memory, known in ((needed, True), (needed - 1, False)):
        simulation = new(kvib.Uniform(), kvib.pivotal, exact_every=1, gram_bytes=memory)
        record = simulation.round()
        assert math.isfinite(record.variance) == known
        assert math.isfinite(record.sampling_cost)


def test_the_oracle_has_no_regret():
    for record in new(kvib.Optimal(), exact_every=1).run(rounds=5):
        assert record.sampling_cost - record.optimal_sampling_cost == pytest.approx(
            0, abs=1e-9 * record.sampling_cost
        )
        assert record.variance == pytest.approx(record.optimal_variance)
        assert record.quality == pytest.approx(0, abs=1e-9 * record.sampling_cost)


def test_others_have_regret():
    for record in new(kvib.Uniform(), kvib.independent, exact_every=1).run(rounds=3):
        assert record.sampling_cost > record.optimal_sampling_cost
        assert record.variance / record.optimal_variance == pytest.approx(1 / record.optimal_factor)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_policy_runs(policy):
    records = list(new(policy, exact_every=1, train_loss_every=1).run(rounds=3))
    assert len(records) == 3
    for r in records:
        measured = dataclasses.asdict(r)
        assert all(np.isfinite(v).all() for name, v in measured.items() if name != "ids")


def test_all_drawn_is_full_participation():
    simulation = new(kvib.Uniform(), budget=N, exact_every=1)
    _, updates = everybody(simulation, 0)
    record = simulation.round()
    assert record.clients == N
    assert record.variance == pytest.approx(0, abs=1e-12)
    assert simulation.model == pytest.approx(-simulation.sampler.weights @ updates, abs=1e-6)


@pytest.mark.filterwarnings("ignore:budget 0.5 is less than one")
def test_an_empty_cohort():
    """With a small budget independent draws may be empty; the model stays, the run goes on."""
    simulation = new(kvib.Uniform(), kvib.independent, budget=0.5)
    before, empty = simulation.model, 0
    for record in simulation.run(rounds=12):
        if record.clients == 0:
            empty += 1
            assert (simulation.model == before).all()
            assert record.step_norm == 0
        before = simulation.model
    assert empty


def test_self_normalised():
    simulation = new(kvib.Uniform(), kvib.independent, coefficients=kvib.self_normalised)
    _, updates = everybody(simulation, 0)
    record = simulation.round()
    share = simulation.sampler.weights[record.ids]
    mean = share / share.sum() @ updates[record.ids]
    assert simulation.model == pytest.approx(-mean, abs=1e-6)


def played(server, steps):
    model = np.array([1.0, -2.0, 0.5, 0.0])
    memory, models = server.start(model), []
    for d in steps:
        memory, model = server.step(memory, model, d)
        models.append(model)
    return np.array(models)


STEPS = np.array([[0.5, -1, 0, 2], [1e-3, 3, 0, -2], [0.5, 0.5, 0, 1e-4], [-1, -1, 0, 1]])


def test_server_sgd_by_hand():
    x, m = np.array([1.0, -2.0, 0.5, 0.0]), np.zeros(4)
    plain, momentum = played(ServerSGD(0.3), STEPS), played(ServerSGD(0.3, momentum=0.9), STEPS)
    assert plain == pytest.approx(x - 0.3 * np.cumsum(STEPS, axis=0))
    for t, d in enumerate(STEPS):
        m = 0.9 * m + d
        x = x - 0.3 * m
        assert momentum[t] == pytest.approx(x)


@pytest.mark.parametrize("kind", [ServerAdam, ServerYogi])
def test_adaptive_servers_by_hand(kind):
    server = kind(learning_rate=0.1, decay=0.8, square_decay=0.9, adaptivity=1e-2)
    models = played(server, STEPS)
    x, m, v = np.array([1.0, -2.0, 0.5, 0.0]), np.zeros(4), np.full(4, 1e-4)
    for t, d in enumerate(STEPS):
        m = 0.8 * m + 0.2 * d
        yogi = v - 0.1 * d**2 * np.sign(v - d**2)
        v = 0.9 * v + 0.1 * d**2 if kind is ServerAdam else yogi
        x = x - 0.1 * m / (np.sqrt(v) + 1e-2)
        assert models[t] == pytest.approx(x)


@pytest.mark.parametrize("server", [ServerSGD(0.3, 0.9), ServerAdam(), ServerYogi()], ids=repr)
def test_servers_take_tensors(server):
    torch = pytest.importorskip("torch")
    wanted = played(server, STEPS)
    model = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    memory = server.start(model)
    for t, d in enumerate(STEPS):
        memory, model = server.step(memory, model, torch.from_numpy(d))
        assert model.numpy() == pytest.approx(wanted[t])


@pytest.mark.parametrize("server", [ServerSGD(momentum=0.9), ServerAdam(), ServerYogi()], ids=repr)
def test_servers_learn_in_single_precision(server):
    simulation = new(server=server)
    records = list(simulation.run(rounds=10))
    assert records[-1].loss < records[0].loss
    assert simulation.model.dtype == np.float32


def test_engines_agree_on_a_whole_run():
    torch = pytest.importorskip("torch")
    from kvib.sim.engines.torch_engine import TorchEngine

    task = small_task()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = []
    for engine in (LinearEngine(task, LOCAL), TorchEngine(task, LOCAL)):
        sampler = kvib.Sampler(kvib.KVib(rounds=8), task.weights, 4, seed=1)
        simulation = Simulation(task, engine, sampler, LOCAL, ServerAdam(), exact_every=1)
        runs.append(list(simulation.run(rounds=8)))
    torch.set_num_threads(before)
    for a, b in zip(*runs, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        for name in (
            "loss",
            "accuracy",
            "variance",
            "sampling_cost",
            "step_norm",
            "estimated_variance",
        ):
            assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-3)


# Divergence


@pytest.mark.parametrize("exact", [0, 1])
def test_a_diverging_client_is_named(exact):
    local = LocalSGD(1e38, batch_size=4, epochs=3)
    simulation = new(task=small_task(scale=1e3), local=local, exact_every=exact)
    with pytest.raises(DivergedError, match=r"client \d+ diverged in round \d+.* learning rate"):
        list(simulation.run(rounds=50))


def test_a_diverging_torch_client_is_named():
    pytest.importorskip("torch")
    from kvib.sim.engines.torch_engine import TorchEngine

    task, local = small_task(), LocalSGD(1e30, batch_size=4)
    sampler = kvib.Sampler(kvib.Uniform(), task.weights, 4)
    for batched in (False, True):
        simulation = Simulation(task, TorchEngine(task, local, batched=batched), sampler, local)
        with pytest.raises(DivergedError, match=r"client \d+ diverged in round \d+"):
            list(simulation.run(rounds=20))


def task_with_an_explosive_client():
    task = small_task()
    x, y, low = task.train.x.copy(), task.train.y.copy(), int(task.train.sizes[:3].sum())
    own = slice(low, low + int(task.train.sizes[3]))
    x[own] *= np.float32(1e30)
    y[own] = np.arange(len(y[own])) % CLASSES  # nothing that a model could learn
    train = ClientData(x, y, task.train.sizes)
    return dataclasses.replace(task, train=train)


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.filterwarnings("ignore:(overflow|invalid)")
def test_one_explosive_client_does_not_end_a_guarded_run(torch):
    """It is left out; without a guard it ends the run when it is drawn, not when it is measured."""
    task, local = task_with_an_explosive_client(), LocalSGD(0.1, batch_size=8, epochs=3)
    engine = LinearEngine(task, local)
    if torch:
        pytest.importorskip("torch")
        from kvib.sim.engines.torch_engine import TorchEngine

        engine = TorchEngine(task, local, batched=True)

    def played(guard, sketch):
        sampler = kvib.Sampler(
            kvib.Uniform(), task.weights, 4, kvib.pivotal, seed=1, guard=guard, sketch=sketch
        )
        simulation = Simulation(task, engine, sampler, local, exact_every=1)
        for _ in simulation.run(rounds=20):
            pass
        return simulation.records

    with pytest.warns(UserWarning, match="had not answered: 3;"):
        records = played(kvib.Guard(), 4)
    hit = [r for r in records if 3 in r.ids]
    assert len(records) == 20
    assert 0 < len(hit) < 20
    for r in records:
        assert np.isnan(r.norms).tolist() == (r.ids == 3).tolist()
        assert np.isfinite([r.loss, r.step_norm]).all()
        assert math.isnan(r.estimated_variance) == (3 in r.ids)  # an answer is missing
        assert math.isnan(r.variance)
    assert all(0 < r.cut < math.inf for r in hit)
    with pytest.raises(DivergedError, match=f"client 3 diverged in round {hit[0].round}"):
        played(None, 0)


def test_the_last_good_checkpoint_is_kept(tmp_path):
    """A momentum above 1 grows until the clients' outputs leave the numbers."""
    options = {"task": small_task(scale=1e6), "server": ServerSGD(momentum=1e2)}
    simulation = new(**options, evaluate_every=0)
    with pytest.raises(DivergedError, match=r"client \d+ diverged in round \d+"):
        list(simulation.run(rounds=60, folder=tmp_path, checkpoint_seconds=0))
    again = new(**options, evaluate_every=0)
    again.load(tmp_path / "checkpoint.npz")
    assert 2 < len(again.records) <= len(simulation.records)
    assert np.isfinite(again.model).all()
    assert all(np.isfinite(r.step_norm) for r in again.records)


@pytest.mark.parametrize("evaluate_every", [0, 1])
def test_a_step_out_of_the_numbers_is_not_saved(tmp_path, evaluate_every):
    """Clients are fine, the step of the server is not."""
    server = ServerSGD(momentum=1e6)
    simulation = new(server=server, evaluate_every=evaluate_every)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(DivergedError, match=r"round \d+"),
    ):
        list(simulation.run(rounds=30, folder=tmp_path, checkpoint_seconds=0))
    again = new(server=server, evaluate_every=evaluate_every)
    again.load(tmp_path / "checkpoint.npz")
    assert len(again.records) > 2
    assert np.isfinite(again.model).all()

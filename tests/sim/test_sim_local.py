"""Who trains on what, in which order: decided by seed, round and client alone."""

import numpy as np
import pytest

from kvib.sim import ClientData, LocalSGD
from kvib.sim.local import local_batches

SIZES = np.array([7, 1, 12, 3, 5])
DATA = ClientData(np.zeros((28, 2), np.float32), np.zeros(28, int), SIZES)


def batches_of(batches, c):
    """The batches of the c-th client of a plan, as lists."""
    steps = range(batches.first[c], batches.first[c + 1])
    begin, length = batches.starts, batches.lengths
    return [batches.samples[begin[s] : begin[s] + length[s]].tolist() for s in steps]


def planned(ids, local, seed=0, round=0):
    batches = local_batches(DATA, np.array(ids), local, seed, round)
    return {int(i): batches_of(batches, c) for c, i in enumerate(ids)}


EPOCHS = LocalSGD(0.1, batch_size=4, epochs=3)


@pytest.mark.parametrize("local", [EPOCHS, LocalSGD(0.1, batch_size=3, steps=5)])
def test_a_client_does_not_depend_on_who_else_was_drawn(local):
    everybody = planned([0, 1, 2, 3, 4], local)
    for ids in ([2], [0, 2], [2, 3, 4], [4, 1]):
        for i, batches in planned(ids, local).items():
            assert batches == everybody[i]


def test_it_depends_on_no_other_client_even_in_a_large_cohort():
    n = 3000
    data = ClientData(np.zeros((4 * n, 1), np.float32), np.zeros(4 * n, int), np.full(n, 4))
    local = LocalSGD(0.1, batch_size=3, epochs=2)
    all_of_them = local_batches(data, np.arange(n), local, 1, 1)
    for i in (0, 17, n - 1):
        assert batches_of(local_batches(data, np.array([i]), local, 1, 1), 0) == batches_of(
            all_of_them, i
        )


def test_every_pass_is_a_permutation():
    for i, batches in planned([0, 1, 2, 3, 4], EPOCHS).items():
        n, begin = int(SIZES[i]), int(SIZES[:i].sum())
        per_pass = -(-n // 4)
        assert len(batches) == 3 * per_pass
        for e in range(3):
            own = batches[e * per_pass : (e + 1) * per_pass]
            assert [len(b) for b in own] == [4] * (n // 4) + [n % 4] * (n % 4 > 0)
            assert sorted(k for batch in own for k in batch) == list(range(begin, begin + n))


def test_orders_differ():
    first = planned([2], EPOCHS)[2]
    assert first[:3] != first[3:6] != first[6:]  # between epochs
    assert planned([2], EPOCHS, round=1)[2] != first
    assert planned([2], EPOCHS, seed=1)[2] != first
    assert planned([2], EPOCHS, seed=1)[2] != planned([2], EPOCHS, round=1)[2]
    assert planned([2], EPOCHS)[2] == first
    relative = [[s - int(SIZES[:i].sum()) for s in planned([i], EPOCHS)[i][0]] for i in (0, 2)]
    assert relative[0] != relative[1]  # between clients


def test_orders_are_uniform():
    """Chi-square over the 6 orders of 3 samples: 5 degrees of freedom, rate 1e-6 at 38."""
    local = LocalSGD(0.1, batch_size=3)
    data = ClientData(np.zeros((6000, 1), np.float32), np.zeros(6000, int), np.full(2000, 3))
    batches = local_batches(data, np.arange(2000), local, 0, 0)
    orders = (batches.samples.reshape(-1, 3) % 3) @ [9, 3, 1]
    seen = np.unique(orders, return_counts=True)[1]
    assert len(seen) == 6
    assert ((seen - 2000 / 6) ** 2 / (2000 / 6)).sum() < 38


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_steps_cut_the_last_pass(steps):
    short = planned([0, 1, 2, 3, 4], LocalSGD(0.1, batch_size=4, steps=steps))
    long = planned([0, 1, 2, 3, 4], LocalSGD(0.1, batch_size=4, epochs=7))
    for i in short:
        assert short[i] == long[i][:steps]
    counts = local_batches(DATA, np.arange(5), LocalSGD(0.1, batch_size=4, steps=steps), 0, 0).steps
    assert counts.tolist() == [steps] * 5


def test_a_batch_larger_than_any_client():
    for i, batches in planned([0, 1, 2], LocalSGD(0.1, batch_size=999, epochs=2)).items():
        assert [len(b) for b in batches] == [SIZES[i]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0}, "learning_rate=0 is not a positive number"),
        ({"learning_rate": np.nan}, "learning_rate=nan"),
        ({"learning_rate": np.inf}, "learning_rate=inf"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"steps": 0}, "steps=0 .* leave it out"),
        ({"prox": -0.1}, "prox=-0.1"),
        ({"prox": np.nan}, "prox=nan"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"epochs": 1.5}, "epochs=1.5"),
    ],
)
def test_bad_local_work(options, message):
    with pytest.raises(ValueError, match=message):
        LocalSGD(**{"learning_rate": 0.1, "batch_size": 4, **options})

"""Devices ask whether they take part: coins that need no list, no order and no single server."""

import itertools
import json
import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.stats import chi2

import kvib
from kvib.clients.check_in import coin
from members import LASTING

KEYS = [f"phone {i}" if i % 2 else i for i in range(24)]
WEIGHTS = np.random.default_rng(0).lognormal(0, 1.5, len(KEYS))


def new(policy=None, **options):
    options = {"seed": 12345678901234567890, "keys": KEYS} | options
    return kvib.Sampler(policy or kvib.KVib(), WEIGHTS, 6, kvib.independent, **options)


def checked_in(sampler, keys=None):
    """A round in which these clients ask; the cohort."""
    asking = sampler.keys(range(len(sampler))) if keys is None else keys
    return sampler.gather([key for key in asking if sampler.admit(key)])


def play(sampler, rounds=3):
    for _ in range(rounds):
        cohort = checked_in(sampler)
        norms = np.random.default_rng([7, cohort.round]).lognormal(0, 1, len(sampler))
        sampler.update(cohort, norms[cohort.ids])


def answers(sampler, keys=KEYS):
    return [(bool(a), a.coefficient) for a in map(sampler.admit, keys)]


def test_the_law_of_independent_coins():
    """Clients, pairs of clients, and one client in two rounds: chi-square tests with a false-alarm
    rate of 1e-6, and no deviation of 5.5 standard errors, 4e-8 for each of 300."""
    rounds, weights = 3000, np.linspace(1, 4, len(KEYS))
    sampler = kvib.Sampler(kvib.BySize(), weights, 12, kvib.independent, keys=KEYS, seed=1)
    p, drawn = sampler.probabilities(), np.zeros((rounds, len(KEYS)))
    for t in range(rounds):
        drawn[t, checked_in(sampler).ids] = 1
    some = np.flatnonzero((p > 0.2) & (p < 0.9))  # where counts are close to normal
    z = (drawn - p)[:, some] / np.sqrt(p * (1 - p))[some]  # mean 0, variance 1, independent
    pairs = [z[:, i] * z[:, j] for i, j in itertools.combinations(range(len(some)), 2)]
    for terms in (z, np.array(pairs).T, z[1:] * z[:-1]):
        sums = terms.sum(axis=0) / np.sqrt(len(terms))
        assert (sums**2).sum() < chi2.isf(1e-6, len(sums))
        assert np.abs(sums).max() < 5.5


def test_coins_are_uniform():
    """Kolmogorov–Smirnov at a false-alarm rate of 1e-6: √n·D < 2.7."""
    coins = np.sort([coin(1, 2, key) for key in range(20_000)])
    steps = np.arange(len(coins)) / len(coins)
    assert np.abs(coins - steps).max() * np.sqrt(len(coins)) < 2.7
    assert coins[0] >= 0
    assert coins[-1] < 1


def test_a_coin_is_made_of_seed_round_and_key():
    tossed = {
        coin(seed, round, key)
        for seed in (0, 1, 10)
        for round in (0, 1, 10)
        for key in ("1", 1, "01", "", "n1", -1, "\ud800")
    }
    assert len(tossed) == 3 * 3 * 7
    assert coin(0, 0, "ann") == 0.7385541453100427  # the same on every machine, for ever


@pytest.mark.parametrize("policy", [*LASTING, kvib.Avare(), kvib.OSMD()], ids=repr)
def test_probabilities_and_coefficients(policy):
    response = np.linspace(0.3, 1, len(KEYS))
    sampler = new(policy, response=response, availability=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play(sampler)
    twin = kvib.Sampler.unpacked(sampler.packed())
    p = twin.probabilities(available=range(len(KEYS)))
    here = [key for key in KEYS if sampler.admit(key)]
    cohort = sampler.gather(here)
    assert sampler.keys(cohort.ids) == sorted(here, key=KEYS.index)
    assert cohort.expected == pytest.approx(p[cohort.ids], rel=1e-12)
    assert cohort.answer_probability == pytest.approx(0.5 * response[cohort.ids])
    told = [twin.admit(key).coefficient for key in sampler.keys(cohort.ids)]
    assert told == pytest.approx(cohort.coefficients, rel=1e-14)
    assert told == pytest.approx(
        sampler.weights[cohort.ids] / (cohort.answer_probability * p[cohort.ids])
    )
    assert {twin.admit(key) for key in set(KEYS) - set(here)} <= {(False, 0.0)}
    assert cohort.guarantee == "unbiased"
    assert (cohort.budget, cohort.requested) == pytest.approx((6, 6))
    assert cohort.pairs().uncorrelated


def test_the_answer_does_not_depend_on_the_order():
    sampler = new()
    play(sampler)
    first = dict(zip(KEYS, answers(sampler), strict=True))
    for k in range(5):
        order = [KEYS[i] for i in np.random.default_rng(k).permutation(len(KEYS))]
        assert answers(sampler, order) == [first[key] for key in order]
    assert 0 < sum(admitted for admitted, _ in first.values()) < len(KEYS)
    assert sampler.admit(np.int64(0)) == sampler.admit(0)
    assert sampler.admit(np.str_("phone 1")) == sampler.admit("phone 1")


def test_numbers_and_their_names_are_different_clients():
    keys = [str(i) if i % 2 else i // 2 * 2 + 1 for i in range(2000)]  # 1, "1", 3, "3", …
    sampler = kvib.Sampler(kvib.Uniform(), np.ones(2000), 1000, kvib.independent, keys=keys)
    admitted = np.array([bool(sampler.admit(key)) for key in keys]).reshape(-1, 2)
    alike = np.count_nonzero(admitted[:, 0] == admitted[:, 1])
    assert abs(alike - 500) < 5.5 * np.sqrt(250)


def test_numpy_keys_are_the_same_clients_after_loading():
    """An integer is that integer, whoever gave it and whatever file it went through."""
    sampler = kvib.Sampler(kvib.BySize(), WEIGHTS, 6, kvib.independent, keys=np.arange(24))
    loaded = kvib.Sampler.unpacked(sampler.packed())
    assert answers(sampler, range(24)) == answers(loaded, np.arange(24))
    assert checked_in(sampler).ids.tolist() == checked_in(loaded).ids.tolist()


SERVER = """
import json, sys, kvib
sampler = kvib.Sampler.load(sys.argv[1])
keys = json.loads(sys.argv[2])
print(json.dumps([list(sampler.admit(key)) for key in keys]))
"""


@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.Forecast(), kvib.Avare()], ids=repr)
def test_another_server_answers_alike(policy, tmp_path):
    """A process of its own, which loaded the same state, also one in the middle of a round."""
    sampler = new(policy, cool_down=1)
    play(sampler)
    told = []
    for begun in (False, True):
        if begun:
            answers(sampler, KEYS[:5])
        sampler.save(tmp_path / "state.npz")
        other = [sys.executable, "-c", SERVER, tmp_path / "state.npz", json.dumps(KEYS[::-1])]
        done = subprocess.run(other, capture_output=True, text=True, check=True)
        told.append([tuple(answer) for answer in json.loads(done.stdout)][::-1])
    assert told[0] == told[1] == answers(sampler)


def test_gather():
    sampler = new()
    here = [key for key in KEYS if sampler.admit(key)]
    refused = [key for key in KEYS if key not in here]
    with pytest.raises(ValueError, match=r"was not admitted to round 0; gather only"):
        sampler.gather([*here, refused[0]])
    with pytest.raises(ValueError, match="no client 'nobody'"):
        sampler.gather([*here, "nobody"])
    cohort = sampler.gather([*here[1:], here[1]])  # one never came back, one is listed twice
    assert sampler.keys(cohort.ids) == here[1:]
    assert sampler.round == 1
    sampler.update(cohort, np.ones(len(cohort)))
    assert sampler.gather([]).ids.tolist() == []  # nobody asked
    assert sampler.round == 2
    other = checked_in(sampler)
    with pytest.raises(ValueError, match="was updated before"):
        sampler.update(cohort, np.ones(len(cohort)))
    sampler.update(other, np.ones(len(other)))


def test_gathering_by_mistake_opens_nothing():
    sampler, twin = new(), new()
    refused = [key for key in KEYS if not twin.admit(key)]
    with pytest.raises(ValueError, match="was not admitted"):
        sampler.gather(refused)
    sampler.draw()


def test_silence_after_admission():
    sampler = new(response=kvib.EstimatedRate())
    for _ in range(5):
        cohort = checked_in(sampler)
        sampler.update(cohort, np.where(cohort.ids % 3, 1.0, np.nan))
    assert sampler.draw().guarantee == "consistent"


def test_who_waits_is_gone_or_unknown():
    for policy in (kvib.KVib(), kvib.Avare()):
        sampler = new(policy, cool_down=2)
        cohort = checked_in(sampler)
        waiting = sampler.keys(cohort.ids)
        assert not any(map(sampler.admit, waiting))
        with pytest.raises(ValueError, match="was not admitted"):
            sampler.gather(waiting[:1])
        with pytest.raises(ValueError, match="no client 'nobody'; it has to join"):
            sampler.admit("nobody")
        with pytest.raises(ValueError, match="neither a string nor an integer"):
            sampler.admit(True)
        checked_in(sampler, [])
        gone = next(key for key in KEYS if key not in waiting)
        sampler.leave(gone)
        assert not sampler.admit(gone)
        with pytest.raises(ValueError, match="was not admitted"):
            sampler.gather([gone])
        checked_in(sampler, [])
        assert {len(checked_in(sampler, waiting)) > 0 for _ in range(60)} == {True, False}


@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.Avare()], ids=repr)
@pytest.mark.filterwarnings("ignore:cool_down")
def test_all_clients_wait(policy):
    sampler = kvib.Sampler(policy, [1, 1], 2, kvib.independent, keys=["a", "b"], cool_down=1)
    assert sampler.admit("a").coefficient == 0.5
    assert len(sampler.gather(["a", "b"])) == 2
    assert not sampler.admit("a")
    assert len(sampler.gather([])) == 0
    assert sampler.admit("a")


@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.Avare()], ids=repr)
def test_a_budget_beyond_those_who_are_left(policy):
    sampler = kvib.Sampler(policy, [1, 2, 3], 2.5, kvib.independent)
    sampler.leave([0, 1])
    assert sampler.admit(2).coefficient == 1.0
    cohort = sampler.gather([2])
    assert (cohort.budget, cohort.requested) == pytest.approx((1, 2.5))


@pytest.mark.parametrize("learned", [True, False])
def test_over_selection(learned):
    response = kvib.EstimatedRate() if learned else 0.5
    sampler = new(kvib.Uniform(), response=response, over_select=True)
    if learned:
        cohort = sampler.draw()
        sampler.update(cohort, np.where(np.arange(len(cohort)) % 2, 1.0, np.nan))
    p = sampler.probabilities()
    assert p.sum() > 8
    cohort = checked_in(sampler)
    assert cohort.expected == pytest.approx(p[cohort.ids])
    assert cohort.budget == pytest.approx(p.sum())
    assert cohort.requested == pytest.approx(p.sum() if learned else 6)


def test_costs():
    cost = np.linspace(1, 4, len(KEYS))
    sampler = new(cost=cost)
    p = sampler.probabilities()
    cohort = checked_in(sampler)
    assert cohort.expected.tolist() == p[cohort.ids].tolist()
    assert cost @ p == pytest.approx(6)


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.ordered, kvib.with_replacement], ids=repr)
def test_only_independent_coins_can_be_tossed_alone(procedure):
    sampler = kvib.Sampler(kvib.KVib(), WEIGHTS, 6, procedure)
    with pytest.raises(ValueError, match=r"make the sampler with procedure=kvib\.independent"):
        sampler.admit(0)
    with pytest.raises(ValueError, match="only independent coins"):
        sampler.gather([])
    sampler.draw()


def test_availability_cannot_be_learned_from_check_ins():
    sampler = new(availability=kvib.EstimatedRate())
    with pytest.raises(ValueError, match="who does not ask is not known"):
        sampler.admit(KEYS[0])


def test_policies_that_need_norms_cannot_be_asked():
    with pytest.raises(ValueError, match="norm"):
        new(kvib.Optimal()).admit(KEYS[0])


def while_open(sampler, before):
    return {
        "draw": lambda: sampler.draw(),
        "update": lambda: sampler.update(before, np.ones(len(before))),
        "finish": lambda: sampler.step(before, np.ones((len(before), 2))),
        "join": lambda: sampler.join([1.0], ["new"]),
        "leave": lambda: sampler.leave(KEYS[:1]),
        "reweigh": lambda: sampler.reweigh(KEYS[:1], [1.0]),
    }


@pytest.mark.parametrize("durable", [False, True])
def test_nothing_else_happens_while_clients_check_in(durable, tmp_path):
    options = {"keys": KEYS, "seed": 5}
    arguments = (kvib.KVib(), WEIGHTS, 6, kvib.independent)
    if durable:
        sampler = kvib.journalled(tmp_path / "run", *arguments, **options)
    else:
        sampler = kvib.Sampler(*arguments, **options)
    before = sampler.draw()
    first = answers(sampler)
    for name, call in while_open(sampler, before).items():
        with pytest.raises(ValueError, match=rf"is open for check-in.*gather\(keys\).*{name}"):
            call()
        assert answers(sampler) == first
    sampler.probabilities()
    checked_in(sampler)
    for call in list(while_open(sampler, before).values())[1:2]:
        call()
    sampler.draw()


def test_the_seed_is_part_of_the_answer():
    """Another seed, another fleet: who knows the rule but not the seed knows nothing."""
    admitted = np.array([[bool(new(seed=s).admit(key)) for key in KEYS] for s in range(40)])
    assert (admitted.any(axis=0) & ~admitted.all(axis=0)).sum() > len(KEYS) // 2
    assert len({tuple(row) for row in admitted.tolist()}) > 30


KILLED = """
import os, signal, sys, json
import kvib
sampler = kvib.journalled(sys.argv[1])
print(json.dumps([list(sampler.admit(key)) for key in json.loads(sys.argv[2])]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("policy", [kvib.KVib(), kvib.Forecast()], ids=repr)
def test_killed_while_clients_check_in(policy, tmp_path):
    """Whoever was admitted stays admitted, and late feedback cannot change that."""
    path = tmp_path / "run"
    arguments = (policy, WEIGHTS, 6, kvib.independent)
    with kvib.journalled(path, *arguments, keys=KEYS, cool_down=1, snapshot_every=2) as sampler:
        play(sampler, 3)
        late = sampler.draw()
    dying = [sys.executable, "-c", KILLED, path, json.dumps(KEYS[:9])]
    done = subprocess.run(dying, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = [tuple(answer) for answer in json.loads(done.stdout)]
    with kvib.journalled(path) as sampler:
        with pytest.raises(ValueError, match="open for check-in"):
            sampler.update(late, np.ones(len(late)))
        assert answers(sampler, KEYS[:9]) == told
        cohort = checked_in(sampler)
        coefficients = dict(zip(sampler.keys(cohort.ids), cohort.coefficients, strict=True))
        for key, (admitted, coefficient) in zip(KEYS, told, strict=False):
            assert (key in coefficients) == admitted
            assert not admitted or coefficients[key] == pytest.approx(coefficient, rel=1e-14)
        sampler.update(late, np.ones(len(late)))
    with kvib.journalled(path) as sampler:
        assert [c.ids.tolist() for c in sampler.outstanding()] == [cohort.ids.tolist()]


def test_a_closed_journal_admits_no_client(tmp_path):
    sampler = kvib.journalled(tmp_path / "run", kvib.KVib(), WEIGHTS, 6)
    sampler.admit(0)
    sampler.close()
    with pytest.raises(OSError, match="has stopped"):
        sampler.admit(0)
    assert os.path.exists(tmp_path / "run")


def test_a_million_clients_are_asked_one_by_one():
    """The first answer of a round makes the threshold, the others cost a hash: no list of N."""
    sampler = kvib.Sampler(kvib.KVib(), np.ones(1_000_000), 1000, kvib.independent)
    admitted = [key for key in range(0, 1_000_000, 500) if sampler.admit(key)]
    assert len(admitted) < 20  # 2 on average
    cohort = sampler.gather(admitted)
    assert cohort.expected == pytest.approx(np.full(len(cohort), 1e-3))

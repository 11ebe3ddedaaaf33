"""A journal gets another policy, which learns from the journal's past."""

import dataclasses
import logging
import os
import shutil
import signal
import sqlite3
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from journal_crash import arrays_of, assert_same, kill_before

import kvib
from kvib.estimators.guard import Guard
from kvib.files import storage
from kvib.integrations.kit import (
    EstimateAvailability,
    Fleet,
    FleetOptions,
    Introduction,
    default_guard,
)
from kvib.journal import Switch, journalled, read
from kvib.journal.events import KINDS
from kvib.journal.opening import opened
from kvib.journal.recorder import Recorder
from kvib.journal.relearning import at_the_beginning
from kvib.replay.members import Members
from kvib.replay.rivals import Follower
from kvib.sampler.switching import Learned
from places import FIXTURES

N = 12
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)


class Seen(NamedTuple):
    seen: np.ndarray


@dataclass(frozen=True)
class Own(kvib.Policy[Seen]):
    """A user's policy."""

    power: float = 1.0
    procedure: ClassVar = kvib.pivotal
    per_client: ClassVar = ("seen",)

    def start(self, setting):
        return Seen(np.zeros(len(setting.weights)))

    def scores(self, state, ids):
        return 1 / (1 + state.seen[ids]) ** self.power

    def observe(self, state, cohort, feedback):
        state.seen[cohort.ids] += cohort.count
        return state


def begin(path, policy=None, procedure=None, **options):
    options = {"seed": 5, "response": kvib.EstimatedRate()} | options
    return journalled(path, policy or kvib.KVib(), WEIGHTS, 4, procedure, **options)


def play(sampler, rounds, late=True):
    """Some answers are missing, some come late, and some rounds are given up."""
    for _ in range(rounds):
        rng = np.random.default_rng([3, sampler.round])
        norms = rng.lognormal(0, 1, 40).astype(np.float32)
        cohort = sampler.draw(**({"norms": norms[:N]} if sampler.policy.needs_norms else {}))
        norms = norms[cohort.ids]
        norms[rng.random(len(norms)) < 0.1] = np.nan
        if cohort.round % 5 == 2:
            sampler.give_up(cohort)
        elif not late or cohort.round % 4 != 3:
            sampler.update(cohort, norms)
        waiting = sampler.outstanding() if late else []
        if len(waiting) == 2:  # the older one
            sampler.update(waiting[0], np.ones(len(waiting[0])))


def state(learner, clients=N):
    return learner.packed(clients)


def following(policy, sampler):
    """The policy as `kvib.replay` lets it follow the rounds of a sampler."""
    nothing = np.empty((N, 0))
    return Follower(policy, Members(sampler.weights, None, 4.0, sampler.procedure.cap, nothing))


def assert_states(one, other, exactly):
    assert set(one) == set(other)
    for name, array in one.items():
        if exactly:
            assert np.array_equal(array, other[name], equal_nan=True), name
        else:
            assert array == pytest.approx(other[name], rel=1e-6, nan_ok=True), name


WAYS = [
    (kvib.KVib(), None, kvib.Forecast(), None),
    (kvib.Forecast(), None, kvib.KVib(), None),
    (kvib.Forecast(), kvib.pivotal, kvib.KVib(mix=0.3, by_weight=True), kvib.ordered),
    (kvib.Uniform(), None, kvib.Vrb(), None),
    (kvib.Vrb(), None, kvib.Avare(), kvib.independent),
    (kvib.Optimal(), None, kvib.OSMD(), None),
    (kvib.Mabs(), kvib.conditional_poisson, Own(), None),
    (Own(), None, kvib.Mabs(), None),
]
IDS = [f"{old!r}-{new!r}" for old, _, new, _ in WAYS]
ways = pytest.mark.parametrize(("old", "drawn", "new", "procedure"), WAYS, ids=IDS)


def reopened(path, policy):
    return journalled(path, policy if isinstance(policy, Own) else None)


@ways
@pytest.mark.parametrize("every", [2, 1000])
def test_it_knows_what_a_follower_of_the_history_knows(tmp_path, old, drawn, new, procedure, every):
    """Bit for bit: of norms, and of probabilities in single precision, as the file has them."""
    path = tmp_path / "a"
    with begin(path, old, drawn, snapshot_every=every) as sampler:
        play(sampler, 15)
        rounds = [one for one in read(path).rounds() if one.answered]
        learned = sampler.switch(new, procedure)
        assert learned == Learned(rounds=len(rounds), missing=0)
        follower = following(new, sampler)
        for one in sorted(rounds, key=lambda one: one.order[1]):
            answered = ~np.isnan(one.norms)
            answers = one.cohort.take(answered)
            follower.learn(answers, one.norms[answered])
        assert_states(state(sampler.state.learner), state(follower.learner), exactly=True)


@ways
def test_it_knows_what_it_would_know_of_the_cohorts_themselves(
    tmp_path, old, drawn, new, procedure
):
    """To single precision: the file has no more of expected counts."""
    path, cohorts = tmp_path / "a", []
    with begin(path, old, drawn, response=1.0) as sampler:
        for _ in range(8):
            known = {"norms": np.ones(N)} if old.needs_norms else {}
            cohort = sampler.draw(**known)
            cohorts.append(cohort)
            sampler.update(cohort, 1 + cohort.ids % 4)
        sampler.switch(new, procedure)
        follower = following(new, sampler)
        for cohort in cohorts:
            follower.learn(cohort, 1.0 + cohort.ids % 4)
        assert_states(state(sampler.state.learner), state(follower.learner), exactly=False)


@ways
def test_resumed_equals_straight(tmp_path, old, drawn, new, procedure):
    """Closed after every round, before and after the switch; whatever snapshots were taken."""
    straight = begin(tmp_path / "a", old, drawn)
    begin(tmp_path / "b", old, drawn, snapshot_every=2).close()
    play(straight, 9)
    for _ in range(9):
        with reopened(tmp_path / "b", old) as sampler:
            play(sampler, 1)
    straight.switch(new, procedure)
    with reopened(tmp_path / "b", old) as sampler:
        sampler.switch(new, procedure)
    for _ in range(6):
        play(straight, 1)
        with reopened(tmp_path / "b", new) as sampler:
            play(sampler, 1)
    with reopened(tmp_path / "b", new) as sampler:
        assert_same(sampler, straight)
        assert [c.round for c in sampler.outstanding()] == [c.round for c in straight.outstanding()]
    straight.close()


def test_all_else_stays(tmp_path):
    options = {"guard": Guard(), "sketch": 3, "cost": np.linspace(1, 2, N), "cool_down": 1}
    with begin(tmp_path / "a", **options) as sampler:
        rng = np.random.default_rng(0)
        for _ in range(6):
            cohort = sampler.draw()
            sampler.step(cohort, rng.normal(size=(len(cohort), 5)))
        before, last = sampler.packed(), sampler.recorder.file.last
        sampler.switch(kvib.Vrb(), kvib.balanced)
        after = sampler.packed()
        assert sampler.recorder.file.last == last + 1
        ours = ("header", "state.", "index.")
        for name in set(before) | set(after):
            if not name.startswith(ours):
                assert np.array_equal(before[name], after[name], equal_nan=True), name
        (was, now) = (storage.about(a["header"], "sampler") for a in (before, after))
        assert {k for k in was if was[k] != now[k]} == {"policy", "procedure"}


CHANGES = ("join", "leave", "reweigh", "return")


def change(sampler, name):
    if name == "join":
        sampler.join([0.5, 1.5])
    if name == "leave":
        sampler.leave([1, 4])
    if name == "reweigh":
        sampler.reweigh([2, 4], [3.0, 0.5])  # one who is away, too
    if name == "return":
        sampler.join([2.5], keys=[1])


def relived(path, way, begun):
    """The oracle: a sampler with the new policy from the first round on, to which all happened."""
    file = kvib.journal.file.JournalFile(path)
    arrays = file.arrays("now")
    about = storage.about(arrays["header"], "sampler") | {"policy": None}
    sampler = at_the_beginning(about, arrays, begun, *way)
    recorder = Recorder(sampler, file, begun, KINDS, relearns=True)
    for event in file.events_after(0):
        recorder.replay(event)
    file.close()
    return sampler


@pytest.mark.parametrize(
    ("old", "new"),
    [(kvib.KVib(), kvib.Forecast()), (kvib.Forecast(), kvib.KVib()), (kvib.KVib(), kvib.Vrb())],
    ids=repr,
)
def test_clients_come_and_go_before_and_after(tmp_path, old, new):
    """To single precision, since it may draw a recorded cohort again and know it better."""
    path = tmp_path / "a"
    with begin(path, old, snapshot_every=3) as sampler:
        begun = sampler.weights
        for name in CHANGES:
            play(sampler, 4)
            change(sampler, name)
        play(sampler, 3)
        oracle = relived(path, (new, new.procedure), begun)
        sampler.switch(new)
        clients = len(sampler)
        assert clients == N + 2
        assert_states(
            state(sampler.state.learner, clients), state(oracle.state.learner, clients), False
        )
        assert sampler.probabilities() == pytest.approx(oracle.probabilities(), rel=1e-6)
        for name in CHANGES:
            if name != "return":
                sampler.join([1.0])
            play(sampler, 2)
        left = image_of(sampler)
    with journalled(path) as sampler:
        assert_equal(image_of(sampler), left)
        sampler.switch(old)
        assert sampler.probabilities().sum() == pytest.approx(4)


def test_keys(tmp_path):
    path, names = tmp_path / "a", [f"client {i}" for i in range(N)]
    with begin(path, keys=names) as sampler:
        play(sampler, 3)
        begun = sampler.weights
        sampler.leave(["client 3"])
        sampler.join([1.0, 2.0], ["client 3", "new"])
        sampler.reweigh("new", 4.0)
        play(sampler, 3)
        oracle = relived(path, (kvib.Forecast(), kvib.pivotal), begun)
        sampler.switch(kvib.Forecast())
        assert_states(
            state(sampler.state.learner, N + 1), state(oracle.state.learner, N + 1), False
        )


def image_of(sampler):
    return arrays_of(sampler)


def assert_equal(one, other):
    assert one[0] == other[0]
    for name, array in one[1].items():
        assert np.array_equal(array, other[1][name], equal_nan=array.dtype.kind == "f"), name


def test_policies_that_take_no_changes_are_refused(tmp_path):
    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 3)
        sampler.join([1.0])
        before, last = image_of(sampler), sampler.recorder.file.last
        for policy, why in (
            (kvib.OSMD(), "OSMD does not take clients that join later"),
            (kvib.Optimal(), "Optimal must know every client's norm"),
            (kvib.AOCS(), "AOCS must know every client's norm"),
            ("Vrb", "is not a policy"),
        ):
            with pytest.raises(ValueError, match=why):
                sampler.switch(policy)
        sampler.admit(0)
        with pytest.raises(ValueError, match="open for check-in"):
            sampler.switch(kvib.Vrb())
        sampler.gather([])
        assert (sampler.recorder.file.last, sampler.policy) == (last + 2, kvib.KVib())
        assert before[0]["policy"] == image_of(sampler)[0]["policy"]
        play(sampler, 2)


def test_outstanding_cohorts(tmp_path):
    """They keep the second moments of the procedure that drew them, and no others."""
    path = tmp_path / "a"
    with begin(path, response=1.0) as sampler:
        cohorts = [sampler.draw() for _ in range(3)]
        sampler.switch(kvib.Forecast())
        cohorts += [sampler.draw() for _ in range(2)]
        sampler.switch(kvib.Vrb(), kvib.independent)
        cohorts.append(sampler.draw())
        for _ in range(2):  # and once more after opening it again
            waiting = sampler.outstanding()
            assert [repr(one) for one in waiting] == [repr(one) for one in cohorts]
            assert [one.pairs is not None for one in waiting] == [True] * 3 + [False] * 2 + [True]
            sampler.close()
            sampler = journalled(path)
        updates = [np.ones((len(cohort), 1)) for cohort in cohorts]
        for k in (4, 1, 5):
            sampler.update(cohorts[k], updates[k].ravel())
            sampler.update(cohorts[k], updates[k].ravel())  # a repeat
        sampler.give_up(cohorts[0])
        assert [one.round for one in sampler.outstanding()] == [2, 3]
        table = read(path).table()
        for k in (1, 5):
            value = kvib.estimated_variance(cohorts[k], updates[k]).value
            assert table.variance[k] == pytest.approx(value)
        assert np.isnan(table.variance[[0, 2, 3, 4]]).all()
        known = [one.cohort.pairs is not None for one in read(path).rounds()]
        assert known == [True] * 3 + [False] * 2 + [True]
        assert (sampler.state.learned.omega > 0).sum() == len(
            np.union1d(np.union1d(cohorts[4].ids, cohorts[1].ids), cohorts[5].ids)
        )
        sampler.close()


def test_an_equal_policy_does_nothing(tmp_path):
    with begin(tmp_path / "a", procedure=kvib.pivotal) as sampler:
        play(sampler, 4)
        learner, last = sampler.state.learner, sampler.recorder.file.last
        assert sampler.switch(kvib.KVib()) == Learned(0, 0)
        assert sampler.switch(kvib.KVib(), kvib.pivotal) == Learned(0, 0)
        assert (sampler.state.learner, sampler.recorder.file.last) == (learner, last)
    assert read(tmp_path / "a").switches() == []


def test_the_procedure_alone(tmp_path):
    with begin(tmp_path / "a") as sampler:
        play(sampler, 4)
        sampler.switch(kvib.KVib(), kvib.pivotal)
    with journalled(tmp_path / "a", kvib.KVib(), procedure=kvib.pivotal) as sampler:
        assert sampler.procedure is kvib.pivotal
    with pytest.raises(
        ValueError, match="from procedure independent before round 4: it has procedure pivotal, not"
    ):
        journalled(tmp_path / "a", procedure=kvib.independent)


def test_rounds_that_were_removed(tmp_path):
    """It learns from those that are left, for the clients and the weights of today."""
    path = tmp_path / "a"
    with begin(path, snapshot_every=3, keep=6) as sampler:
        for name in CHANGES:
            play(sampler, 5)
            change(sampler, name)
        late = sampler.draw()
        play(sampler, 5, late=False)
        sampler.update(late, np.ones(len(late)))  # kept, other than its draw
        play(sampler, 4, late=False)
        assert late.round < read(path).about.removed < late.round + 6
        rounds = [one for one in read(path).rounds() if one.answered]
        heard = int(np.isfinite(read(path).table().answered).sum())
        learned = sampler.switch(kvib.KVib(mix=0.5, gamma=1.0))
        assert learned == Learned(len(rounds), heard - len(rounds))
        assert learned.missing > 0
        omega = np.zeros(len(sampler))
        for one in rounds:
            answered = ~np.isnan(one.norms)
            its = one.cohort.take(answered)
            pi = sampler.state.population.raw[its.ids] * one.norms[answered]
            q = its.answer_probability * its.availability
            omega[its.ids] += its.count * (pi / np.sqrt(q)) ** 2 / its.expected_answers
        ratio = sampler.state.learned.ratio
        assert sampler.state.learned.omega[: len(omega)] == pytest.approx(omega, rel=1e-6)
        assert ratio == len(sampler.state.population) / 4
        play(sampler, 3)
        left = image_of(sampler)
    [switch] = read(path).switches()
    assert (switch.rounds, switch.missing) == learned
    assert str(switch).endswith(f"and not from {learned.missing} that were removed")
    with journalled(path) as sampler:
        assert_equal(image_of(sampler), left)


# What is said of it


def test_the_policy_is_compared_first(tmp_path):
    """Others may follow from it, and would be named instead."""
    path = tmp_path / "a"
    begin(path, kvib.Forecast(), guard=Guard()).close()
    given = {"guard": None, "seed": 6, "procedure": kvib.independent, "policy": kvib.KVib()}
    with pytest.raises(ValueError, match=r"was begun with policy Forecast\(floor=0.05\), not KVib"):
        opened(path, given, {})
    with pytest.raises(ValueError, match=r"begun with policy Forecast\(.*, not KVib"):
        opened(path, {"guard": None}, {"seed": 6, "policy": kvib.KVib()})
    del given["policy"]
    with pytest.raises(ValueError, match="was begun with procedure pivotal, not independent") as e:
        opened(path, given, {})
    for way in ("leave it out to go on", r"kvib.journalled(path).switch(…)", "begin another file"):
        assert way in str(e.value)
    with pytest.raises(ValueError, match=r"begun with seed 5, not 6; leave it out .* before, or"):
        journalled(path, seed=6)


def plan(path, policy, **options):
    """As the Flower strategy makes it: the guard follows from the policy."""
    given = {"offline": EstimateAvailability(), "guard": default_guard, "journal": path}
    return FleetOptions(policy=policy, budget=lambda clients, round: 3, **(given | options))


def fleet(path, policy):
    new = Fleet(plan(path, policy))
    nodes = list(range(6))
    new.strangers(nodes)
    new.meet([Introduction(node, f"client {node}", 10.0 + node) for node in nodes])
    return new


def test_the_adapter_names_the_policy(tmp_path):
    path = tmp_path / "run.kvib"
    first = fleet(path, kvib.Forecast())
    first.draw(range(6))
    first.sampler.close()
    for make in (fleet, lambda path, policy: plan(path, policy).open([], [])):
        with pytest.raises(ValueError, match=r"with policy Forecast\(.*not KVib\(.*\.switch\("):
            make(path, kvib.KVib())
    with journalled(path) as sampler:
        sampler.switch(kvib.KVib())
    with pytest.raises(ValueError, match=r"from policy Forecast\(floor=0.05\) before round 1"):
        fleet(path, kvib.Forecast())
    again = plan(path, kvib.KVib()).open([], [])
    assert again.sampler.guard == Guard()  # it stayed
    assert [cohort.round for cohort in again.left_over] == [0]
    again.close()


def test_the_strategy_names_the_policy(tmp_path):
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    from flower_grid import LocalGrid, one_round, partitions, record, shifting_app

    from kvib.integrations import flower

    app_ = shifting_app([{"x": np.ones(2)} for _ in range(6)], sizes=[10.0] * 6)

    def trained(policy):
        inner = strategies.FedAvg(fraction_train=0.5, min_available_nodes=1)
        strategy = flower.UnbiasedSampling(inner, policy, journal=tmp_path / "a")
        one_round(strategy, LocalGrid(app_, partitions(6)), record(x=np.zeros(2)))
        return strategy

    trained(kvib.Forecast()).sampler.close()
    with pytest.raises(ValueError, match=r"with policy Forecast\(.*not KVib\(.*\.switch\("):
        trained(kvib.KVib())


def test_arguments_must_agree_with_the_new_policy(tmp_path):
    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 5)
        sampler.switch(kvib.Forecast(floor=0.2))
    for options in (
        {},
        {"policy": kvib.Forecast(floor=0.2)},
        {"policy": kvib.Forecast(floor=0.2), "procedure": kvib.pivotal},
        {"weights": WEIGHTS, "budget": 4, "seed": 5},
    ):
        with journalled(path, **options) as sampler:
            assert sampler.policy == kvib.Forecast(floor=0.2)
    old = r"was switched from policy KVib\(.*\) before round 5: it has policy Forecast\(floor=0.2\)"
    for options, why in (
        ({"policy": kvib.KVib()}, rf"{old}, not KVib\("),
        ({"policy": kvib.Forecast()}, rf"{old}, not Forecast\(floor=0.05\)"),
        ({"procedure": kvib.independent}, "from procedure independent before round 5: it has"),
        ({"seed": 6}, "was begun with seed 5, not 6"),
    ):
        with pytest.raises(ValueError, match=why):
            journalled(path, **options)
    history = read(path)
    assert history.about[:2] == ("Forecast(floor=0.2)", "pivotal")
    assert history.terms().policy == kvib.Forecast(floor=0.2)


def test_policies_of_your_own(tmp_path):
    path, mine = tmp_path / "a", dataclasses.replace(kvib.pivotal, name="mine")
    with begin(path) as sampler:
        play(sampler, 4)
        sampler.switch(Own())
        play(sampler, 2)
    with pytest.raises(ValueError, match=r"has a policy of your own, Own\(power=1.0\); give it"):
        journalled(path)
    with pytest.raises(
        ValueError, match=r"before round 4: it has policy Own\(power=1.0\), not Own"
    ):
        journalled(path, Own(2.0))
    with journalled(path, Own()) as sampler:
        sampler.switch(Own(2.0), mine)
        cohort = sampler.draw()
    with journalled(path, Own(2.0), procedure=mine) as sampler:
        assert sampler.outstanding()[-1].round == cohort.round
        sampler.switch(kvib.KVib(), kvib.independent)
    with journalled(path) as sampler:  # nothing of yours is needed any more
        assert sampler.policy == kvib.KVib()
        assert sampler.outstanding()[-1].pairs is None
    names = [(one.policy, one.procedure) for one in read(path).switches()]
    assert names == [
        ("Own(power=1.0)", "pivotal"),
        ("Own(power=2.0)", "mine"),
        (repr(kvib.KVib()), "independent"),
    ]


def test_recommended_goes_on_with_another_policy(tmp_path):
    path = tmp_path / "a"
    with kvib.recommended(WEIGHTS, 4, journal=path) as sampler:
        sampler.switch(kvib.KVib())
        assert sampler.procedure is kvib.balanced  # not Forecast's own: it stays
    with kvib.recommended(WEIGHTS, 4, journal=path) as sampler:
        assert (sampler.policy, sampler.procedure) == (kvib.KVib(), kvib.balanced)
    with pytest.raises(ValueError, match=r"it has policy KVib\(.*, not Forecast"):
        kvib.recommended(WEIGHTS, 4, journal=path, policy=kvib.Forecast())


def test_the_history_and_the_command_say_it(tmp_path):
    typer = pytest.importorskip("typer.testing")
    from kvib.cli.commands import app

    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 6, late=False)
        sampler.switch(kvib.Forecast())
        sampler.switch(kvib.BySize(), kvib.pivotal)
    first, second = read(path).switches()
    assert first == Switch(
        6, repr(kvib.KVib()), "independent", repr(kvib.Forecast()), "pivotal", 5, 0
    )
    told = typer.CliRunner().invoke(app, ["journal", str(path)])
    lines = " ".join(told.output.split())
    assert told.exit_code == 0
    assert f"policy {kvib.KVib()!r} until round 6, then Forecast(floor=0.05) (drawn" in lines
    assert "policy Forecast(floor=0.05) until round 6, then BySize(), which learned" in lines
    assert second.procedure_before == second.procedure


# What may go wrong


def killed_while_switching(path, statement):
    """Whether a process got to this statement of SQLite in `switch`, and was killed there."""
    child = os.fork()
    if child == 0:
        try:
            kill_before("", statement, lambda word: None)
            logging.disable()
            sampler = journalled(path)
            sampler.switch(kvib.Forecast())
            for _ in range(6):  # it is done
                sampler.recorder.file.one("SELECT 1")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.skipif(os.name != "posix", reason="a system without fork")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_statement_of_a_switch(tmp_path, step):
    """The next process finds the old policy or the new one, as a whole, and goes on."""
    whole, statement, found = tmp_path / "whole", 1, []
    with begin(whole, snapshot_every=4, keep=6) as sampler:
        play(sampler, 10)
        waits = sampler.draw()
        old, last = image_of(sampler), sampler.recorder.file.last
    with journalled(shutil.copy(whole, tmp_path / "straight")) as sampler:
        sampler.switch(kvib.Forecast())
        new = image_of(sampler)
    while killed_while_switching(shutil.copy(whole, tmp_path / f"{statement}"), statement):
        path = tmp_path / f"{statement}"
        with journalled(path) as sampler:
            switched = isinstance(sampler.policy, kvib.Forecast)
            found.append(switched)
            assert_equal(image_of(sampler), new if switched else old)
            assert len(read(path).switches()) == sampler.recorder.file.last - last == switched
            assert read(path).about.policy == repr(sampler.policy)
            assert repr(sampler.outstanding()[-1]) == repr(waits)
            sampler.switch(kvib.Forecast())
            assert_equal(image_of(sampler), new)
        statement += step
    assert len(found) > 60 / step
    assert found == sorted(found)
    assert set(found) == {False, True}


@pytest.mark.parametrize("where", ["INSERT INTO event", "REPLACE INTO about", "COMMIT"])
def test_a_file_that_cannot_be_written(tmp_path, where):
    """The sampler stops, and the file has the old policy."""

    class Failing:
        def __init__(self, db):
            self._db = db

        def __getattr__(self, name):
            return getattr(self._db, name)

        def execute(self, query, *values):
            if query.startswith(where):
                raise sqlite3.OperationalError("disk I/O error")
            return self._db.execute(query, *values)

    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 4)
        before = image_of(sampler)
        sampler.recorder.file._db = Failing(sampler.recorder.file._db)
        with pytest.raises(OSError, match="has stopped, its file could not be written"):
            sampler.switch(kvib.Vrb())
        with pytest.raises(OSError, match="has stopped"):
            sampler.draw()
    with journalled(path) as sampler:
        assert_equal(image_of(sampler), before)
        assert sampler.switch(kvib.Vrb()).rounds == 2


def test_interrupted_while_it_learns(tmp_path, monkeypatch):
    """Nothing has changed, and the sampler goes on."""
    with begin(tmp_path / "a") as sampler:
        play(sampler, 4)
        before = image_of(sampler)
        with monkeypatch.context() as patch:

            def broken(self, state, cohort, feedback):
                raise KeyboardInterrupt

            patch.setattr(kvib.Vrb, "observe", broken)
            with pytest.raises(KeyboardInterrupt):
                sampler.switch(kvib.Vrb())
        assert_equal(image_of(sampler), before)
        play(sampler, 2)


class Other(NamedTuple):
    seen: np.ndarray
    total: float


def test_a_state_of_another_form_after_a_switch(tmp_path, monkeypatch, caplog):
    """All rounds are learned from again, also those that were drawn under another policy, by
    check-in, or with all norms; that they come out differently is no news."""
    path = tmp_path / "a"
    with begin(path, kvib.KVib()) as sampler:
        for _ in range(3):
            cohort = sampler.gather([i for i in range(N) if sampler.admit(i)])
            sampler.update(cohort, np.ones(len(cohort)))
        play(sampler, 4)
        sampler.switch(Own())
        play(sampler, 3)
        seen = sampler.state.learned.seen.copy()
        left = sampler.outstanding()
    monkeypatch.setattr(
        Own, "start", lambda self, setting: Other(np.zeros(len(setting.weights)), 0.0)
    )
    with journalled(path, Own()) as sampler:
        assert sampler.state.learned.seen.tolist() == seen.tolist()
        assert [repr(one) for one in sampler.outstanding()] == [repr(one) for one in left]
    [record] = caplog.records
    assert record.getMessage().endswith("learned from all rounds again")


def test_a_journal_of_version_1(tmp_path):
    path = tmp_path / "a"
    shutil.copy(FIXTURES / "1191bf9/kvib.kvib", path)
    with journalled(path) as sampler:
        heard = read(path).table().answered
        learned = sampler.switch(kvib.Forecast())
        assert learned == Learned(int(np.isfinite(heard).sum()), 0)
    journalled(path, kvib.Forecast()).close()
    with pytest.raises(ValueError, match="was switched from policy KVib"):
        journalled(path, kvib.KVib())


def test_weights_of_the_beginning_are_not_those_of_today(tmp_path):
    """Two clients swap their weights, so that the total stays: λ is what it says in the file."""
    path, drawn = tmp_path / "a", []
    with journalled(path, kvib.Uniform(), WEIGHTS, 4, keys=list(range(N))) as sampler:
        for t in range(12):
            if t == 3:
                sampler.reweigh([0, 1], WEIGHTS[1::-1])
            drawn.append(sampler.draw())
            sampler.update(drawn[-1], np.ones(len(drawn[-1])))
        for cohort, one in zip(drawn, read(path).rounds(), strict=True):
            assert one.cohort.weight == pytest.approx(cohort.weight, rel=1e-6)
        sampler.switch(kvib.KVib())
        gamma = sampler.state.learned.gamma
    relived = kvib.Sampler(kvib.KVib(), WEIGHTS, 4)
    cohort = relived.draw()
    relived.update(cohort, np.ones(len(cohort)))
    first = drawn[0]
    scale = first.weight.mean() / cohort.weight.mean()
    assert gamma == pytest.approx(relived.state.learned.gamma * scale**2, rel=1e-6)

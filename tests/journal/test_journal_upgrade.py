"""Journals outlive versions: what is recorded is a fact, and is learned from by today's rule."""

import dataclasses
import json
import logging
import os
import shutil
import signal
import sqlite3
import sys
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from journal_crash import arrays_of, kill_before

import kvib
from kvib.journal import Upgrade, journalled, read
from kvib.journal.layout import seal
from kvib.journal.records import decode, encode
from places import FIXTURES

FIRST = FIXTURES / "1191bf9"
events = kvib.journal.events
N = 12
WEIGHTS = np.arange(1.0, N + 1)


class Seen(NamedTuple):
    seen: np.ndarray


@dataclass(frozen=True)
class Own(kvib.Policy[Seen]):
    """A policy that may become another one."""

    procedure: ClassVar = kvib.pivotal
    power: ClassVar = 1.0

    def start(self, setting):
        return Seen(np.zeros(len(setting.weights)))

    def scores(self, state, ids):
        return 1 / (1 + state.seen[ids]) ** self.power

    def observe(self, state, cohort, feedback):
        state.seen[cohort.ids] += cohort.count
        return state


def begin(path, policy=None, **options):
    options = {"seed": 5, "snapshot_every": 1_000} | options
    return journalled(path, policy or Own(), WEIGHTS, 4, **options)


def play(sampler, rounds, unheard=(3,)):
    cohorts = []
    for _ in range(rounds):
        cohorts.append(sampler.draw())
        if cohorts[-1].round not in unheard:
            sampler.update(cohorts[-1], np.ones(len(cohorts[-1])))
    return cohorts


def same_draw(one, other):
    for name in ("ids", "count"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    for name in ("expected", "weight", "answer_probability", "availability"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-7)
    for name in ("round", "budget", "requested", "most", "guarantee", "token"):
        assert getattr(one, name) == getattr(other, name)


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.with_replacement, kvib.systematic])
def test_recorded_rounds_are_taken_as_drawn(tmp_path, monkeypatch, caplog, procedure):
    path = tmp_path / "a"
    with begin(path, procedure=procedure, response=0.9) as sampler:
        cohorts = play(sampler, 8)
    history = [plain(read(path).table()), read(path).participation().tolist()]
    monkeypatch.setattr(Own, "power", -2.0)  # an improvement: it prefers those it has seen
    with journalled(path, Own()) as sampler:
        [line] = warned(caplog)
        assert line.startswith(f"{path}: kvib {kvib.__version__} took round 1 as drawn")
        for one, cohort in zip(read(path).rounds(), cohorts, strict=True):
            same_draw(one.cohort, cohort)
        seen = sum(np.bincount(c.ids, c.count, N) for c in cohorts if c.round != 3)
        assert sampler.state.learned.seen.tolist() == seen.tolist()
        [waits] = sampler.outstanding()
        same_draw(waits, cohorts[3])
        expected = sampler.probabilities()
        sampler.update(cohorts[3], np.ones(len(cohorts[3])))  # as the process that died had it
        sampler.update(cohorts[7], np.ones(len(cohorts[7])))
        assert sampler.draw().expected != pytest.approx(expected[waits.ids])
    assert [plain(read(path).table()._replace()), read(path).participation().tolist()] != history
    caplog.clear()
    with journalled(path, Own()) as sampler:  # the next time there is nothing to say
        assert sampler.round == 9
    assert warned(caplog) == []
    assert read(path).upgrades() == [Upgrade(kvib.__version__, 1, False)]


def plain(table):
    return [column.tolist() for column in table]


def test_the_upgrade_is_an_event_and_a_snapshot(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 6)
        last = sampler.recorder.file.last
    monkeypatch.setattr(Own, "power", 2.0)
    with journalled(path, Own()) as sampler:
        file = sampler.recorder.file
        assert file.about["snapshot"] == file.last == last + 1
        [event] = file.events([file.last])
        assert (event.kind, event.round) == ("upgrade", None)
        assert event.record == {"version": kvib.__version__, "round": 1, "relearned": False}
        once = arrays_of(sampler)
    monkeypatch.setattr(Own, "power", 1.0)  # whoever goes back finds nothing to do again
    with journalled(path, Own()) as sampler:
        assert_equal(arrays_of(sampler), once)
        play(sampler, 3)
    assert len(read(path).upgrades()) == 1
    assert [one.cohort.round for one in read(path).rounds()] == list(range(9))


def assert_equal(one, other):
    assert one[0] == other[0]
    assert {k: v.tolist() for k, v in one[1].items()} == {
        k: v.tolist() for k, v in other[1].items()
    }


def test_a_count_that_differs_is_a_difference(tmp_path, monkeypatch):
    """Where nothing else does: counts of 1 are not written down."""
    path = tmp_path / "a"
    with begin(path, procedure=kvib.with_replacement) as sampler:
        cohorts = play(sampler, 6, unheard=range(6))
        assert any((c.count > 1).any() for c in cohorts)
    draw = kvib.Procedure.__call__

    def once(self, *args, **options):
        cohort = draw(self, *args, **options)
        object.__setattr__(cohort, "count", np.ones(len(cohort), np.int64))
        return cohort

    monkeypatch.setattr(kvib.Procedure, "__call__", once)
    with journalled(path, Own()) as sampler:
        for one, cohort in zip(sampler.outstanding(), cohorts, strict=True):
            same_draw(one, cohort)


def test_rates_that_come_out_differently(tmp_path, monkeypatch):
    """A cohort keeps the probability of an answer that it was drawn with, and can be answered."""
    path = tmp_path / "run.kvib"
    with begin(path, response=kvib.EstimatedRate()) as sampler:
        cohort = sampler.draw()
        sampler.update(cohort, [np.nan, *[1.0] * (len(cohort) - 1)])
        drawn = play(sampler, 6)
    monkeypatch.setattr(kvib.clients.rates, "common", lambda state: 0.5)
    with journalled(path, policy=Own()) as sampler:
        [waiting] = sampler.outstanding()
        same_draw(waiting, drawn[2])
        sampler.update(drawn[2], np.ones(len(drawn[2])))


def test_rounds_that_today_could_not_be_drawn(tmp_path, monkeypatch, caplog):
    path = tmp_path / "a"
    options = {"availability": kvib.EstimatedRate(), "cool_down": 1}
    with begin(path, **options) as sampler:
        for k in range(5):
            cohort = sampler.draw(available=np.arange(k % 3, N))
            sampler.update(cohort, np.ones(len(cohort)))
        waits = sampler.draw(available=np.arange(N))
        before = arrays_of(sampler)
    with monkeypatch.context() as patch:
        patch.setattr(
            Own, "scores", lambda self, state, ids: np.where(state.seen[ids] > 0, np.nan, 1.0)
        )
        with journalled(path, Own()) as sampler:
            same_draw(sampler.outstanding()[0], waits)
            assert_equal(arrays_of(sampler), before)  # who was there and who rests is known too
            with pytest.raises(ValueError, match="the score nan"):
                sampler.draw(available=np.arange(N))
    assert warned(caplog) == [  # whoever was seen in round 0 rests in round 1
        f"{path}: kvib {kvib.__version__} took round 2 as drawn, in which it would draw others"
    ]


def test_check_ins_are_facts_too(tmp_path, monkeypatch):
    """Whoever was admitted belongs in, also where today's probabilities would not admit it."""
    path = tmp_path / "a"
    with begin(path, procedure=kvib.independent) as sampler:
        cohorts = []
        for _ in range(4):
            cohorts.append(sampler.gather([i for i in range(N) if sampler.admit(i)]))
            sampler.update(cohorts[-1], np.ones(len(cohorts[-1])))
        assert sampler.admit(0) is not None  # open for check-in
    monkeypatch.setattr(Own, "power", 9.0)
    with journalled(path, Own()) as sampler:
        assert sampler.state.check_in.is_open
        for one, cohort in zip(read(path).rounds(), cohorts, strict=True):
            same_draw(one.cohort, cohort)
        sampler.gather([i for i in range(N) if sampler.admit(i)])
    with journalled(path, Own()) as sampler:
        assert sampler.round == 5


def rewritten(path, number, change):
    """An event made another one, with its checksum."""
    with sqlite3.connect(path) as db:
        [[kind, round, payload]] = db.execute(
            "SELECT kind, round, payload FROM event WHERE number = ?", (number,)
        )
        data = encode(change(decode(payload)))
        crc = seal(data, f"event {number} {kind} {round}")
        db.execute("UPDATE event SET payload = ?, crc = ? WHERE number = ?", (data, crc, number))
    db.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda r: r | {"ids": r["ids"] + 99},
            r"event 3 \(draw\) cannot be done .*no client 1\d\d",
        ),
        (lambda r: r | {"ids": r["ids"][::-1]}, "ids must ascend"),
        (lambda r: r | {"expected": r["expected"][1:]}, "must be of the same length"),
    ],
)
def test_what_cannot_be_a_fact_is_refused(tmp_path, change, why):
    path = tmp_path / "a"
    with begin(path) as sampler:
        play(sampler, 4)
    rewritten(path, 3, change)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=why):
        journalled(path, Own())
    assert path.read_bytes() == before


def test_other_events_and_other_clients_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with begin(path, kvib.KVib()) as sampler:
        play(sampler, 2)
        sampler.join([3.0])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.delitem(events.KINDS, "join")
        with pytest.raises(ValueError, match="'join' events: install the kvib it is from"):
            journalled(path)
    rewritten(path, 5, lambda r: r | {"ids": r["ids"] + 1})
    with pytest.raises(ValueError, match=r"event 5 \(join\) is of other clients"):
        journalled(path)
    rewritten(path, 5, lambda r: r | {"ids": r["ids"] - 1})
    assert path.read_bytes() == before
    journalled(path).close()


class Counted(NamedTuple):
    seen: np.ndarray
    total: float


@dataclass(frozen=True)
class Later(Own):
    """The same rule with another state."""

    def start(self, setting):
        return Counted(np.zeros(len(setting.weights)), 0.0)

    def observe(self, state, cohort, feedback):
        super().observe(state, cohort, feedback)
        return state._replace(total=state.total + feedback.sum())


Later.__name__ = "Own"


@pytest.mark.parametrize(
    "options",
    [
        {"response": kvib.EstimatedRate(), "cool_down": 1, "keys": list("abcdefghijkl")},
        {"response": np.linspace(0.5, 1, N), "variables": np.arange(N)},
        {"cost": np.linspace(0.5, 2, N), "over_select": False},
    ],
)
def test_a_state_of_another_form_is_learned_again(tmp_path, caplog, options):
    path = tmp_path / "a"
    straight = kvib.Sampler(Later(), WEIGHTS, 4, seed=5, **options)
    play(straight, 9)
    with begin(path, snapshot_every=2, **options) as sampler:
        play(sampler, 9)
    with journalled(path, Later()) as sampler:
        assert_close(sampler, straight)
        assert [cohort.round for cohort in sampler.outstanding()] == [3]
        play(sampler, 2)
        play(straight, 2)
    assert warned(caplog) == [f"{path}: kvib {kvib.__version__} learned from all rounds again"]
    assert read(path).upgrades() == [Upgrade(kvib.__version__, None, True)]
    with journalled(path, Later()) as sampler:
        assert_close(sampler, straight)


def assert_close(sampler, straight):
    """But for the last digit of λ, which is normalised twice."""
    (about, arrays), (others, theirs) = arrays_of(sampler), arrays_of(straight)
    assert {**about, "population": None} == {**others, "population": None}
    for name, array in arrays.items():
        assert array == pytest.approx(theirs[name], rel=1e-12)


def test_a_state_of_another_form_and_costs_that_have_changed(tmp_path):
    @dataclass(frozen=True)
    class Open(Own):
        per_client: ClassVar = ("seen",)

        def enter(self, state, ids, weights):
            return state

        def reweigh(self, state, ids, weights, ratio):
            return state

    with begin(tmp_path / "a", Open(), cost=np.ones(N), snapshot_every=1) as sampler:
        sampler.join([1.0], cost=[2.0])
        play(sampler, 2)
    Open.start, Open.observe = Later.start, Later.observe
    with pytest.raises(ValueError, match=r"of another version, and .* clients with costs came"):
        journalled(tmp_path / "a", Open())


def test_a_procedure_of_your_own_is_asked_for(tmp_path):
    own = dataclasses.replace(kvib.pivotal, name="mine")
    begin(tmp_path / "a", procedure=own).close()
    with pytest.raises(ValueError, match=r"'mine' is not one of kvib's procedures; give it"):
        journalled(tmp_path / "a", Own())
    journalled(tmp_path / "a", Own(), procedure=own).close()


def test_a_state_of_another_form_where_rounds_are_gone(tmp_path):
    with begin(tmp_path / "a", snapshot_every=2, keep=3) as sampler:
        play(sampler, 9)
    with pytest.raises(ValueError, match=r"state fields .*Rounds that it could be .* were removed"):
        journalled(tmp_path / "a", Later())


# The fixtures: journals of version 1.


def fixture(tmp_path, name):
    shutil.copy(FIRST / name, tmp_path / name)
    return tmp_path / name


def test_mabs_without_its_cap(tmp_path, caplog):
    path = fixture(tmp_path, "mabs.kvib")
    then = list(read(path).rounds())
    with journalled(path) as sampler:
        assert sampler.round == 7
        for one, was in zip(read(path).rounds(), then, strict=True):
            same_draw(one.cohort, was.cohort)
            assert np.array_equal(one.norms, was.norms, equal_nan=True)
        play(sampler, 3)
    [line] = warned(caplog)
    assert line.startswith(f"{path}: kvib")
    [upgrade] = read(path).upgrades()
    assert upgrade.round is not None
    assert f"took round {upgrade.round} as drawn" in line
    with journalled(path) as sampler:
        assert sampler.round == 10
    assert len(warned(caplog)) == 1


@pytest.mark.parametrize("name", ["kvib.kvib", "mabs.kvib", "recommended.kvib"])
def test_version_1_is_read_as_it_is_and_becomes_version_2(tmp_path, name):
    path = fixture(tmp_path, name)
    path.chmod(0o644)
    before, told = path.read_bytes(), plain(read(path).table())
    rounds = [(one.cohort.ids.tolist(), one.norms.tolist()) for one in read(path).rounds()]
    taken = read(path).participation().tolist()
    assert path.read_bytes() == before
    with journalled(path) as sampler:
        assert sampler.recorder.file.version == 2
        assert path.stat().st_mode & 0o777 == 0o600
    assert np.array_equal(plain(read(path).table()), told, equal_nan=True)
    again = [(one.cohort.ids.tolist(), one.norms.tolist()) for one in read(path).rounds()]
    assert repr(again) == repr(rounds)
    assert read(path).participation().tolist() == taken


EDITS = [
    ("UPDATE round SET size = size + 1 WHERE round = 2", "numbers of round 2 are not those"),
    ("UPDATE round SET coefficients = 1.5 WHERE round = 2", "numbers of round 2 are not those"),
    ("UPDATE round SET norms = zeroblob(8) WHERE round = 2", "numbers of round 2 are not those"),
    ("UPDATE round SET size = 'x' WHERE round = 2", "numbers of round 2 are not numbers"),
    ("UPDATE round SET answered = NULL WHERE round = 2", "numbers of round 2 are not those"),
    ("DELETE FROM round WHERE round = 6", "numbers of round 6 are not those"),
    (
        "INSERT INTO round (round, size, budget, coefficients) VALUES (7, 4, 4, 1)",
        "one of 7 rounds",
    ),
    ("DELETE FROM event WHERE number = 3", "event 3 of 13 is missing"),
    ("DELETE FROM event WHERE number = 13", "event 13 of 13 is missing"),
    ("UPDATE sqlite_sequence SET seq = 12", "event 13 of 12 is missing"),
]


@pytest.mark.parametrize(("edit", "why"), EDITS, ids=[edit for edit, _ in EDITS])
def test_version_1_had_no_seals_but_is_checked_by_its_events(tmp_path, edit, why):
    path = fixture(tmp_path, "mabs.kvib")
    with sqlite3.connect(path) as db:
        db.execute(edit)
    db.close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match=why):
        read(path).table()
    with pytest.raises(ValueError, match=why):
        journalled(path)
    assert path.read_bytes() == before


def killed_while_opening(path, statement):
    """Whether a process got to this statement of SQLite, and was killed there."""
    child = os.fork()
    if child == 0:
        try:
            kill_before("", statement, lambda word: None)
            logging.disable()
            journalled(path).close()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.skipif(os.name != "posix", reason="a system without fork")
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("mabs.kvib", 6),
        pytest.param("mabs.kvib", 1, marks=pytest.mark.slow),
        pytest.param("kvib.kvib", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_statement_of_an_upgrade(tmp_path, name, step):
    """Of the file, and of what was learned: the next one finds all rounds, and does it."""
    whole, statement, found = fixture(tmp_path, name), 1, set()
    with journalled(shutil.copy(whole, tmp_path / "straight")) as sampler:
        straight = arrays_of(sampler)
    rounds, table = recorded(whole), plain(read(whole).table())
    while killed_while_opening(shutil.copy(whole, tmp_path / f"{statement}.kvib"), statement):
        path = tmp_path / f"{statement}.kvib"
        found.add((len(read(path).upgrades()), version(path)))
        assert np.array_equal(plain(read(path).table()), table, equal_nan=True)
        with journalled(path) as sampler:
            assert_equal(arrays_of(sampler), straight)
        assert recorded(path) == rounds
        statement += step
    assert statement > 100
    assert found == {(0, 1), (0, 2)}


def recorded(path):
    return [one.cohort.ids.tolist() for one in read(path).rounds()]


def version(path):
    with sqlite3.connect(path) as db:
        [[number]] = db.execute("PRAGMA user_version")
    db.close()
    return number


# Calls that say what they said, and mean something else today.


def test_a_call_of_recommended_whose_parts_have_changed(tmp_path, monkeypatch):
    module = sys.modules["kvib.recommended"]
    paths = [tmp_path / "a", fixture(tmp_path, "recommended.kvib")]
    weights = read(paths[1]).weights()
    kvib.recommended(weights, 4, seed=7, journal=paths[0]).close()
    monkeypatch.setattr(module, "Guard", lambda: kvib.Guard(limit=7.0))
    monkeypatch.setattr(module, "Forecast", lambda: kvib.Forecast(floor=0.3))
    monkeypatch.setattr(module, "balanced", kvib.pivotal)
    for path in paths:
        with kvib.recommended(weights, 4, seed=7, journal=path) as sampler:
            assert sampler.guard == kvib.Guard()
            assert sampler.policy == kvib.Forecast()
            assert sampler.procedure == kvib.balanced
        with pytest.raises(ValueError, match="begun with budget 4, not 5"):
            kvib.recommended(weights, 5, seed=7, journal=path)
        with pytest.raises(ValueError, match="begun with sketch 32, not 8"):
            kvib.recommended(weights, 4, seed=7, journal=path, sketch=8)
    begin(tmp_path / "b", kvib.KVib()).close()
    with pytest.raises(ValueError, match=r"begun with policy KVib\(.*, not Forecast\(floor=0.3\)"):
        kvib.recommended(WEIGHTS, 4, journal=tmp_path / "b")


def tilt(name="Tilt", **defaults):
    """A policy of one's own whose fields have these defaults."""
    space = {"__annotations__": dict.fromkeys(defaults, float), **defaults}
    return dataclass(frozen=True)(type(name, (Own,), space))


def test_a_policy_whose_defaults_have_changed(tmp_path):
    path, old, new = tmp_path / "a", tilt(a=1.0, b=2.0), tilt(a=1.5, b=2.0, c=3.0)
    begin(path, old(b=4.0)).close()
    for policy in (old(b=4.0), new(b=4.0), new(a=1.0, b=4.0)):  # meant or worded as it was
        journalled(path, policy).close()
    for policy in (old(), new(), new(a=9.0, b=4.0), new(b=4.0, c=9.0), tilt("Other", b=2.0)(4.0)):
        with pytest.raises(ValueError, match=r"begun with policy Tilt\(a=1.0, b=4.0\), not "):
            journalled(path, policy)


def resaid(path, change):
    """What a file says of itself, otherwise, with its checksum."""
    with sqlite3.connect(path) as db:
        [[said]] = db.execute("SELECT said FROM about")
        data = json.dumps(change(json.loads(said))).encode()
        db.execute("UPDATE about SET said = ?, crc = ?", (data, seal(data, "about")))
    db.close()


def test_an_option_that_is_younger_than_the_file(tmp_path):
    def older(said):
        del said["begun"]["over_select"]
        said["begun"]["forgotten"] = 1
        return said

    begin(tmp_path / "a").close()
    resaid(tmp_path / "a", older)
    journalled(tmp_path / "a", Own(), WEIGHTS, 4, over_select=False).close()
    with pytest.raises(ValueError, match="begun with over_select False, not True"):
        journalled(tmp_path / "a", Own(), over_select=True)


OTHERS = {
    "seed": 9,
    "response": kvib.EstimatedRate(),
    "availability": kvib.EstimatedRate(),
    "guard": kvib.Guard(limit=3.0),
    "sketch": 8,
    "cool_down": 2,
    "over_select": True,
}
"""Defaults of `Sampler` that a later version might have."""


@pytest.mark.parametrize("given", [{}, {"policy": kvib.KVib(), "weights": WEIGHTS, "budget": 4}])
def test_defaults_of_a_sampler_may_change(tmp_path, monkeypatch, given):
    """A journal goes on with the values that it was begun with, by any call that began it."""
    path = tmp_path / "run.kvib"
    with journalled(path, kvib.KVib(), WEIGHTS, 4) as sampler:
        play(sampler, 5)
    shutil.copy(path, tmp_path / "copy.kvib")
    with journalled(tmp_path / "copy.kvib") as sampler:
        wanted = play(sampler, 3)
    kept = kvib.Sampler(kvib.KVib(), WEIGHTS, 4)
    kept.save(tmp_path / "state.npz")
    usual = kvib.Sampler.__init__.__kwdefaults__
    monkeypatch.setattr(kvib.Sampler.__init__, "__kwdefaults__", {**usual, **OTHERS})
    with journalled(path, **given) as sampler:
        for one, other in zip(play(sampler, 3), wanted, strict=True):
            same_draw(one, other)
        assert (sampler.guard, sampler.seed, sampler.state.sketches.size) == (None, 0, 0)
    again = kvib.Sampler.load(tmp_path / "state.npz")
    assert again.draw().ids.tolist() == kept.draw().ids.tolist()

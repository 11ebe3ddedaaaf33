"""A journalled sampler is a sampler that can be continued, and its file answers questions."""

import inspect
import os
import shutil
import threading
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_crash import assert_same

import kvib
from kvib.journal import journalled, read
from kvib.journal.layout import Answered
from members import IDS, PAIRS

recorder = kvib.journal.recorder
N = 12
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)


def begin(path, policy=None, procedure=None, **options):
    return journalled(path, policy or kvib.KVib(), WEIGHTS, 4, procedure, **({"seed": 5} | options))


def norms_of(round, clients=N):
    return np.random.default_rng([1, round]).lognormal(0, 1, clients).astype(np.float32)


def known(sampler):
    """Arguments of the coming draw."""
    given = {"norms": norms_of(sampler.round)} if sampler.policy.needs_norms else {}
    if sampler.round % 3 == 1:
        given["available"] = norms_of(sampler.round) > 0.5
    if sampler.round % 3 == 2:
        given |= {"available": [7, 1, 4, 9, 2], "budget": 2.5}
    return given


def play(sampler, rounds):
    for _ in range(rounds):
        cohort = sampler.draw(**known(sampler))
        if cohort.round % 4 != 3:  # some never come back
            norms = norms_of(100 + cohort.round)[cohort.ids]
            norms[:1] = np.nan if cohort.round % 5 == 0 else 1.0
            sampler.update(cohort, norms)


def image(path, folder):
    """What a power failure would leave at this moment."""
    folder.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copy(path.parent / name, folder / name)
    return folder / path.name


@pytest.mark.parametrize(("policy", "procedure"), PAIRS, ids=IDS)
def test_interrupted_equals_straight(policy, procedure, tmp_path):
    response = kvib.EstimatedRate()
    straight = kvib.Sampler(policy, WEIGHTS, 4, procedure, seed=5, response=response)
    sampler = begin(tmp_path / "a", policy, procedure, response=response, snapshot_every=4)
    play(straight, 11)
    play(sampler, 11)
    left = image(tmp_path / "a", tmp_path / "left")
    sampler.close()
    with journalled(left) as sampler:
        assert_same(sampler, straight)
        play(straight, 4)
        play(sampler, 4)
        assert_same(sampler, straight)
        assert [c.round for c in sampler.outstanding()] == [3, 7, 11]


def test_what_is_outstanding_can_be_finished(tmp_path):
    sampler = begin(tmp_path / "a", snapshot_every=2)
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, seed=5)
    cohorts = [sampler.draw() for _ in range(7)]
    originals = [straight.draw() for _ in range(7)]
    sampler.close()
    with journalled(tmp_path / "a") as sampler:
        again = sampler.outstanding()
        assert [repr(c) for c in again] == [repr(c) for c in cohorts]
        noise = kvib.estimated_variance(again[0], np.ones((len(again[0]), 2)))
        assert noise == kvib.estimated_variance(cohorts[0], np.ones((len(again[0]), 2)))
        for k in (6, 0, 3):
            sampler.update(again[k], norms_of(k)[again[k].ids])
            straight.update(originals[k], norms_of(k)[originals[k].ids])
        sampler.update(again[6], norms_of(6)[again[6].ids])
    with journalled(tmp_path / "a") as sampler:
        assert_same(sampler, straight)
        assert [c.round for c in sampler.outstanding()] == [1, 2, 4, 5]


def test_a_repeat_is_ignored_and_a_contradiction_is_not(tmp_path):
    with begin(tmp_path / "a", snapshot_every=3, keep=2, response=0.9) as sampler:
        first = sampler.draw()
        norms = np.full(len(first), 1 / 3)
        norms[0] = np.nan
        sampler.update(first, norms)
        for _ in range(10):  # until its details are gone
            sampler.update(first, norms)
            sampler.update(first, {int(i): 1 / 3 for i in first.ids[1:]})
            with pytest.raises(ValueError, match="updated before, with other norms"):
                sampler.update(first, np.ones(len(first)))
            play(sampler, 1)
        assert read(tmp_path / "a").about.removed > 0


def test_silence_is_warned_of_once(tmp_path):
    with begin(tmp_path / "a") as sampler:
        cohort = sampler.draw()
        with pytest.warns(UserWarning, match="did not answer") as warned:
            sampler.update(cohort, np.full(len(cohort), np.nan))
        assert [warning.filename for warning in warned] == [__file__]
        sampler.update(cohort, np.full(len(cohort), np.nan))
    journalled(tmp_path / "a").close()


def test_cohorts_of_others_and_changed_ones(tmp_path):
    other = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, kvib.pivotal).draw()
    with begin(tmp_path / "a", procedure=kvib.pivotal) as sampler:
        cohort = sampler.draw()
        with pytest.raises(ValueError, match="drawn by another sampler"):
            sampler.update(other, np.ones(4))
        part = cohort.take(np.array([True, True, False, True]))
        with pytest.raises(ValueError, match="not the cohort that was drawn in round 0"):
            sampler.update(part, np.ones(3))
        with pytest.raises(ValueError, match=r"norm -1\.0"):
            sampler.update(cohort, [1, 1, 1, -1])
        with pytest.raises(ValueError, match=r"beyond single precision .* report NaN"):
            sampler.update(cohort, [1, 1, 1, 1e50])
        with pytest.raises(ValueError, match="unknown client id 99"):
            sampler.draw(available=[99])
        sampler.update(cohort, np.ones(4))  # and goes on


def test_step_with_guard_and_sketches(tmp_path):
    options = {"guard": kvib.Guard(), "sketch": 3, "seed": 5}
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, kvib.balanced, **options)
    sampler = begin(tmp_path / "a", procedure=kvib.balanced, snapshot_every=3, **options)
    rng = np.random.default_rng(0)
    for _ in range(4):
        a, b = straight.draw(), sampler.draw()
        updates = rng.normal(size=(len(a), 6))
        assert sampler.step(b, updates) == pytest.approx(straight.step(a, updates))
        with pytest.raises(ValueError, match="update each cohort once"):
            sampler.step(b, updates)
    left = image(tmp_path / "a", tmp_path / "left")
    live = sampler.packed()
    sampler.close()
    with journalled(left) as sampler:
        for name, array in sampler.packed().items():
            assert np.array_equal(array, live[name], equal_nan=array.dtype.kind == "f")
        assert sampler.state.step_length.value == pytest.approx(straight.state.step_length.value)


def test_arguments_must_agree(tmp_path):
    path = tmp_path / "a"
    begin(path, response=0.9).close()
    for options in (
        {"policy": kvib.KVib()},
        {"weights": 2 * WEIGHTS, "budget": 4.0},
        {"procedure": kvib.independent, "seed": 5, "response": 0.9, "guard": None, "sketch": 0},
    ):
        journalled(path, **options).close()
    for options, message in (
        ({"policy": kvib.KVib(mix=0.5)}, r"begun with policy KVib.* not KVib\(.*mix=0.5"),
        ({"policy": kvib.Vrb()}, "begun with policy KVib.* not Vrb"),
        ({"weights": WEIGHTS[::-1]}, "begun with other weights"),
        ({"budget": 5}, r"begun with budget 4, not 5; leave it out"),
        ({"procedure": kvib.pivotal}, "begun with procedure independent, not pivotal"),
        ({"seed": 6}, "begun with seed 5, not 6"),
        ({"response": 0.8}, "begun with response 0.9, not 0.8"),
        ({"variables": np.ones(N)}, "begun with other variables"),
        ({"colour": 1}, "begun with colour None, not 1"),
    ):
        with pytest.raises(ValueError, match=message):
            journalled(path, **options)
    journalled(path).close()


def test_what_cannot_be_journalled(tmp_path):
    with pytest.raises(ValueError, match=r"remembers whole updates.*\.save\(path\)"):
        begin(tmp_path / "a", estimator=kvib.Difference())
    with pytest.raises(FileNotFoundError, match="to begin one, give also budget, policy, weights"):
        journalled(tmp_path / "a")
    with pytest.raises(ValueError, match="keep=0 is not a number of rounds"):
        begin(tmp_path / "a", keep=0)
    with pytest.raises(ValueError, match="budget 40 exceeds"):
        journalled(tmp_path / "a", kvib.KVib(), WEIGHTS, 40)
    with pytest.raises(TypeError):  # it is made by `journalled`
        kvib.journal.Journalled(kvib.KVib(), WEIGHTS, 4).draw()
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "a")
    assert os.listdir(tmp_path) in ([], ["a.lock"])


class CountState(NamedTuple):
    seen: np.ndarray


@dataclass(frozen=True)
class Rarely(kvib.Policy[CountState]):
    """A user's policy, which may break."""

    strength: float = 1.0
    procedure: ClassVar = kvib.pivotal
    error: ClassVar = None

    def start(self, setting):
        return CountState(np.zeros(len(setting.weights)))

    def scores(self, state, ids):
        return 1 / (1 + self.strength * state.seen[ids])

    def observe(self, state, cohort, feedback):
        state.seen[cohort.ids] += 1
        if self.error:
            raise self.error
        return state


def test_a_policy_of_your_own(tmp_path):
    sampler = begin(tmp_path / "a", Rarely(), response=0.9)
    play(sampler, 3)
    probabilities = sampler.probabilities()
    sampler.close()
    with pytest.raises(ValueError, match=r"of your own, Rarely\(strength=1.0\); give it"):
        journalled(tmp_path / "a")
    with pytest.raises(ValueError, match="begun with policy"):
        journalled(tmp_path / "a", Rarely(2.0))
    with journalled(tmp_path / "a", Rarely()) as sampler:
        assert sampler.probabilities().tolist() == probabilities.tolist()
    history = read(tmp_path / "a")
    with pytest.raises(ValueError, match=r"of your own; give it from Python: .*terms\(policy=…"):
        history.terms()
    assert history.terms(policy=Rarely()).budget == 4


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeWarning("no"), KeyboardInterrupt()])
def test_interrupted_halfway_it_stops(tmp_path, monkeypatch, error):
    sampler = begin(tmp_path / "a", Rarely(), response=0.9)
    play(sampler, 3)
    probabilities = sampler.probabilities()
    cohort = sampler.draw()
    with monkeypatch.context() as patch:
        patch.setattr(Rarely, "error", error)
        with pytest.raises(type(error)):
            sampler.update(cohort, np.ones(4))
    for call in (sampler.draw, sampler.outstanding, lambda: sampler.update(cohort, np.ones(4))):
        with pytest.raises(OSError, match=r"has stopped, it was interrupted by.* open it again"):
            call()
    with journalled(tmp_path / "a", Rarely()) as sampler:
        assert sampler.probabilities().tolist() == probabilities.tolist()
        sampler.update(cohort, np.ones(4))  # the token is that of the file


def test_threads(tmp_path):
    """Calls from several threads are one after another, in the file too."""
    sampler = begin(tmp_path / "a", snapshot_every=5)

    def work():
        for _ in range(15):
            cohort = sampler.draw()
            sampler.update(cohort, norms_of(cohort.round)[cohort.ids])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = image(tmp_path / "a", tmp_path / "left")
    with journalled(left) as again:
        assert_same(again, sampler)
        assert again.round == 45
        assert again.outstanding() == []
    sampler.close()


def test_history(tmp_path):
    cohorts, norms = [], {}
    with begin(tmp_path / "a", procedure=kvib.with_replacement, response=0.5) as sampler:
        history = read(tmp_path / "a")
        assert list(history.rounds()) == []
        assert history.table().size.tolist() == history.table().variance.tolist() == []
        for _ in range(9):
            cohort = sampler.draw(**known(sampler))
            cohorts.append(cohort)
            if cohort.round != 4:
                norms[cohort.round] = norms_of(cohort.round)[cohort.ids]
                norms[cohort.round][0] = np.nan
                sampler.update(cohort, norms[cohort.round])
        for _ in range(2):  # in use, then closed
            logged = list(history.rounds())
            assert [one.answered for one in logged] == [k != 4 for k in range(9)]
            for one, cohort in zip(logged, cohorts, strict=True):
                silent = np.full(len(cohort), np.nan)
                assert np.array_equal(one.norms, norms.get(cohort.round, silent), equal_nan=True)
                for name in (
                    "ids",
                    "count",
                    "weight",
                    "answer_probability",
                    "availability",
                    "round",
                ):
                    assert np.array_equal(getattr(one.cohort, name), getattr(cohort, name))
                for name in ("budget", "requested", "guarantee", "token"):
                    assert getattr(one.cohort, name) == getattr(cohort, name)
                assert one.cohort.expected == pytest.approx(cohort.expected, rel=1e-7)
            sampler.close()
    times = np.zeros(N, int)
    for cohort in cohorts:
        times[cohort.ids] += 1
    assert history.participation().tolist() == times.tolist()
    table = history.table()
    assert table.round.tolist() == list(range(9))
    assert table.size.tolist() == [len(c) for c in cohorts]
    assert table.budget.tolist() == [c.budget for c in cohorts]
    assert table.coefficients.tolist() == [c.coefficients.sum() for c in cohorts]
    assert np.isnan(table.answered).tolist() == [k == 4 for k in range(9)]
    assert np.isnan(table.variance).all()  # norms do not suffice with replacement
    about = history.about
    assert about[1:] == ("with_replacement", 4.0, 5, N, 9, 0, None)
    assert about.policy.startswith("KVib(")
    assert history.weights().tolist() == sampler.weights.tolist()


def test_empty_rounds(tmp_path):
    sampler = begin(tmp_path / "a", snapshot_every=2)
    for _ in range(3):
        cohort = sampler.draw(available=[])
        assert len(cohort) == 0
        if cohort.round:
            sampler.update(cohort, [])
    sampler.close()
    with journalled(tmp_path / "a") as sampler:
        assert [len(c) for c in sampler.outstanding()] == [0]
        history = read(tmp_path / "a")
        assert [(len(one.cohort), one.answered) for one in history.rounds()] == [
            (0, False),
            (0, True),
            (0, True),
        ]
        assert history.participation().sum() == 0


def test_estimated_variance_of_independent_draws(tmp_path):
    with begin(tmp_path / "a", response=0.5, snapshot_every=2) as sampler:
        values = []
        for _ in range(6):
            cohort = sampler.draw()
            norms = norms_of(cohort.round)[cohort.ids]
            updates = [[float(norm)] for norm in norms]
            values.append(kvib.estimated_variance(cohort, np.array(updates).reshape(-1, 1)).value)
            sampler.update(cohort, norms)
        history = read(tmp_path / "a")
        assert history.table().variance == pytest.approx(values)
        for value, one in zip(values, history.rounds(), strict=True):
            again = kvib.estimated_variance(one.cohort, one.norms[:, None])
            assert again.value == pytest.approx(value, rel=1e-6)


def test_compaction_keeps_the_last_rounds_and_says_so(tmp_path):
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, seed=5)
    with begin(tmp_path / "a", snapshot_every=5, keep=10) as sampler:
        late = sampler.draw()
        times = np.bincount(late.ids, minlength=N)
        straight.draw()
        for _ in range(41):
            cohort = sampler.draw()
            times[cohort.ids] += 1
            other = straight.draw()
            for one, its in ((sampler, cohort), (straight, other)):
                one.update(its, norms_of(its.round)[its.ids])
        history = read(tmp_path / "a")
        removed = history.about.removed
        assert 25 <= removed <= 32
        assert [one.cohort.round for one in history.rounds()] == list(range(removed, 42))
        assert history.participation().tolist() == times.tolist()
        assert len(history.table().round) == 42
        assert sampler.outstanding() == []
        with pytest.raises(ValueError, match=r"round 0 was given up: this journal keeps 10"):
            sampler.update(late, np.ones(len(late)))
    with journalled(tmp_path / "a") as sampler:
        assert_same(sampler, straight)


def hear(sampler):
    cohort = sampler.draw()
    sampler.update(cohort, np.ones(len(cohort)))


def test_rounds_are_of_one_moment(tmp_path, monkeypatch):
    """Also while the first ones are removed and a late answer to one of them comes."""
    monkeypatch.setattr("kvib.journal.file._TOGETHER", 1)
    with begin(tmp_path / "a", snapshot_every=2, keep=4) as sampler:
        late = sampler.draw()
        for _ in range(3):
            hear(sampler)
        rounds = read(tmp_path / "a").rounds()
        assert next(rounds).cohort.round == 0
        sampler.update(late, np.ones(len(late)))
        for _ in range(12):
            hear(sampler)
        assert read(tmp_path / "a").about.removed > 4
        assert [(one.cohort.round, one.answered) for one in rounds] == [
            (k, True) for k in (1, 2, 3)
        ]


def test_snapshots_by_the_cost_of_replay(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "REPLAY", 0.0)
    monkeypatch.setattr(recorder, "SHARE", 1e9)
    with begin(tmp_path / "a", response=0.9) as sampler:
        play(sampler, 3)
        assert sampler.recorder.file.about["snapshot"] == sampler.recorder.file.last
        monkeypatch.setattr(recorder, "SHARE", 1e-9)
        play(sampler, 3)
        assert sampler.recorder.file.about["snapshot"] < sampler.recorder.file.last
    with journalled(tmp_path / "a") as sampler:
        assert sampler.round == 6


def test_only_changed_chunks_are_written(tmp_path):
    clients = 200_000  # six chunks of ω, as many of λ
    path = tmp_path / "a"
    sampler = journalled(path, kvib.Vrb(), np.arange(1, clients + 1), 3, snapshot_every=1)
    db = sampler.recorder.file._db

    def chunks():
        return {hash for (hash,) in db.execute("SELECT hash FROM chunk")}

    before = chunks()
    cohort = sampler.draw(available=[1, 2, 3])
    sampler.update(cohort, np.ones(len(cohort)))
    assert len(chunks() - before) <= 4  # of ω, and the small arrays
    assert len(before) >= 7
    with journalled(image(path, tmp_path / "left")) as again:
        assert_same(again, sampler)
    sampler.close()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["draw", "draw", "update", "repeat", "reopen"]), st.integers(0, 99)),
    max_size=25,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=ACTIONS, every=st.integers(1, 6))
def test_any_order_of_events(tmp_path_factory, actions, every):
    path = tmp_path_factory.mktemp("journal") / "a"
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, seed=5)
    sampler = begin(path, snapshot_every=every)
    pending, heard = {}, []
    for action, k in actions:
        if action == "draw":
            cohort = sampler.draw()
            pending[cohort.round] = straight.draw()
        elif action == "update" and pending:
            round = sorted(pending)[k % len(pending)]
            mine = {c.round: c for c in sampler.outstanding()}
            assert sorted(mine) == sorted(pending)
            sampler.update(mine[round], norms_of(round)[mine[round].ids])
            straight.update(pending[round], norms_of(round)[mine[round].ids])
            heard.append(mine[round])
            del pending[round]
        elif action == "repeat" and heard:
            again = heard[k % len(heard)]
            sampler.update(again, norms_of(again.round)[again.ids])
        elif action == "reopen":
            sampler.close()
            sampler = journalled(path)
    sampler.close()
    with journalled(path) as sampler:
        assert_same(sampler, straight)


FIXED = [
    kvib.pivotal,
    kvib.systematic,
    kvib.balanced,
    kvib.ordered,
    kvib.with_replacement,
    kvib.conditional_poisson,
]


@pytest.mark.parametrize("procedure", FIXED, ids=repr)
def test_the_variance_that_updates_show_is_kept(procedure, tmp_path, monkeypatch):
    """Of rounds that end by `step`, or by `begin` with `spread`: as `estimated_variance` has it."""
    path, values = tmp_path / "a", []
    updates = np.random.default_rng(3).normal(size=(len(WEIGHTS), 5)).astype(np.float32)
    with begin(path, procedure=procedure, response=0.8) as sampler:
        for t in range(6):
            cohort = sampler.draw()
            given = [None if i % 4 == t % 4 else updates[i] for i in cohort.ids]
            same = (
                cohort if procedure is not kvib.conditional_poisson else replace(cohort, pairs=None)
            )
            values.append(kvib.estimated_variance(same, given).value)
            if t % 2:
                sampler.step(cohort, given)
                continue
            estimation = sampler.begin(cohort, spread=True)
            for k, update in enumerate(given):
                if update is not None:
                    estimation.add(np.arange(len(cohort)) == k, update[None])
            estimation.finish()
            assert estimation.variance == pytest.approx(values[-1], rel=1e-6)
        assert read(path).table().variance == pytest.approx(values, rel=1e-6)
    assert np.isfinite(values).sum() >= 4
    rows, done_again = [], recorder.Recorder._done

    def noting(*given):
        done = done_again(*given)
        rows.extend([done.row] if isinstance(done.row, Answered) else [])
        return done

    monkeypatch.setattr(recorder.Recorder, "_done", noting)
    with journalled(path) as sampler:  # does all events again
        again = [np.nan if row.variance is None else row.variance for row in rows]
        assert np.array_equal(read(path).table().variance, again, equal_nan=True)
        cohort = sampler.draw()
        sampler.begin(cohort).finish(variance=1.25)  # of a caller who knows better
        assert read(path).table().variance[-1] == 1.25


def test_the_variance_of_a_round_finished_after_a_restart(tmp_path):
    """Second moments are lost then: an approximation, or nothing."""
    updates = np.random.default_rng(4).normal(size=(len(WEIGHTS), 5))
    for procedure in (kvib.pivotal, kvib.with_replacement):
        path = tmp_path / procedure.name
        with begin(path, procedure=procedure) as sampler:
            drawn = sampler.draw()
        with journalled(path) as sampler:
            [cohort] = sampler.outstanding()
            sampler.step(cohort, updates[cohort.ids])
            value = read(path).table().variance[0]
        known = kvib.estimated_variance(drawn, updates[drawn.ids]).value
        expected = known if procedure is kvib.pivotal else np.nan
        assert value == pytest.approx(expected, nan_ok=True)


def test_it_has_the_methods_of_a_sampler():
    """With the same arguments, so that either can be used."""
    made_elsewhere = {"load", "unpacked", "restored"}
    for name, method in inspect.getmembers(kvib.Sampler, callable):
        if not name.startswith("_") and name not in made_elsewhere:
            ours = inspect.signature(getattr(kvib.Journalled, name))
            assert list(ours.parameters) == list(inspect.signature(method).parameters), name
    assert not issubclass(kvib.Journalled, kvib.Sampler)

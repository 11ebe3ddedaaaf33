"""Rounds that were lost: closed in the file too, without feedback."""

import numpy as np
import pytest
from journal_crash import assert_same

import kvib
from kvib.journal import journalled, read

N = 12
WEIGHTS = np.arange(1.0, N + 1)


def begin(path, **options):
    options = {"seed": 5, "response": kvib.EstimatedRate()} | options
    return journalled(path, kvib.KVib(), WEIGHTS, 4, **options)


def play(sampler, rounds):
    for _ in range(rounds):
        cohort = sampler.draw()
        if cohort.round % 3 == 1:
            sampler.give_up(cohort)
        else:
            sampler.update(cohort, np.full(len(cohort), 1 + cohort.round % 2))


def waiting(path):
    with journalled(path) as sampler:
        return [n for (n,) in sampler.recorder.file.all("SELECT round FROM waiting ORDER BY round")]


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_interrupted_equals_straight(tmp_path, every):
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 4, seed=5, response=kvib.EstimatedRate())
    begin(tmp_path / "a", snapshot_every=every).close()
    for _ in range(8):
        play(straight, 1)
        with journalled(tmp_path / "a") as sampler:
            play(sampler, 1)
    with journalled(tmp_path / "a") as sampler:
        assert_same(sampler, straight)
        assert sampler.outstanding() == []


def test_it_is_closed_without_answers(tmp_path):
    path = tmp_path / "a"
    with begin(path) as sampler:
        cohorts = [sampler.draw() for _ in range(4)]
        sampler.give_up(cohorts[1])
        for _ in range(2):
            with pytest.raises(ValueError, match="round 1 was given up before"):
                sampler.update(cohorts[1], np.ones(len(cohorts[1])))
            with pytest.raises(ValueError, match="round 1 was given up before"):
                sampler.give_up(cohorts[1])
            assert [c.round for c in sampler.outstanding()] == [0, 2, 3]
            sampler.close()
            sampler = journalled(path)
        sampler.update(cohorts[0], np.ones(len(cohorts[0])))
        with pytest.raises(ValueError, match="round 0 was updated before"):
            sampler.give_up(cohorts[0])
        with pytest.raises(ValueError, match="not the cohort that was drawn in round 2"):
            sampler.give_up(cohorts[2].take(np.arange(len(cohorts[2])) > 0))
        with pytest.raises(ValueError, match="is not a cohort"):
            sampler.give_up([1, 2])
        sampler.give_up(cohorts[2])  # and goes on
        sampler.close()
    history = read(path)
    assert [one.answered for one in history.rounds()] == [True, False, False, False]
    assert np.isnan(history.table().answered).tolist() == [False, True, True, True]
    assert history.participation().sum() == sum(map(len, cohorts))


def test_the_file_forgets_its_cohort(tmp_path):
    """Not before the next snapshot: until then the event is done again from the last one."""
    path = tmp_path / "a"
    with begin(path, snapshot_every=3) as sampler:
        cohorts = [sampler.draw() for _ in range(6)]
        assert sampler.recorder.file.about["snapshot"] == 6
        sampler.give_up(cohorts[2])
    assert waiting(path) == [0, 1, 2, 3, 4, 5]
    with journalled(path) as sampler:
        for cohort in cohorts[3:]:
            sampler.give_up(cohort)
        sampler.draw()
        sampler.draw()
        assert sampler.recorder.file.about["snapshot"] == 12
        sampler.give_up(sampler.draw())
        assert sampler.recorder.recent == {}
    assert waiting(path) == [0, 1, 6, 7]


def test_rounds_that_were_removed(tmp_path):
    path = tmp_path / "a"
    with begin(path, snapshot_every=2, keep=3) as sampler:
        first = sampler.draw()
        play(sampler, 12)
        assert read(path).about.removed > 0
        with pytest.raises(ValueError, match=r"round 0 was given up: this journal keeps 3"):
            sampler.give_up(first)
        left = sampler.packed()
    with journalled(path) as sampler:
        assert all(np.array_equal(a, left[name]) for name, a in sampler.packed().items())


def test_while_clients_check_in(tmp_path):
    """No probability changes."""
    with begin(tmp_path / "a", procedure=kvib.independent, response=0.9) as sampler:
        cohort = sampler.draw()
        admitted = [i for i in range(N) if sampler.admit(i)]
        sampler.give_up(cohort)
        assert sampler.gather(admitted).ids.tolist() == admitted

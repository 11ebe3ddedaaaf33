"""What people do wrong, and the way out that they are told."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

import kvib

KEYS = ["ann", "bob", "eve", "tom"]


def new(policy=None, procedure=kvib.pivotal, budget=2, weights=(1, 2, 3, 4), **options):
    return kvib.Sampler(policy or kvib.KVib(), weights, budget, procedure, **options)


def told(norms, cohort=None):
    sampler = new()
    drawn = sampler.draw()
    sampler.update(drawn if cohort is None else cohort, norms)


class Nothing(kvib.Policy):
    """A subclass, and no more."""


MISTAKES = {
    "class for policy": (lambda: new(kvib.KVib), r"KVib is a class; write KVib\(\)"),
    "name for policy": (lambda: new("KVib"), r"'KVib' is not a policy; write kvib\.Forecast\(\)"),
    "policy forgotten": (lambda: new([1, 2, 3]), r"\[1, 2, 3\] is not a policy"),
    "policy without methods": (lambda: new(Nothing()), "no start and no scores and no procedure"),
    "name for procedure": (lambda: new(procedure="systematic"), r"write kvib\.systematic$"),
    "not a procedure": (lambda: new(procedure=np.sort), r"write kvib\.pivotal, say"),
    "guard True": (
        lambda: new(guard=True),
        r"guard=True is not a kvib\.Guard; give kvib\.Guard\(\)",
    ),
    "class for estimator": (
        lambda: new(estimator=kvib.Difference),
        r"is not a kvib\.Difference; give kvib\.Difference\(\), or None",
    ),
    "updates of two models": (
        lambda: (s := new()).step(s.draw(), [np.ones(3), np.ones(4)]),
        r"shapes \(3,\) and \(4,\) \(number 1\); all must be of one model",
    ),
    "budget as text": (lambda: new(budget="2"), "budget '2' is not a number"),
    "budget None": (lambda: new(budget=None), "budget None is not a number"),
    "budget True": (lambda: new(budget=True), "budget True is not a number"),
    "weights by key": (
        lambda: new(weights={"a": 1, "b": 2}),
        r"write weights=list\(d\.values\(\)\), keys=list\(d\)",
    ),
    "weights as text": (lambda: new(weights=["a", "b"]), r"weights \['a', 'b'\] are not numbers"),
    "weights generated": (lambda: new(weights=(x for x in (1, 2))), "as a list or an array"),
    "weights complex": (lambda: new(weights=[1j, 2, 3]), "are not numbers"),
    "norms as text": (lambda: told(["a", "b"]), r"norms \['a', 'b'\] are not numbers; give ‖g‖"),
    "updates for norms": (lambda: told(np.ones((2, 3))), r"kvib\.norms\(updates\) makes one"),
    "norms by key": (lambda: told({"ann": 1.0}), "client 'ann' is not in the cohort of round 0"),
    "ids for a cohort": (
        lambda: told([1.0, 1.0], cohort=[0, 1]),
        r"\[0, 1\] is not a cohort; give the one that draw\(\) returned",
    ),
    "ids for a cohort in step": (lambda: new().step([0, 1], [1.0, 1.0]), "is not a cohort"),
    "available by key": (
        lambda: new(keys=KEYS).draw(available=["ann", "tom"]),
        r"available=\['ann', 'tom'\] are not ids; sampler\.ids\(keys\) gives those of keys",
    ),
    "absent by key": (lambda: new(keys=KEYS).draw(absent=["ann"]), r"^absent=\['ann'\] are not"),
    "unknown id": (lambda: new().draw(absent=[7]), r"0 to 3, and sampler\.ids\(keys\) gives"),
    "draw(2)": (lambda: new().draw(2), r"available=2 is one number; did you mean budget=2\?"),
    "unequal without replacement": (
        lambda: new(procedure=kvib.without_replacement),
        r"the same probability, KVib does not; kvib\.pivotal draws a fixed number",
    ),
    "newcomer by key": (
        lambda: new(keys=KEYS).join([5, -1], keys=["ida", "zoe"]),
        r"weight -1\.0 of client 'zoe'",
    ),
    "newcomer": (lambda: new().join([5, -1]), r"weight -1\.0 of client 5"),
    "reweighed": (lambda: new(keys=KEYS).reweigh("eve", -1), r"weight -1\.0 of client 'eve'"),
}


@pytest.mark.parametrize(("mistake", "way_out"), MISTAKES.values(), ids=MISTAKES)
def test_the_way_out(mistake, way_out):
    with pytest.raises(ValueError, match=way_out):
        mistake()


def test_sets_of_ids():
    listed, unordered = (new() for _ in range(2))
    assert unordered.draw({3, 1, 2}).ids.tolist() == listed.draw([1, 2, 3]).ids.tolist()
    assert set(unordered.draw(absent={0}).ids) <= {1, 2, 3}


def test_a_share_of_the_clients():
    with pytest.warns(UserWarning, match=r"less than one client .* write 0\.1 \* 4") as told:
        new(budget=0.1)
    assert [Path(warning.filename).name for warning in told] == ["test_mistakes.py"]
    new(budget=0.1, cost=np.full(4, 0.1))  # in another unit


def test_weights_of_torch():
    torch = pytest.importorskip("torch")
    assert new(weights=torch.tensor([1, 2, 3, 4])).weights.tolist() == [0.1, 0.2, 0.3, 0.4]


# Policies of one's own


class LastState(NamedTuple):
    last: np.ndarray


@dataclass(frozen=True)
class Last(kvib.Policy[LastState]):
    procedure: ClassVar = kvib.pivotal

    def start(self, setting):
        return LastState(setting.weights.copy())

    def scores(self, state, ids):
        return state.last[ids]

    def observe(self, state, cohort, feedback):
        state.last[cohort.ids] = feedback
        return state


class Short(Last):
    def scores(self, state, ids):
        return np.ones(3)


class Long(Last):
    def scores(self, state, ids):
        return np.ones(len(ids) + 2)


class Flat(Last):
    def scores(self, state, ids):
        return np.ones((len(ids), 1))


class Lost(Last):
    def scores(self, state, ids):
        return np.where(ids == 2, np.nan, 1.0)


class Below(Last):
    def scores(self, state, ids):
        return np.where(ids == 2, -1.0, 1.0)


class Never(Last):
    def scores(self, state, ids):
        return np.where(ids == 2, 0.0, 1.0)


class NeverByIndex(Never):
    lasting: ClassVar = True


class NeverButExplored(Never):
    def exploration(self, state, round):
        return kvib.policies.Exploration(floor=0.1)


class Forgetful(Last):
    def observe(self, state, cohort, feedback):
        state.last[cohort.ids] = feedback


class Nowhere(Last):
    def start(self, setting):
        return None


class Listed(Last):
    def scores(self, state, ids):
        return [1.0 + i for i in ids.tolist()]


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.independent], ids=repr)
@pytest.mark.parametrize(
    ("policy", "way_out"),
    [
        (Short(), r"Short\.scores gave an array of shape \(3,\) for 4 clients"),
        (Long(), r"Long\.scores gave an array of shape \(6,\) for 4 clients"),
        (Flat(), r"Flat\.scores gave an array of shape \(4, 1\) for 4 clients; return one number"),
        (Lost(), "client 2 the score nan; a score is a finite number"),
        (Below(), r"client 2 the score -1\.0"),
        (Never(), "Never gives client 2 the score 0: it would never be drawn"),
        (NeverByIndex(), "NeverByIndex gives client 2 the score 0"),
        (Forgetful(), r"Forgetful\.observe returned None, not a LastState; return the state"),
        (Nowhere(), r"Nowhere\.start returned None; return a NamedTuple"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_policies_that_go_wrong(policy, way_out, procedure):
    def play():
        sampler = new(policy, procedure)
        cohort = sampler.draw(budget=4)
        sampler.update(cohort, np.ones(len(cohort)))

    with pytest.raises(ValueError, match=way_out):
        play()


class Lasting(Last):
    """Zero feedback gives a score of 0, which an index cannot hold."""

    lasting: ClassVar = True

    def exploration(self, state, round):
        return kvib.policies.Exploration(mix=0.1)


class LastingFloor(Last):
    lasting: ClassVar = True

    def scores(self, state, ids):
        return np.ones(len(ids))

    def exploration(self, state, round):
        return kvib.policies.Exploration(floor=0.1)


class LastingRarely(Lasting):
    """Only a client that is not among the first two gets a score of 0."""

    def scores(self, state, ids):
        return np.where(ids < 2, 1.0, state.last[ids])


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.independent], ids=repr)
def test_lasting_scores_are_positive(procedure):
    """Refused before the first round, whatever the procedure; where that cannot be known, later."""
    for policy, way_out in (
        (Lasting(), "norm of 0 the score 0; give every client a positive score, or set lasting"),
        (LastingFloor(), "explores with a floor; explore with `mix`, or set lasting = False"),
    ):
        with pytest.raises(ValueError, match=way_out):
            new(policy, procedure)
    sampler = new(LastingRarely(), procedure)
    cohort = sampler.draw(budget=4)
    if procedure is kvib.independent:
        with pytest.raises(ValueError, match="client 2 the score 0; a policy with `lasting`"):
            sampler.update(cohort, np.zeros(4))
    else:
        sampler.update(cohort, np.zeros(4))
        assert (sampler.probabilities() > 0).all()


def test_policies_that_go_right():
    assert new(Listed()).probabilities() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert new(NeverButExplored()).probabilities()[2] == pytest.approx(0.1 * 2 / 4)


def test_zero_is_a_score_where_norms_are_known():
    """The oracle knows that such a client has nothing to say: nothing is lost."""
    p = new(kvib.Optimal(), kvib.independent).probabilities(norms=[1, 0, 1, 1])
    assert 0 < p[1] < 1e-50


# Files


def test_the_wrong_file(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"other\.npz is not a whole .* \(it has no header\)"):
        kvib.Sampler.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"\(it is not an archive of arrays\)") as told:
        kvib.Sampler.load(tmp_path / "text.npz")
    assert "pickle" not in str(told.value)


def test_a_journal_is_not_a_state_file(tmp_path):
    with kvib.journalled(tmp_path / "run.kvib", kvib.KVib(), [1, 2, 3], 2):
        pass
    with pytest.raises(ValueError, match=r"run\.kvib: this is a journal, .* kvib\.journalled"):
        kvib.Sampler.load(tmp_path / "run.kvib")


def test_a_checkpoint_is_not_a_state_file(tmp_path):
    from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic

    task, local = synthetic(), LocalSGD(0.02, 64)
    sampler = kvib.Sampler(kvib.Uniform(), task.weights, 2)
    list(Simulation(task, LinearEngine(task, local), sampler, local).run(1, tmp_path))
    with pytest.raises(ValueError, match=r"a kvib simulation file, not a sampler file; Simulation"):
        kvib.Sampler.load(tmp_path / "checkpoint.npz")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nodir to write a\.npz into"):
        new().save(tmp_path / "nodir" / "a.npz")


# The command line


def kvib_without(*missing, words=()):
    block = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    code = f"import sys; {block}from kvib.cli import main; sys.argv[1:] = {list(words)}; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_command_line_without_its_extra(package):
    done = kvib_without(package)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"kvib: this needs {package}: pip install '.[cli]' in a clone of kvib\n"


def test_version():
    pytest.importorskip("typer")
    assert kvib_without(words=["--version"]).stdout == f"{kvib.__version__}\n"


def test_reprs_are_one_short_line():
    cohort = kvib.Sampler(kvib.KVib(), np.ones(100), 50, kvib.pivotal).draw()
    assert repr(cohort).startswith("<Cohort of round 0: 50 clients [")
    assert len(repr(cohort)) < 100

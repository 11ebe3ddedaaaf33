"""What a user imports: every name once, also for type checkers, and old names with a warning."""

import operator
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import kvib
import kvib.integrations.flower
from kvib import names, policies, procedures
from kvib.integrations.kit import EstimateAvailability, Renormalise
from kvib.journal import Logged
from kvib.sim import Record

SOURCE = Path(kvib.__file__).parents[1]
MOVED = {
    "Admission": "kvib.clients.check_in",
    "Exploration": "kvib.policies",
    "Forecasts": "kvib.policies",
    "Pairs": "kvib.procedures",
    "Setting": "kvib.policies",
}


def test_policies_and_procedures_are_public_by_their_lists():
    for table, room in ((names.POLICIES, policies), (names.PROCEDURES, procedures)):
        for name, value in table.items():
            assert getattr(kvib, name) is getattr(room, name) is value
            assert name in kvib.__all__
            assert name in room.__all__
    assert all(issubclass(policy, kvib.Policy) for policy in names.POLICIES.values())
    assert all(isinstance(value, kvib.Procedure) for value in names.PROCEDURES.values())
    assert all(name == policy.__name__ for name, policy in names.POLICIES.items())
    assert all(name == procedure.name for name, procedure in names.PROCEDURES.items())


def test_every_public_name_exists_and_no_module_slips_in():
    for room in (kvib, policies, procedures):
        assert len(room.__all__) == len(set(room.__all__))
        assert all(hasattr(room, name) for name in room.__all__)
    modules = {name for name in kvib.__all__ if isinstance(getattr(kvib, name), type(sys))}
    assert modules == {"journal", "metrics", "plan", "replay", "theory"}


@pytest.mark.parametrize("name", MOVED)
def test_names_that_moved(name):
    assert name not in kvib.__all__
    with pytest.warns(DeprecationWarning, match=f"kvib.{name} is now {MOVED[name]}.{name}") as said:
        value = getattr(kvib, name)
    assert said[0].filename == __file__
    assert value is getattr(sys.modules[MOVED[name]], name)


RENAMED = {
    "kvib.metrics.cost": "sampling_cost",
    "kvib.metrics.optimal_cost": "optimal_sampling_cost",
    "kvib.theory.dynamic_regret": "dynamic_regret_bound",
    "kvib.theory.hindsight_gap": "hindsight_gap_bound",
    "kvib.theory.restricted_cost": "restricted_sampling_cost",
    "kvib.replay.Estimate": "Interval",
    "kvib.integrations.flower.usual_guard": "default_guard",
}


@pytest.mark.parametrize("old", RENAMED)
def test_names_that_changed_in_a_module(old):
    home, name = old.rsplit(".", 1)
    module = operator.attrgetter(home.removeprefix("kvib."))(kvib)
    with pytest.warns(DeprecationWarning, match=f"{name} is now .*{RENAMED[old]}") as warned:
        value = getattr(module, name)
    assert warned[0].filename == __file__
    assert value is getattr(module, RENAMED[old])
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


COHORT = {"ids": [0, 2], "count": [1, 1], "expected": [0.5, 0.5], "weight": [0.1, 0.2]}
CHANGED = {
    "Cohort response": (partial(kvib.Cohort, **COHORT), "response", "answer_probability", [0.5, 1]),
    "Cohort left_out": (partial(kvib.Cohort, **COHORT), "left_out", "excluded", [1]),
    "Logged": (partial(Logged, kvib.Cohort(**COHORT), np.ones(2)), "heard", "answered", False),
    "Record": (partial(Record, round=0, clients=1), "cost", "sampling_cost", 2.0),
    "offline": (EstimateAvailability, "gone_after", "leave_after", 7),
}


@pytest.mark.parametrize("name", CHANGED)
def test_fields_that_changed_their_name(name):
    """They can be given and read by the old name, with a warning at the line that does so."""
    make, old, new, value = CHANGED[name]
    with pytest.warns(DeprecationWarning, match=f"{old}=….* is now .*{new}=…") as warned:
        one = make(**{old: value})
    assert warned[0].filename == __file__
    assert np.array_equal(getattr(one, new), value)
    assert np.array_equal(getattr(make(**{new: value}), new), value)
    with pytest.warns(DeprecationWarning, match=f"{old} is now .*{new}") as warned:
        assert np.array_equal(getattr(one, old), value)
    assert warned[0].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        one.nothing  # noqa: B018
    with (
        pytest.warns(DeprecationWarning, match=old),
        pytest.raises(TypeError, match=f"{old} is {new} by its old name; give one of them"),
    ):
        make(**{old: value, new: value})


@pytest.mark.parametrize("offline", [EstimateAvailability(), Renormalise()])
def test_a_constant_that_changed_its_name(offline):
    with pytest.warns(DeprecationWarning, match="everybody_is_listed is now lists_all") as warned:
        assert offline.everybody_is_listed == offline.lists_all
    assert warned[0].filename == __file__


def test_a_cohort_that_version_0_1_pickled():
    fields = kvib.Cohort(**COHORT, answer_probability=[0.5, 1]).__dict__
    earlier = {"answer_probability": "response", "excluded": "left_out"}
    cohort = kvib.Cohort.__new__(kvib.Cohort)
    cohort.__setstate__({earlier.get(name, name): value for name, value in fields.items()})
    assert cohort.answer_probability.tolist() == [0.5, 1]
    assert cohort.excluded is None
    assert cohort.coefficients.tolist() == [0.4, 0.4]


def test_names_that_never_were():
    with pytest.raises(AttributeError, match="module 'kvib' has no attribute 'Forcast'"):
        kvib.Forcast  # noqa: B018


PROGRAM = """
from kvib import Forecast, KVib, Policy, Procedure, pivotal
from kvib.policies import Exploration, Setting
from kvib.procedures import Indexed, Pairs
import kvib
import kvib.policies

reveal_type(kvib.Forecast())
reveal_type(kvib.policies.Vrb())
reveal_type(kvib.neighbours)
sampler = kvib.Sampler(Forecast(floor=0.1), weights=[1, 2], budget=1, procedure=pivotal)
sampler.update(sampler.draw(), norms=[0.5])
own: Policy[tuple[float]]
way: Procedure = kvib.systematic
"""
WRONG = """
import kvib
kvib.Forcast()
kvib.Forecast(flor=1)
class Mine(kvib.Policy[tuple[float]]):
    def expected(self) -> int:
        return 1
"""


@pytest.mark.slow
def test_a_users_file_is_typed(tmp_path):
    """Names, also those from the lists, are known to a strict type checker, and wrong ones not."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py", "wrong.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith(("user.py", "wrong.py"))]
    right = "\n".join(line for line in said if line.startswith("user.py"))
    wrong = "\n".join(line for line in said if line.startswith("wrong.py"))
    assert "error" not in right
    for revealed in ("forecast.Forecast", "vrb.Vrb", "procedure.Procedure"):
        assert revealed in right
    assert 'Module has no attribute "Forcast"' in wrong
    assert 'Unexpected keyword argument "flor"' in wrong
    assert 'Cannot override final attribute "expected"' in wrong

"""What a user imports: every name once, also for type checkers, and old names with a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvib
from kvib import names, policies, procedures

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

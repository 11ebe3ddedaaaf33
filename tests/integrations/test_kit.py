"""The kit of the adapters, without any framework."""

import ast
import subprocess
import sys

import numpy as np
import pytest

import kvib
from kvib.integrations.kit import (
    Answer,
    BadReplyError,
    Fleet,
    FleetOptions,
    Introduction,
    KnownClients,
    Model,
    Refusal,
    Round,
    Silence,
    Visible,
    checked_length,
)
from places import ROOT

INTEGRATIONS = ROOT / "src" / "kvib" / "integrations"
WEIGHTS = [1.0, 2.0, 3.0, 4.0]
NAMES = ["ann", "bob", "eve", "zoe"]


def sampler(policy=None, budget=2, **options):
    return kvib.Sampler(policy or kvib.Uniform(), WEIGHTS, budget, seed=1, **options)


def everybody(**options):
    """A round in which all clients are drawn."""
    made = sampler(budget=4, keys=NAMES, **options)
    return Round(made, made.draw())


def fleet(**options):
    given = {"policy": kvib.Uniform(), "budget": lambda most, round: 4.0, **options}
    new = Fleet(FleetOptions(**given))
    new.strangers(NAMES)
    new.meet(Introduction(k, k, w) for k, w in zip(NAMES, WEIGHTS, strict=True))
    return new


# Rounds


def test_a_client_answers_once_if_it_was_asked():
    round = everybody()
    assert round.keys == NAMES
    assert [round.answers(key) for key in ("eve", "eve", "mallory", "ann")] == [2, None, None, 0]


def test_who_says_nothing_is_late_and_who_is_refused_is_not():
    round = everybody()
    position = round.answers("bob")
    round.refuse(position, "it diverged")
    round.answers("ann")
    round.refuse(3, "it is offline", Silence.OFFLINE)
    assert round.answers("zoe") is None
    round.refuse_silent()
    assert round.unanswered == {
        "bob": Refusal(Silence.REFUSED, "it diverged"),
        "zoe": Refusal(Silence.OFFLINE, "it is offline"),
        "eve": Refusal(Silence.LATE, "no answer"),
    }
    assert round.refused == {"bob": "it diverged", "zoe": "it is offline", "eve": "no answer"}


def test_three_ways_to_end_a_round_give_one_step():
    updates = np.random.default_rng(0).normal(size=(4, 3))
    x = np.ones(3)
    ends = []
    for end in ("arrays", "updates", "norms"):
        round = everybody(response=kvib.EstimatedRate())
        answered = [0, 1, 3]
        if end == "arrays":
            model = Model({"w": x}, set())
            combination = Visible().begin(round, model)
            took = [combination.take(Answer(at, {"w": x - updates[at]})) for at in answered]
            assert all(took)
            ends.append(combination.finish().d)
        elif end == "updates":
            ends.append(round.step({at: updates[at] for at in answered}))
        else:
            norms = np.linalg.norm(updates, axis=1)
            norms[2] = np.nan
            ends.append(round.cohort.coefficients[answered] @ updates[answered])
            round.learn(norms)
        with pytest.raises(ValueError, match="before"):
            round.give_up()
    assert ends[1] == pytest.approx(ends[0])
    assert ends[2] == pytest.approx(ends[0])


def test_a_round_that_is_given_up_teaches_nothing():
    made = sampler(kvib.KVib(rounds=10), keys=NAMES)
    round, before = Round(made, made.draw()), made.probabilities()
    round.give_up()
    assert (made.probabilities() == before).all()
    with pytest.raises(ValueError, match="given up"):
        round.learn(np.ones(len(round)))


def test_an_answer_that_is_no_update_is_refused_in_its_round():
    round = everybody(response=kvib.EstimatedRate())
    combination = Visible().begin(round, Model({"w": np.zeros(2)}, set()))
    assert combination.take(Answer(0, {"w": np.ones(2)}))
    assert not combination.take(Answer(1, {"w": np.full(2, np.nan)}))
    assert not combination.take(Answer(2, {"w": np.ones(3)}))
    assert list(round.refused) == ["bob", "eve"]
    assert "it diverged" in round.refused["bob"]


@pytest.mark.parametrize("norm", [np.nan, np.inf, 1e39])
def test_no_update_is_that_long(norm):
    assert checked_length(0.0) == 0
    with pytest.raises(BadReplyError, match="it diverged"):
        checked_length(norm)


# Known clients


def test_known_clients_draw_what_their_sampler_draws():
    clients, alone = KnownClients(sampler()), sampler()
    for _ in range(3):
        round = clients.draw()
        assert round.cohort.ids.tolist() == alone.draw().ids.tolist()
        assert clients.cohort is round.cohort
    assert len(clients.draw(budget=9)) == 4  # all there are


def test_clients_are_called_by_key_or_by_number():
    options = {"budget": 4, "keys": NAMES}
    assert KnownClients(sampler(**options)).draw().keys == NAMES
    assert KnownClients(sampler(**options), numbered=True).draw().keys == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "sees", [{"guard": kvib.Guard()}, {"sketch": 4}, {"estimator": kvib.Difference()}]
)
def test_no_guard_where_the_framework_sums(sees):
    assert KnownClients(sampler(**sees)).cohort is None
    with pytest.raises(ValueError, match="before we see them"):
        KnownClients(sampler(**sees), sums_alone=True)


def test_a_policy_that_needs_all_norms_is_refused():
    with pytest.raises(ValueError, match="Optimal must know all norms before it draws"):
        KnownClients(sampler(kvib.Optimal()))


# Fleets


def test_a_fleet_draws_rounds():
    new = fleet()
    assert new.refused == {}
    round = new.draw(NAMES)
    assert round is new.round
    assert round.keys == NAMES
    assert round.cohort.weight == pytest.approx(np.array(WEIGHTS) / 10)
    round.refuse(1, "it diverged")
    assert new.refused == {"bob": "it diverged"}


def test_none_is_drawn_where_none_is_online():
    assert fleet().draw([]) is None
    assert (
        Fleet(FleetOptions(policy=kvib.Uniform(), budget=lambda most, round: 1.0)).draw([]) is None
    )


def test_the_policy_after_a_switch_decides_who_may_join():
    new = fleet()
    new.switch(kvib.Avare())
    with pytest.warns(UserWarning, match="'new' is new, and policy Avare is for those there"):
        new.meet([Introduction("n", "new", 5.0)])
    with pytest.warns(UserWarning, match="'zoe' has another weight now, and policy Avare is for"):
        new.meet([Introduction("zoe", "zoe", 6.0)])
    assert new.sampler.keys(range(len(new.sampler))) == NAMES


# What the kit may not ask for


def test_the_kit_needs_no_framework():
    code = (
        "import sys, kvib.integrations.kit\n"
        "print(sorted({'flwr', 'pfl', 'nvflare', 'fedlab', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("path", sorted(INTEGRATIONS.rglob("*.py")), ids=lambda p: p.stem)
def test_adapters_import_the_core_and_the_kit_only(path):
    """Not the simulator and the lab, nor each other."""
    room = path.relative_to(INTEGRATIONS).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvib"):
            parts = node.module.split(".")[1:]
            assert parts[:1] not in (["sim"], ["lab"], ["cli"]), node.module
            if parts[:1] == ["integrations"]:
                assert parts[1] in {"kit", room}, node.module


@pytest.mark.parametrize("path", sorted(INTEGRATIONS.rglob("*.py")), ids=lambda p: p.stem)
def test_no_private_attribute_of_another_object_is_read(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and "__" not in node.attr:
            assert ast.unparse(node.value) in {"self", "cls", "super()"}, ast.unparse(node)

"""Terms of a log: written down once, checked once, known by a journal."""

import dataclasses
import math

import numpy as np
import pytest

import kvib
from kvib.journal import Logged
from kvib.replay import Log, Terms, replay
from logs import logged, world

RIVALS = {"forecast": kvib.Forecast(), "K-Vib": kvib.KVib()}


@pytest.fixture
def journal(tmp_path):
    weights, norms = world(1, rounds=12)
    with kvib.journalled(tmp_path / "run.kvib", kvib.BySize(), weights, 8, kvib.pivotal) as sampler:
        for row in norms:
            cohort = sampler.draw()
            sampler.update(cohort, row[cohort.ids])
    return kvib.journal.read(tmp_path / "run.kvib")


def test_a_journal_knows_its_terms(journal):
    """The one-line call gives what its rounds give under terms that are spelled out."""
    assert isinstance(journal, Log)
    terms = journal.terms()
    assert (terms.policy, terms.procedure) == (kvib.BySize(), kvib.pivotal)
    assert (terms.budget, terms.most, terms.prices) == (8, 60, None)
    spelled = Terms(terms.weights, procedure=kvib.pivotal, policy=kvib.BySize())
    ways = (journal, None), (journal, terms), (journal.rounds(), spelled)
    one, *others = [str(replay(log, RIVALS, given)) for log, given in ways]
    assert others == [one, one]
    ways = (journal, None), (journal, terms), (journal.rounds(), spelled)
    one, *others = [str(kvib.plan.plan(log, kvib.KVib(), given)) for log, given in ways]
    assert others == [one, one]


def test_the_name_of_version_0_1_for_terms(journal):
    assert vars(journal.given()).keys() == vars(journal.terms()).keys()


def test_given_terms_count_more_than_those_of_the_journal(journal):
    other = dataclasses.replace(journal.terms(), procedure=kvib.independent)
    assert replay(journal, {}, other).covers == "all of the variance"


def test_what_is_left_out_follows_from_the_log():
    """Weights in any unit; the budget of the first round; a budget for all clients at most."""
    weights, norms = world(2, rounds=8)
    rounds, _ = logged(kvib.Uniform(), weights, norms, 8, kvib.independent)
    short = Terms(list(4 * weights))
    nothing = np.empty((60, 0))
    long = Terms(4 * weights, procedure=kvib.independent, budget=8, variables=nothing, most=60)
    assert str(replay(rounds, RIVALS, short)) == str(replay(rounds, RIVALS, long))
    assert math.isnan(short.budget)
    assert short.most == 60
    assert Terms(weights, prices=np.full(60, 2.5)).most == 150


def test_terms_are_frozen():
    terms = Terms([1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        terms.budget = 3.0


WRONG = {
    "no weights": (([],), {}, "give one positive number per client"),
    "a weight of 0": (([1, 0],), {}, "weight 0.0 of client 1"),
    "a name": (([1, 2],), {"procedure": "pivotal"}, "write kvib.pivotal, say"),
    "no budget": (([1, 2],), {"budget": 0}, "budget 0 is not a positive number"),
    "a budget in words": (([1, 2],), {"most": "all"}, "'all' is not a number of clients"),
    "prices of others": (([1, 2],), {"prices": [1]}, "for each of 2 clients"),
    "variables of others": (([1, 2],), {"variables": [[1], [2], [3]]}, "not of 2 clients"),
}


@pytest.mark.parametrize(("given", "named", "why"), WRONG.values(), ids=WRONG)
def test_mistakes_are_found_where_terms_are_written(given, named, why):
    with pytest.raises(ValueError, match=why):
        Terms(*given, **named)


def test_errors_name_the_way_out(journal):
    terms, rounds = journal.terms(), list(journal.rounds())
    with pytest.raises(ValueError, match=r"give the journal itself, kvib\.journal\.read\(path\)"):
        replay(rounds, RIVALS)
    with pytest.raises(ValueError, match=r"write kvib\.replay\.Terms\(weights"):
        replay(rounds, RIVALS, terms.weights)
    with pytest.raises(ValueError, match=r"write \{'Forecast': kvib\.Forecast\(\)\}"):
        replay(journal, [kvib.Forecast()])
    with pytest.raises(ValueError, match=r"kvib\.replay\.Logged\(cohort, norms\) for every round"):
        replay([one.cohort for one in rounds], RIVALS, terms)
    with pytest.raises(ValueError, match=r"which policy drew the rounds; write .*policy=…"):
        kvib.plan.plan(rounds, terms=Terms(terms.weights))


OLD = {
    "weights first": (({},), {}, r"write replay\(rounds, policies, kvib.replay.Terms\(weights\)\)"),
    "a procedure": (({},), {"procedure": kvib.pivotal}, r"procedure: .*weights, procedure=…\)\)"),
    "all by name": ((), {"weights": [1], "policies": {}, "usual": 2}, r"Terms\(weights, budget=…"),
}


@pytest.mark.parametrize(("given", "named", "why"), OLD.values(), ids=OLD)
def test_calls_of_version_0_1_are_refused_with_the_new_way(given, named, why):
    weights = () if "weights" in named else (np.ones(3),)
    with pytest.raises(TypeError, match=why):
        replay([], *weights, *given, **named)


@pytest.mark.parametrize("policies", [(kvib.KVib(),), (kvib.KVib(), kvib.Forecast())])
@pytest.mark.parametrize("named", [{}, {"most": 9, "prices": None}])
def test_plans_of_version_0_1_are_refused_with_the_new_way(policies, named):
    with pytest.raises(TypeError, match=r"write plan\(rounds, policy, kvib\.replay\.Terms\("):
        kvib.plan.plan([], np.ones(3), *policies, **named)


def test_types_of_a_log_are_found_in_both_rooms():
    assert kvib.replay.Logged is Logged
    assert kvib.plan.grid is kvib.replay.grid

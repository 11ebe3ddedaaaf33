"""Replay and plan where clients come, leave, come back and change their weights."""

import math
from dataclasses import replace

import numpy as np
import pytest

import kvib
from enumeration import outcomes
from kvib.estimators.variance import norm_part
from kvib.journal import Joined, Left, Logged, Reweighed, events
from kvib.replay import Terms, grid, replay
from kvib.replay.plan import plan
from logs import Spy, changing, changing_world

FOLLOWING = [
    kvib.Uniform(),
    kvib.BySize(),
    kvib.KVib(),
    kvib.KVib(rounds=30, by_weight=True),
    kvib.Vrb(),
    kvib.Forecast(),
]
DRAWS = [kvib.independent, kvib.with_replacement, kvib.pivotal]


@pytest.mark.parametrize("procedure", DRAWS, ids=repr)
@pytest.mark.parametrize("policy", FOLLOWING, ids=repr)
def test_the_logging_policy_gets_the_logged_probabilities(policy, procedure):
    """In every round, with the clients and the λ of that time."""
    weights, norms = changing_world(1, rounds=25)
    log = changing(policy, weights, norms, 8, procedure, response=0.8)
    spy = Spy(policy)
    told = replay(log.rounds, {"same": spy}, Terms(weights, procedure=procedure))
    assert len({len(here) for here in log.here}) >= 5
    for mine, theirs in zip(spy.told, log.expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
    assert told.rows["same"].per_round == pytest.approx(told.logged.per_round, rel=1e-9)
    assert not any("stands for" in warning for warning in told.warnings)


def test_unbiased():
    """Every outcome of three rounds with silence, while clients come, go, return and change."""
    weights, q = np.array([0.5, 0.2, 0.3]), np.array([0.7, 1.0, 1.0, 1.0])
    norms = np.array([[1.0, 4.0, 0.5, 2.0], [2.0, 1.0, 3.0, 1.0], [1.5, 1.0, 0.2, 3.0]])
    changes = [
        (),
        (Joined(np.array([3]), np.array([0.4])), Left(np.array([0, 2]))),
        (Reweighed(np.array([1]), np.array([0.7])), Joined(np.array([0]), np.array([0.6]))),
    ]
    here = [np.array([0, 1, 2]), np.array([1, 3]), np.array([0, 1, 3])]
    raw = np.array([[0.5, 0.2, 0.3, 0], [0, 0.2, 0, 0.4], [0.6, 0.7, 0, 0.4]])
    share = raw / raw.sum(axis=1, keepdims=True)

    def rounds_of(rng):
        rounds = []
        for t, row in enumerate(norms):
            p = np.array([0.6, 0.5, 0.9, 0.7])[here[t]]
            drawn = kvib.independent(p, rng, weights=share[t, here[t]], ids=here[t], round=t)
            answered = np.array([bool(rng.random() < q[i]) for i in drawn.ids], np.bool_)
            answers = np.where(answered, row[drawn.ids], np.nan)
            drawn = replace(drawn, answer_probability=q[drawn.ids], budget=2.0, requested=2.0)
            rounds.append(Logged(drawn, answers, changes=changes[t]))
        return rounds

    rivals = {"K-Vib": kvib.KVib(mix=0.3), "forecast": kvib.Forecast()}
    mean, true = np.zeros((2, len(rivals), 3))
    for probability, rounds in outcomes(rounds_of):
        spies = {label: Spy(policy) for label, policy in rivals.items()}
        told = replay(rounds, spies, Terms(weights, budget=2))
        for k, label in enumerate(rivals):
            mean[k] += probability * told.rows[label].per_round
            for t, p in enumerate(spies[label].told):
                pi = (share[t] * norms[t])[here[t]]
                true[k, t] += probability * norm_part(pi, q[here[t]], p, 1.0).sum()
    assert mean == pytest.approx(true, rel=1e-10)


def test_policies_learn_with_the_weights_of_the_feedback():
    """Feedback that comes after a client was weighed anew is learned with its new weight."""
    cohort = kvib.Cohort(
        ids=[0, 1], count=[1, 1], expected=[0.5, 0.5], weight=[0.5, 0.5], budget=1.0, requested=1.0
    )
    heavy = Reweighed(np.array([0]), np.array([2.0]), number=2)

    def told(feedback):
        first = Logged(cohort, np.ones(2), order=(1, feedback))
        later = Logged(replace(cohort, round=1, weight=[0.8, 0.2]), np.ones(2), order=(5, 6))
        spy = Spy(kvib.KVib(mix=0.0, gamma=1e-9))
        replay([first, later._replace(changes=(heavy,))], {"": spy}, Terms([1, 1]))
        return spy.told[1]

    assert told(feedback=3) == pytest.approx([0.8, 0.2], rel=1e-6)  # π = 2, 0.5
    assert told(feedback=1) == pytest.approx([0.8, 0.2], rel=1e-6)  # π = 0.5, times 4
    assert told(feedback=9) == pytest.approx([0.5, 0.5])  # nothing learned by then


def check_coverage(worlds):
    """At a true rate of 90 % the bound of 5.5 standard errors is missed with probability 2e-8."""
    held = []
    for seed in range(worlds):
        weights, norms = changing_world(seed)
        log = changing(kvib.KVib(), weights, norms, 8, kvib.independent, seed)
        spy = Spy(kvib.Forecast())
        told = replay(log.rounds, {"": spy}, Terms(weights)).rows[""]

        def true(each, pi=log.pi):
            return np.mean([(a**2 * (1 / p - 1)).sum() for a, p in zip(pi, each, strict=True)])

        value, today = true(spy.told), true(log.expected)
        held.append(
            (
                told.variance.low <= value <= told.variance.high,
                told.ratio.low <= value / today <= told.ratio.high,
            )
        )
    assert (np.mean(held, axis=0) > 0.9 - 5.5 * math.sqrt(0.09 / len(held))).all()


def test_intervals_hold_the_true_variance():
    check_coverage(20)


@pytest.mark.slow
def test_intervals_hold_the_true_variance_in_many_worlds():
    check_coverage(300)


# Journals


def coming(round, clients):
    """Which clients are there in a round."""
    return np.random.default_rng([3, round]).random(clients) < 0.7


def drawn(sampler):
    return sampler.draw()


def drawn_among_some(sampler):
    there = coming(sampler.round, len(sampler))
    return sampler.draw(there if sampler.round % 2 else np.flatnonzero(there))


def drawn_with_other_budgets(sampler):
    return sampler.draw(budget=min(3 + 4 * sampler.round, len(sampler)))  # with those who left


def checked_in(sampler):
    names = sampler.keys(
        sampler.state.population.here()[coming(sampler.round, len(sampler.state.population))]
    )
    return sampler.gather([name for name in names if sampler.admit(name)])


COST = np.random.default_rng(4).uniform(1, 3, 30)
LOGS = {
    "nothing else": (drawn, {}, 8),
    "over-selection": (drawn, {"response": 0.5, "over_select": True}, 6),
    "rates that are learned": (drawn, {"response": kvib.EstimatedRate(), "over_select": True}, 6),
    "cool-down": (drawn, {"cool_down": 2}, 8),
    "available, as learned": (drawn_among_some, {"availability": kvib.EstimatedRate()}, 8),
    "check-in": (checked_in, {"availability": 0.7, "cool_down": 1}, 8),
    "budgets": (drawn_with_other_budgets, {}, 8),
    "costs": (drawn, {"cost": COST}, 16),
}


def journal_of(path, draw, policy, procedure, budget, named=True, again=(), quiet=24, **options):
    """24 rounds with clients that come and go, until the rounds are quiet; feedback of every third
    comes two rounds late."""
    weights, norms = changing_world(10, clients=30, rounds=24)
    rng, late, q = np.random.default_rng(0), [], 0.8
    options |= {"keys": [f"c{i}" for i in range(30)]} if named else {}
    sampler = kvib.journalled(path, policy, weights, budget, procedure, **options)
    for t, row in enumerate(norms):
        if t in again:
            sampler.close()
            sampler = kvib.journalled(path)
        if t < quiet:
            move(sampler, rng)
        cohort = draw(sampler)
        learned = isinstance(options.get("response"), kvib.EstimatedRate)
        silent = rng.random(len(cohort)) >= (
            q if learned else cohort.answer_probability / cohort.availability
        )
        late.append((t + 2 * (t % 3 == 0), cohort, np.where(silent, np.nan, row[cohort.ids])))
        for one in [one for one in late if one[0] <= t]:
            sampler.update(*one[1:])
        late = [one for one in late if one[0] > t]
    if quiet == 24:
        move(sampler, rng)  # after the last draw
    sampler.close()
    return kvib.journal.read(path)


def move(sampler, rng):
    """Clients come and go, by their keys and with costs where they have them."""
    t = sampler.round
    priced, gone = sampler.state.prices.cost is not None, sorted(sampler.state.population.departed)

    def join(number, keys):
        cost = {"cost": rng.uniform(1, 3, number)} if priced else {}
        sampler.join(rng.lognormal(0, 0.7, number), keys, **cost)

    if t % 3 == 1:
        named = sampler.state.population.names is not None
        join(2, [f"new{t}", f"late{t}"] if named else None)
    if t % 4 == 2:
        sampler.leave(sampler.keys(rng.choice(sampler.state.population.here(), 3, replace=False)))
    if t % 5 == 4 and gone:
        join(1, sampler.keys(rng.choice(gone, 1)))
    if t % 2 == 1:
        some = rng.choice(len(sampler), 3, replace=False)
        sampler.reweigh(sampler.keys(some), rng.lognormal(0, 0.7, 3))


@pytest.mark.filterwarnings("ignore:.* did not answer")
@pytest.mark.parametrize("policy", [kvib.BySize(), kvib.KVib(), kvib.Forecast()], ids=repr)
@pytest.mark.parametrize("log", LOGS)
def test_a_journal_replays_under_all_conditions(policy, log, tmp_path):
    """To single precision, in which it keeps cohorts; procedures and kinds of keys take turns."""
    draw, options, budget = LOGS[log]
    turn = list(LOGS).index(log)
    procedure = kvib.independent if draw is checked_in else DRAWS[turn % len(DRAWS)]
    path, named = tmp_path / "run.kvib", bool(turn % 2)
    history = journal_of(path, draw, policy, procedure, budget, named, again=(7, 15), **options)
    terms = history.terms()
    told = replay(history, {"same": terms.policy})
    assert told.rounds > 20
    assert told.rows["same"].per_round == pytest.approx(told.logged.per_round, rel=1e-3)
    today = history.table().budget
    if terms.prices is None:
        ahead = plan(history, budgets=grid(float(np.median(today)), terms.most))
        assert ahead.budgets[-1] == terms.most > 30
        assert (np.diff(ahead.logging.value) <= 1e-9).all()


def test_a_journal_that_knows_more_clients_than_it_began_with(tmp_path):
    history = journal_of(tmp_path / "run.kvib", drawn, kvib.BySize(), kvib.independent, 8)
    terms = history.terms()
    here, most = 30, 30
    for one in history.rounds():
        for change in one.changes:
            joined = isinstance(change, Joined)
            here += 0 if isinstance(change, Reweighed) else len(change.ids) * (1 if joined else -1)
            most = max(most, here)
    assert len(terms.weights) == 30
    assert terms.most == most
    told = replay(history, {"": kvib.Uniform()}, budget=most)
    assert told.rows[""].per_round == pytest.approx(0, abs=1e-12)  # all are drawn, in every round
    with pytest.raises(ValueError, match="exceeds the 30 clients"):
        replay(history.rounds(), {}, Terms(terms.weights), budget=most)


def forgetful(path, **options):
    """A journal that has forgotten its beginning, and one of the same rounds that has not."""
    histories = []
    for k, keep in enumerate((9, None)):
        more = {"snapshot_every": 2, "keep": keep, **options}
        histories.append(
            journal_of(path / f"{k}.kvib", drawn, kvib.BySize(), kvib.independent, 8, **more)
        )
    return histories


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("options", [{}, {"cost": COST}], ids=["plain", "costs"])
def test_a_journal_that_has_forgotten_its_beginning(named, options, tmp_path):
    """The population of its first round is found from the last snapshot, change by change."""
    short, whole = forgetful(tmp_path, named=named, **options)
    removed = short.about.removed
    assert removed > 5
    spies = Spy(kvib.BySize()), Spy(kvib.BySize())
    told = replay(short, {"": spies[0]})
    assert told.rows[""].per_round == pytest.approx(told.logged.per_round, rel=1e-4)
    replay(whole, {"": spies[1]}, since=removed)
    heard = len(spies[0].told)
    assert heard == told.rounds
    for mine, theirs in zip(spies[0].told, spies[1].told[-heard:], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)


def test_a_journal_that_has_forgotten_what_clients_weighed(tmp_path, monkeypatch):
    """As earlier versions wrote it: the rounds since the last change that cannot be taken back."""
    monkeypatch.setattr(events, "_before", lambda *_: {})
    short, whole = forgetful(tmp_path, quiet=18)
    rounds = [one.cohort.round for one in short.rounds()]
    assert short.about.removed < 17
    assert rounds == list(range(17, 24))  # weights changed before round 17
    told = replay(short, {"": kvib.BySize()})
    assert told.rows[""].per_round == pytest.approx(told.logged.per_round, rel=1e-4)
    assert "the log begins with round" in told.warnings[0]
    assert [one.cohort.round for one in whole.rounds()] == list(range(24))


def test_earlier_journals_with_their_beginning(tmp_path, monkeypatch):
    """Weights are known from there on, and prices that are rates; costs before a return are not."""
    monkeypatch.setattr(events, "_before", lambda *_: {})
    answering = {"response": 0.5, "over_select": True}
    for k, (options, first) in enumerate([({}, 0), (answering, 0), ({"cost": COST}, 19)]):
        path = tmp_path / f"{k}.kvib"
        history = journal_of(
            path, drawn, kvib.BySize(), kvib.independent, 8, quiet=20, snapshot_every=2, **options
        )
        assert [one.cohort.round for one in history.rounds()] == list(range(first, 24))
        told = replay(history, {"": kvib.BySize()})
        assert told.rows[""].per_round == pytest.approx(told.logged.per_round, rel=1e-4)


def test_nothing_is_left_to_replay(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "_before", lambda *_: {})
    path = tmp_path / "run.kvib"
    with kvib.journalled(path, kvib.BySize(), np.ones(5), 2, snapshot_every=1, keep=2) as sampler:
        for _ in range(8):
            cohort = sampler.draw()
            sampler.update(cohort, np.ones(len(cohort)))
        sampler.reweigh([0], [2.0])
        sampler.reweigh([0], [3.0])
    with pytest.raises(
        ValueError, match=r"no round was drawn since event .* draw some rounds first"
    ):
        list(kvib.journal.read(path).rounds())


def test_plan_with_costs_of_clients_who_came_later(tmp_path):
    history = journal_of(
        tmp_path / "run.kvib", drawn, kvib.Forecast(), kvib.pivotal, 16, cost=COST, again=(9,)
    )
    terms = history.terms()
    assert terms.prices == pytest.approx(COST)
    told = plan(history)
    assert told.budgets[-1] == terms.most > COST.sum()
    assert told.enough == pytest.approx((16, 16, 16), rel=1e-3)


class Own(kvib.BySize):
    """A policy of the user."""


def test_a_policy_of_the_user(tmp_path):
    path = tmp_path / "run.kvib"
    history = journal_of(path, drawn, Own(), kvib.independent, 8)
    with pytest.raises(ValueError, match=r"terms\(policy=…"):
        replay(history, {"own": Own()})
    told = replay(history, {"own": Own()}, history.terms(policy=Own()))
    assert told.rows["own"].ratio == pytest.approx((1, 1, 1), rel=1e-5)


@pytest.mark.parametrize("policy", [kvib.Mabs(), kvib.Avare(), kvib.OSMD()], ids=repr)
def test_policies_that_cannot_follow_are_named(policy):
    weights, norms = changing_world(2, rounds=8)
    rounds = changing(kvib.KVib(), weights, norms, 8, kvib.independent).rounds
    name = type(policy).__name__
    with pytest.raises(ValueError, match=f"{name} cannot be replayed .* leave it out: Forecast"):
        replay(rounds, {"K-Vib": kvib.KVib(), "other": policy}, Terms(weights))
    leaving = [
        one._replace(changes=(Left(np.array([59])),) if t == 2 else ())
        for t, one in enumerate(rounds[:2])
    ]
    assert (
        replay(leaving, {"other": policy}, Terms(weights)).rounds == 2
    )  # leaving asks nothing of them


WRONG = {
    "who is there": (Joined(np.array([3]), np.ones(1)), "client 3 joins, and it is there already"),
    "ids that skip": (Joined(np.array([61]), np.ones(1)), "the next ids, from 60 on"),
    "no weight": (Joined(np.array([60, 61]), np.ones(1)), "one weight each"),
    "weight 0": (Reweighed(np.array([3]), np.zeros(1)), "weight 0.0 of client 3"),
    "a price": (Joined(np.array([60]), np.ones(1), np.ones(1)), "only if, the others have one"),
    "nobody": (Left(np.array([60])), "there is no client 60; ids are 0 to 59"),
    "everybody": (Left(np.arange(60)), "all clients would be gone"),
}


@pytest.mark.parametrize(("change", "why"), WRONG.values(), ids=WRONG)
def test_changes_that_cannot_be(change, why):
    weights, norms = changing_world(3, rounds=2)
    rounds = changing(kvib.Uniform(), weights, norms, 8, kvib.independent).rounds
    with pytest.raises(ValueError, match=why):
        replay([rounds[0]._replace(changes=(change,))], {}, Terms(weights))


def test_who_left_cannot_leave_again_nor_be_drawn():
    weights, norms = changing_world(3, rounds=2)
    first, second = changing(kvib.Uniform(), weights, norms, 8, kvib.independent).rounds
    one, terms = Left(second.cohort.ids[:1]), Terms(weights)
    with pytest.raises(ValueError, match="leaves, and it is not there"):
        replay([first._replace(changes=(one,)), second._replace(changes=(one,))], {}, terms)
    with pytest.raises(ValueError, match="drawn in round 1 that could not be"):
        replay([first, second._replace(changes=(one,))], {}, terms)
    listed = second._replace(available=np.arange(99))
    with pytest.raises(ValueError, match=r"client 98 was available .* give those of all"):
        replay([first, listed], {}, terms)


def test_variables_are_of_clients_that_stay():
    weights, norms = changing_world(4, rounds=8)
    rounds = changing(kvib.KVib(), weights, norms, 8, kvib.independent).rounds
    with pytest.raises(ValueError, match="replay without variables="):
        replay(rounds, {"": kvib.Forecast()}, Terms(weights, variables=np.ones((60, 1))))


# Silence


def silent(response, availability=1.0, rounds=6):
    """Rounds in each of which one client is silent, of a sampler with these rates."""
    sampler = kvib.Sampler(
        kvib.Uniform(),
        np.ones(20),
        8,
        kvib.independent,
        response=response,
        availability=availability,
    )
    log = []
    for _ in range(rounds):
        cohort = sampler.draw(available=np.arange(20))
        norms = np.ones(len(cohort))
        norms[0] = np.nan
        log.append(Logged(cohort, norms, available=np.arange(20)))
        sampler.update(cohort, norms)
    return [w for w in replay(log, {}, Terms(np.ones(20))).warnings if "missing" in w]


def test_advice_is_for_those_who_can_take_it():
    with pytest.warns(UserWarning, match="did not answer"):
        [told] = silent(response=1.0)
    assert told.startswith("6 answers are missing of clients with response probability 1")
    assert told.endswith("give the sampler response=")
    [told] = silent(response=kvib.EstimatedRate())
    assert told.startswith("1 answer is missing from rounds drawn before the sampler, which learns")
    assert "response=" not in told
    with pytest.warns(UserWarning, match="did not answer"):
        first, told = silent(response=1.0, availability=kvib.EstimatedRate())
    assert first.startswith("5 answers")  # all but the one that may have been the first
    assert first.endswith("give the sampler response=")

"""`kvib journal`, `replay`, `plan` as a user runs them."""

import re

import numpy as np
import pytest

import kvib
from kvib import names
from kvib.cli import main

pytest.importorskip("typer")


def run(monkeypatch, capsys, *words):
    """Exit code, what was printed, what was complained of."""
    monkeypatch.setattr("sys.argv", ["kvib", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "run.kvib"
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0, 1.5, 60)
    with kvib.journalled(path, kvib.KVib(), sizes, 8, seed=1) as sampler:
        for _ in range(30):
            cohort = sampler.draw()
            sampler.update(cohort, sizes[cohort.ids] * rng.lognormal(0, 0.3, len(cohort)))
        sampler.draw()
    return path


def test_journal_says_what_it_holds(file, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "journal", file, "--rounds", 3)
    assert code == 0
    assert "60 clients, 31 rounds" in out
    assert out.count("│ 30 ") == 1
    assert "│ 27 " not in out
    assert "never did" in out


def test_replay_of_the_logging_policy_and_a_better_one(file, monkeypatch, capsys):
    words = ("--policy", "KVib", "--policy", "Forecast(floor=0.1)", "--last", 20)
    code, out, _ = run(monkeypatch, capsys, "replay", file, *words)
    assert code == 0
    assert out.startswith("19 rounds, intervals of 90%, all of the variance")  # one is unheard
    assert "KVib: 1 (1 to 1) times" in out
    better = float(re.search(r"Forecast\(floor=0\.1\): ([\d.]+) ", out)[1])
    assert 0.01 < better < 0.1


def test_replay_and_plan_know_what_the_sampler_knew(tmp_path, monkeypatch, capsys):
    """Costs, cool-down and variables: the policy that drew the rounds gets their own variance."""
    rng, path = np.random.default_rng(0), tmp_path / "run.kvib"
    x, cost = rng.normal(size=(60, 1)), rng.uniform(100, 300, 60)
    options = {"variables": x, "cost": cost, "cool_down": 2}
    with kvib.journalled(path, kvib.Forecast(), np.ones(60), 2e3, **options) as sampler:
        for _ in range(20):
            cohort = sampler.draw()
            sampler.update(cohort, np.exp(0.5 * x[cohort.ids, 0]))
    _, out, _ = run(monkeypatch, capsys, "replay", path, "--policy", "Forecast")
    assert "Forecast: 1 (1 to 1) times" in out
    _, out, _ = run(monkeypatch, capsys, "plan", path)
    assert "with a budget of 2000 per round" in out
    assert "Forecast has the same with 2e+03" in out


def test_clients_are_called_by_their_keys(tmp_path, monkeypatch, capsys):
    path, options = tmp_path / "run.kvib", {"keys": ["ann", "bob", "eve"], "snapshot_every": 9}
    with kvib.journalled(path, kvib.KVib(), [1, 2, 3], 3, **options) as sampler:
        sampler.draw(budget=2, absent=[0])
        sampler.leave("bob")
        sampler.join([4, 5], ["bob", "tim"])
        sampler.draw(budget=2, available=[1, 3])
        history = kvib.journal.read(path)
        assert list(history.keys()) == ["ann", "bob", "eve", "tim"]
        assert history.about.clients == len(history.participation()) == 4
    _, out, _ = run(monkeypatch, capsys, "journal", path)
    assert "4 clients, 2 rounds" in out
    assert "most often: client bob 2 times, client eve 1 times, client tim 1 times" in out


def test_versions_that_took_over_are_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.kvib"
    with kvib.journalled(path, kvib.Avare(), np.arange(1, 10), 3, kvib.pivotal) as sampler:
        for _ in range(3):
            cohort = sampler.draw()
            sampler.update(cohort, np.ones(len(cohort)))
    assert "took round" not in run(monkeypatch, capsys, "journal", path)[1]
    monkeypatch.setattr(kvib.Avare, "scores", lambda self, state, ids: 1.0 + ids)
    kvib.journalled(path).close()
    _, out, _ = run(monkeypatch, capsys, "journal", path)
    [upgrade] = kvib.journal.read(path).upgrades()
    assert str(upgrade) in out
    assert re.search(r"kvib \S+ took round [012] as drawn, in which it would draw others", out)


def test_plan_draws_a_picture(file, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "plan.png"
    code, told, _ = run(monkeypatch, capsys, "plan", file, "--out", out)
    assert code == 0
    assert out.stat().st_size > 5_000
    assert "KVib" in told


WRONG = {
    "no file": (("journal", "nowhere.kvib"), "nowhere.kvib"),
    "not a journal": (("journal", __file__), "not"),
    "unknown policy": (("replay", "FILE", "--policy", "Forecats"), "is not one of AOCS"),
    "unknown option": (("replay", "FILE", "--policy", "KVib(gian=1)"), "gian"),
    "not a policy": (("replay", "FILE", "--policy", "1+"), "policy '1\\+'"),
    "code": (("replay", "FILE", "--policy", "KVib(rounds=print(1))"), "policy"),
    "needs all norms": (("replay", "FILE", "--policy", "Optimal"), "must know every client's norm"),
    "options of it": (
        ("replay", "FILE", "--policy", "KVib(round=5)"),
        r"KVib has no option round, only rounds, .*; did you mean rounds\?",
    ),
    "no options at all": (("plan", "FILE", "--policy", "Uniform(x=1)"), "no option x, it has none"),
    "not a number": (
        ("replay", "FILE", "--policy", "KVib(rounds=abc)"),
        "rounds=abc is not a number; give one",
    ),
    "almost a policy": (("replay", "FILE", "--policy", "forcast"), r"did you mean Forecast\?"),
    "no picture": (("plan", "FILE", "--out", "p.xyz"), "ends with one of .*.png"),
    "a nameless picture": (("plan", "FILE", "--out", "p"), "ends with one of .*.png"),
    "nowhere": (("plan", "FILE", "--out", "nodir/p.png"), "there is no folder nodir; make it"),
    "fewer than none": (("journal", "FILE", "--rounds", "-3"), "--rounds -3: give 0 or more"),
    "nobody": (("journal", "FILE", "--clients", "-1"), "--clients -1: give 0 or more"),
    "no rounds": (("replay", "FILE", "--policy", "KVib", "--last", "0"), "give 1 or more"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_mistakes_are_one_line_before_any_work(words, file, monkeypatch, capsys):
    monkeypatch.setattr(
        "kvib.replay.measurements.Measurements.add", lambda *_: pytest.fail("it has begun")
    )
    arguments, why = words
    given = [file if word == "FILE" else word for word in arguments]
    code, _, err = run(monkeypatch, capsys, *given)
    assert code == 2
    assert err.count("\n") == 1
    assert re.search(why, err)


@pytest.mark.parametrize("snapshot_every", [1, 1_000])
def test_a_population_that_changed_is_replayed(snapshot_every, tmp_path, monkeypatch, capsys):
    """Begun with two clients, as a server does whose others come later."""
    path, rng = tmp_path / "run.kvib", np.random.default_rng(0)
    options = {"snapshot_every": snapshot_every, "keys": ["a", "b"]}
    with kvib.journalled(path, kvib.KVib(), [1, 1], 2, **options) as sampler:
        sampler.join(np.ones(28), [f"late{k}" for k in range(28)])
        for t in range(20):
            cohort = sampler.draw(budget=6)
            sampler.update(cohort, rng.lognormal(0, 0.5, len(cohort)))
            if t == 5:
                sampler.leave(["a"])
            if t == 9:
                sampler.join([2.0], ["a"])
                sampler.reweigh(["b"], [3.0])
    code, out, _ = run(monkeypatch, capsys, "replay", path, "--policy", "KVib", "--budget", 30)
    assert code == 0
    assert "KVib: 0 (0 to 0) times" in out  # all who are there
    _, out, _ = run(monkeypatch, capsys, "replay", path, "--policy", "KVib", "--policy", "Uniform")
    assert "KVib: 1 (1 to 1) times" in out
    code, out, _ = run(monkeypatch, capsys, "plan", path, "--policy", "KVib")
    assert "with a budget of 6 per round" in out
    assert "KVib has the same with 6 (6 to 6)" in out
    assert re.search(r"^ +30 ", out, re.MULTILINE)  # the largest budget tried
    code, _, err = run(monkeypatch, capsys, "replay", path, "--policy", "Mabs")
    assert (code, err.count("\n")) == (2, 1)
    assert "Mabs cannot be replayed" in err
    assert run(monkeypatch, capsys, "journal", path)[0] == 0


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.independent], ids=repr)
def test_a_variance_that_is_not_known_says_why(procedure, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.kvib"

    def last():
        out = run(monkeypatch, capsys, "journal", path, "--rounds", 1)[1]
        return " ".join(out[out.index("└") :].split())

    with kvib.journalled(path, kvib.Uniform(), np.ones(9), 3, procedure) as sampler:
        cohort = sampler.draw()
        sampler.step(cohort, [np.ones(2) for _ in cohort.ids])
        assert "–" not in last()
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))
        unseen = "–: the variance of pivotal draws does not follow from the norms alone" in last()
        assert unseen == (procedure is kvib.pivotal)
        cohort = sampler.draw()
        with pytest.warns(UserWarning, match="did not answer"):
            sampler.update(cohort, [np.nan, *np.ones(len(cohort) - 1)])
        lost = "–: an answer is missing that was certain" in last()
        assert lost == (procedure is kvib.independent)
        sampler.draw()  # not heard of yet
        assert "–" not in last()


def test_policies_by_their_repr():
    for policy in (kvib.Forecast(), kvib.KVib(rounds=40, mix=0.3), kvib.OSMD(experts=1)):
        assert names.policy(repr(policy)) == policy
    assert names.policy("Uniform") == kvib.Uniform()
    assert names.policy("kvib(rounds=40)") == kvib.KVib(rounds=40)


def test_a_line_a_minute_where_there_is_no_terminal(file, monkeypatch, capsys):
    monkeypatch.setattr("kvib.cli.screen.A_MINUTE", 0.0)
    for words in (("replay", file, "--policy", "forecast"), ("plan", file)):
        _, out, err = run(monkeypatch, capsys, *words)
        assert re.search(rf"^{words[0]}: 20 of 31 rounds, [\d.]+ rounds/s$", err, re.MULTILINE)
        assert "rounds/s" not in out

"""examples/flower_masked: masks cancel, and the client refuses what they would not hide."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from places import ROOT

pytest.importorskip("flwr")

from flower_grid import LocalGrid, numbers, partitions, record
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

EXAMPLE = ROOT / "examples" / "flower_masked"
COEFFICIENTS = [0.3, 0.7, 1.1, 0.2]
K = len(COEFFICIENTS)


@pytest.fixture
def client(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    return importlib.import_module("masked_app.client_app")


@pytest.fixture
def ask(client):
    return Asking(client.app)


class Asking:
    """A server that asks what it likes. `restart` starts all SuperNodes again."""

    def __init__(self, app):
        self.app, self.run = app, 1
        self.restart()

    def restart(self, first=1000):
        self.grid = LocalGrid(self.app, partitions(K), first, run_config={"secret": 42})
        for context in self.grid.contexts.values():
            context.run_id = self.run

    def reply(self, client=0, kind="train", model=0.0, **changes):
        told = {"coefficient": COEFFICIENTS[client], "position": client, "size": K, "round": 3}
        told = ConfigRecord({**told, "buffers": [], **changes})
        content = RecordDict({"arrays": record(w=np.full(5, model)), "kvib": told})
        [reply] = self.grid.send_and_receive(
            [Message(content, sorted(self.grid.contexts)[client], kind)]
        )
        return reply

    def __call__(self, client=0, **how):
        reply = self.reply(client, **how)
        assert not reply.has_error(), reply.error.reason
        return numbers(reply.content["arrays"])["w"]

    def refused(self, client=0, **how):
        reply = self.reply(client, **how)
        assert reply.has_error()
        return reply.error.reason


def update(client, i):
    """x − x_i at x = 0, by hand."""
    x, y = client.data(Context(1, 1, {"partition-id": i}, RecordDict(), {}))
    w = np.zeros(5)
    for _ in range(5):
        w = w - 0.05 * x.T @ (x @ w - y) / len(y)
    return -w


def test_masks_cancel_in_the_sum_and_hide_each_update(client, ask):
    replies = [ask(i) for i in range(K)]
    hidden = [c * update(client, i) for i, c in enumerate(COEFFICIENTS)]
    assert sum(replies) == pytest.approx(sum(hidden), abs=1e-8)
    for reply in replies:
        assert np.abs(reply).min() > 1e4 * max(map(np.linalg.norm, hidden))


def test_the_other_name_of_training_is_refused(ask):
    assert "message type 'train.default' is refused" in ask.refused(kind="train.default")


@pytest.mark.parametrize("kind", ["train.other", "evaluate", "query", "query.default"])
def test_whatever_else_an_app_answers_is_refused(client, kind):
    """The mod goes around every function of the app, also those that are added later."""
    app = ClientApp(mods=[client.masked, client.scaled_update])
    for add in (app.train("other"), app.evaluate(), app.query()):
        add(client.train)
    assert f"message type {kind!r} is refused" in Asking(app).refused(kind=kind)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size": 1}, "a cohort of 1 is refused"),
        ({"size": 0}, "a cohort of 0 is refused"),
        ({"size": -4}, "size -4 is refused"),
        ({"size": "4"}, "size '4' is refused"),
        ({"position": 4}, "position 4 is refused"),
        ({"position": -1}, "position -1 is refused"),
        ({"round": -1}, "round -1 is refused"),
        ({"round": 2.5}, "round 2.5 is refused"),
        ({"coefficient": 1e6}, r"coefficient 1000000.0 is refused: .* expects 0.0025 to 25,"),
        ({"coefficient": 25.1}, "coefficient 25.1 is refused"),
        ({"coefficient": 0.0024}, "coefficient 0.0024 is refused"),
        ({"coefficient": 0.0}, "coefficient 0.0 is refused"),
        ({"coefficient": -0.3}, "coefficient -0.3 is refused"),
        ({"coefficient": float("nan")}, "coefficient nan is refused"),
        ({"coefficient": float("inf")}, "coefficient inf is refused"),
        ({"coefficient": "0.3"}, "coefficient '0.3' is refused"),
    ],
    ids=str,
)
def test_questions_that_masks_would_not_hide_are_refused(ask, changes, why):
    with pytest.raises(ValueError, match=why):
        raise ValueError(ask.refused(**changes))
    ask()  # a question that was refused spends no round


def test_without_a_coefficient_there_is_no_answer(ask):
    node = min(ask.grid.contexts)
    message = Message(RecordDict({"arrays": record(w=np.zeros(5))}), node, "train")
    [reply] = ask.grid.send_and_receive([message])
    assert "updates=Hidden()" in reply.error.reason


@pytest.mark.parametrize(
    ("model", "why"), [(1e3, "masks hide up to 1;"), (-30.0, "masks hide"), (1e40, "it diverged")]
)
def test_an_update_that_masks_do_not_dwarf_is_refused(ask, model, why):
    """A server can make updates long with the model that it sends."""
    assert why in ask.refused(model=model)
    ask()


@pytest.mark.parametrize("changes", [{}, {"coefficient": 0.5}, {"model": 0.1}, {"size": 3}])
def test_a_round_is_answered_once(ask, changes):
    ask()
    assert "round 3 of run 1 is refused" in ask.refused(**changes)
    ask.restart(first=5000)  # another node id, and a context that remembers nothing
    assert "round 3 of run 1 is refused" in ask.refused(**changes)


def test_rounds_go_up(ask):
    for round in (3, 4, 11):
        ask(round=round)
    for round in (11, 10, 4, 0):
        assert f"round {round} of run 1 is refused" in ask.refused(round=round)
    ask(round=12)


def test_two_processes_do_not_answer_one_round(ask, monkeypatch):
    """Both have looked before either of them noted the round."""
    ask()
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(()))
    assert "round 3 of run 1 is refused" in ask.refused()


def test_another_run_has_other_masks(client, ask):
    """A server that starts again asks the same cohort in a new run of Flower."""
    before = ask()
    ask.run = 2
    ask.restart()
    assert np.abs(ask() - before).min() > 1e4 * np.linalg.norm(update(client, 0))


def test_a_client_that_cannot_remember_does_not_answer(ask, tmp_path):
    (tmp_path / "masked-app").write_text("a file where the folder should be")
    assert ask.refused()

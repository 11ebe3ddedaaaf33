# mypy: ignore-errors
"""Flower's client, in a module of its own because Ray's processes import it by name."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_work import initial_model, train
from work import read

app = ClientApp()


@cache
def at_hand(path):
    """The work, read once per Ray actor and not once per message."""
    torch.set_num_threads(1)  # one actor per core
    work = read(path)
    return work, torch.from_numpy(work.x), torch.from_numpy(work.y), work.rows()


@app.train()
def train_once(message, context):
    config = message.content["config"]
    work, x, y, rows = at_hand(config["work"])
    samples = rows[config["round"]][config["position"]]
    model = initial_model(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, x[samples], y[samples], work.batch_size, work.learning_rate)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),  # the same for all: a plain mean
    }
    return Message(content=RecordDict(content), reply_to=message)

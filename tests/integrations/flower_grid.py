"""A grid in this process: nodes with node configs, an app, and what goes wrong with them."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from kvib.integrations import flower

try:  # newer versions of Flower ask in whose name a message is made
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass
else:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class LocalGrid:
    """Nodes are numbers, as random as Flower's; each runs the app in this process."""

    def __init__(self, app, configs, first=1000, run_config=None):
        self.app, self.calls, self.sent = app, 0, []
        self.contexts = {
            first + 7 * k: Context(1, first + 7 * k, dict(config), RecordDict(), run_config or {})
            for k, config in enumerate(configs)
        }
        self.online = set(self.contexts)
        self.fails = {}
        """By node: what happens to its training: a function of the reply, or an error code."""

    def get_node_ids(self):
        return sorted(self.online, reverse=True)

    def push_messages(self, messages):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.calls += 1
            message.metadata.__dict__["_message_id"] = f"message {self.calls}"
            self.sent.append(message)
            replies += self._reply(message)
        return replies

    def _reply(self, message):
        node = message.metadata.dst_node_id
        wrong = self.fails.get(node) if message.metadata.message_type == "train" else None
        if node not in self.online or wrong == 5:
            reply = Message(Error(5, "node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink
            return [reply]
        if wrong == "silent":
            return []
        if wrong == 2:
            return [Message(Error(2, "the client raised"), reply_to=message)]
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:
            return [Message(Error(2, str(error)), reply_to=message)]
        return [wrong(reply) if callable(wrong) else reply]


def record(**arrays):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def numbers(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


def reply_with(message, content):
    return Message(RecordDict(content), reply_to=message)


def shifting_app(updates, sizes=None, mods=None, introduced=True):
    """Client i, by partition-id, always replies with x − updates[i]; its loss is i."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        i = context.node_config["partition-id"]
        x = numbers(message.content["arrays"])
        moved = {name: x[name] - g for name, g in updates[i].items()}
        return reply_with(
            message,
            {
                "arrays": record(**moved),
                "metrics": MetricRecord({"num-examples": 7, "loss": float(i)}),
            },
        )

    @app.evaluate()
    def evaluate(message, context):
        metrics = {"num-examples": 1, "accuracy": 0.5}
        return reply_with(message, {"metrics": MetricRecord(metrics)})

    if introduced:
        size = None if sizes is None else (lambda c: sizes[c.node_config["partition-id"]])
        flower.introduce(app, size)
    return app


def partitions(n):
    return [{"partition-id": i, "num-partitions": n} for i in range(n)]


def one_round(strategy, grid, arrays, server_round=1):
    """Train once; the new arrays and metrics."""
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    return strategy.aggregate_train(server_round, replies)

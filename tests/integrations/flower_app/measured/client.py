"""Clients that train as kvib's simulator does, or that only move the model by their number."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from kvib.integrations.flower import introduce

app = ClientApp()


@cache
def linear(clients):
    from kvib.sim import LinearEngine, LocalSGD, synthetic

    task, local = synthetic(clients=clients), LocalSGD(learning_rate=0.02, batch_size=64)
    return task, local, LinearEngine(task, local, threads=1)


def whose(context):
    """Whose data a client has; beyond a hundred clients they share."""
    n = min(context.node_config["num-partitions"], 100)
    return context.node_config["partition-id"] % n, n


def size(context):
    i, n = whose(context)
    if context.run_config["work"] == "linear":
        return linear(n)[0].train.sizes[i]
    return i + 1


introduce(app, size)


@app.train()
def train(message, context):
    i, n = whose(context)
    t = message.content["config"]["server-round"] - 1
    if context.run_config["failing"] == i and t % 2 == 1:
        raise RuntimeError("as asked")
    x = message.content["arrays"]["x"].numpy()
    if context.run_config["work"] == "linear":
        from kvib.sim.local import local_batches

        task, local, engine = linear(n)
        [g] = engine.updates(x, local_batches(task.train, np.array([i]), local, 0, t))
    else:
        g = np.full_like(x, i + 1)
    content = {
        "arrays": ArrayRecord({"x": Array(x - g)}),
        "metrics": MetricRecord({"num-examples": 1, "partition": i}),
    }
    return Message(RecordDict(content), reply_to=message)

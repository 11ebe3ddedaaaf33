"""Clients that show nobody their update: scaled by `scaled_update`, masked by `masked`.

The masks are a DEMONSTRATION of the algebra, not secure aggregation: all clients share a secret
that stands in the run config, where real protocols agree on one for every pair; floating-point
masks leak; and a client that fails leaves its masks in the sum, so the round is lost.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from kvib.integrations.flower import introduce, scaled_update


def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add a mask for each other client of the cohort: what one adds, the other subtracts."""
    reply = call_next(message, context)
    if message.metadata.message_type != "train" or reply.has_error():
        return reply
    told = message.content.config_records["kvib"]
    me, size, round = (int(str(told[name])) for name in ("position", "size", "round"))
    secret = int(context.run_config["secret"])
    arrays = {name: a.numpy() for name, a in reply.content.array_records["arrays"].items()}
    for other in (k for k in range(size) if k != me):
        pair = (secret, round, min(me, other), max(me, other))
        rng = np.random.default_rng(pair)
        for name, array in arrays.items():
            arrays[name] = array + np.sign(other - me) * 100.0 * rng.normal(size=array.shape)
    reply.content["arrays"] = ArrayRecord({name: Array(a) for name, a in arrays.items()})
    return reply


app = ClientApp(mods=[masked, scaled_update])  # the first mod sees the reply last


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Linear regression: a few hundred points, another slope for every client."""
    i = int(context.node_config["partition-id"])
    rng = np.random.default_rng(i)
    x = rng.normal(size=(50 * (i + 1), 5))
    return x, x @ (np.ones(5) + 0.2 * rng.normal(size=5))


introduce(app, size=lambda context: len(data(context)[0]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Nothing special: gradient steps, and the new model as the reply."""
    w = message.content.array_records["arrays"]["w"].numpy()
    x, y = data(context)
    for _ in range(5):
        w = w - 0.05 * x.T @ (x @ w - y) / len(y)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(w)}),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content, reply_to=message)

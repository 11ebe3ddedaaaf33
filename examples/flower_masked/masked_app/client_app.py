"""Clients that hide their updates: `scaled_update` scales them, and `masked` masks them.

The masks are a DEMONSTRATION of the algebra, not secure aggregation: see `masks.py`.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from kvib.integrations.flower import introduce, scaled_update
from masked_app.masks import masked

app = ClientApp(mods=[masked, scaled_update])  # the first mod sees the reply last


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """The data of a client for linear regression. Every client has another slope."""
    i = int(context.node_config["partition-id"])
    rng = np.random.default_rng(i)
    x = rng.normal(size=(50 * (i + 1), 5))
    return x, x @ (np.ones(5) + 0.2 * rng.normal(size=5))


introduce(app, size=lambda context: len(data(context)[0]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take gradient steps, and reply with the new model. Masking needs no line here."""
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

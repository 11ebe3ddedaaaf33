"""Sites that fit a line to measurements of their own; some have no name."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from kvib.integrations.flower import introduce

app = ClientApp()
COUNTS = (40, 90, 25, 60, 120)


def measurements(context):
    """Inputs and outputs; a site without a name has those of site 0."""
    site = int(str(context.node_config.get("client-id", "site-0")).split("-")[1])
    rng, n = np.random.default_rng(site), COUNTS[site % len(COUNTS)]
    inputs = rng.normal(size=(n, 3)).astype(np.float32)
    slope = np.array([1.0, -2.0, 0.5]) + 0.2 * site
    return inputs, (inputs @ slope + rng.normal(0, 0.1, n)).astype(np.float32)


introduce(app, size=lambda context: len(measurements(context)[0]))


@app.train()
def train(message, context):
    inputs, outputs = measurements(context)
    slope = message.content["arrays"]["slope"].numpy()
    for _ in range(3):
        slope = slope - 0.02 * inputs.T @ (inputs @ slope - outputs) / len(outputs)
    loss = float(np.mean((inputs @ slope - outputs) ** 2))
    content = {
        "arrays": ArrayRecord({"slope": Array(slope.astype(np.float32))}),
        "metrics": MetricRecord({"num-examples": len(outputs), "loss": loss}),
    }
    return Message(RecordDict(content), reply_to=message)

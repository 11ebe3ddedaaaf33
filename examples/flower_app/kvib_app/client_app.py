"""The ClientApp, which runs on each SuperNode. The only line for kvib is `introduce`."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from kvib.integrations.flower import introduce
from kvib_app.task import data, new_model, train

app = ClientApp()


def partition(context: Context) -> tuple[int, int]:
    """The number of this client, and the number of clients."""
    config = context.node_config
    return int(config["partition-id"]), int(config["num-partitions"])


introduce(app, size=lambda context: len(data(*partition(context))[1]))


@app.train()
def train_once(message: Message, context: Context) -> Message:
    """Train the model of the message, and reply with the new model."""
    model = new_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = data(*partition(context))
    loss = train(model, x, y, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(y), "train-loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)

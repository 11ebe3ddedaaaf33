"""The client's side: its name and size, and updates that it scales itself."""

from collections.abc import Callable
from typing import cast

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from kvib.integrations.flower.records import received, to_arrays, to_record
from kvib.integrations.kit import Model


def introduce(app: ClientApp, size: Callable[[Context], float] | None = None) -> None:
    """Let the clients of an app report their names and how much data they have.

    The key is `client-id` of the node config, else `partition-id`. Where there is neither, the
    server uses the node id, which is new after every restart of an unauthenticated SuperNode.

    Args:
        app: The app whose clients answer the question of the server.
        size: The size of a client's data, as a function of its context. It is the λ of the client's
            update before normalising. None means that all clients are equal.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> from kvib.integrations.flower import introduce
        >>> app = ClientApp()
        >>> introduce(app, size=lambda context: 120)
    """

    @app.query("kvib")
    def answer(message: Message, context: Context) -> Message:
        record = ConfigRecord()
        if "client-id" in context.node_config:
            record["key"] = str(context.node_config["client-id"])
        elif "partition-id" in context.node_config:
            record["key"] = int(context.node_config["partition-id"])
        try:
            if size is not None:
                record["size"] = float(size(context))
        except Exception as error:  # reported, not raised: the server logs it and asks again
            record["problem"] = repr(error)
        return Message(RecordDict({"kvib": record}), reply_to=message)


def scaled_update(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Scale the update of a client, as `Hidden` needs it. This is a mod for a ClientApp.

    The reply has coefficient·(x − x_i) in place of the arrays x_i, and the norm ‖x − x_i‖. Put mods
    that mask before it in `ClientApp(mods=[…])`: the first mod sees the reply last. The arrays are
    sent in double precision, whatever the precision of the model, because masks cost digits.

    Args:
        message: The message from the server. Messages that do not train pass unchanged.
        context: The context of the client.
        call_next: The next mod, or the app itself.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from kvib.integrations.flower import Hidden, UnbiasedSampling, scaled_update
        >>> app = ClientApp(mods=[scaled_update])
        >>> strategy = UnbiasedSampling(FedAvg(), updates=Hidden())
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return call_next(message, context)
    terms = message.content.config_records.get("kvib")
    if terms is None:
        raise ValueError(
            "scaled_update was given no coefficient; on the server say UnbiasedSampling(…, "
            "updates=Hidden()), or take scaled_update out of the mods"
        )
    [record] = message.content.array_records.values()
    whole = Model(to_arrays(record), set(cast(list[str], terms["buffers"])))
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    sent, coefficient = received(reply.content).arrays, float(cast(float, terms["coefficient"]))
    model = whole.only(sent.keys())
    arrays = model.read(sent)
    norm, [name] = model.distance(arrays), reply.content.array_records
    reply.content[name] = to_record(model.scaled(arrays, coefficient))
    reply.content["kvib"] = ConfigRecord({"norm": norm})
    return reply

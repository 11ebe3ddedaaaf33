"""The client's side: who it is, and updates that it scales itself."""

from collections.abc import Callable
from typing import cast

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from kvib.integrations.flower.records import received, to_arrays, to_record
from kvib.integrations.kit import Model


def introduce(app: ClientApp, size: Callable[[Context], float] | None = None) -> None:
    """Let the clients of an app tell who they are and how much data they have.

    The key is `client-id` of the node config, else `partition-id`; where there is neither, the
    server uses the node id, which is new after every restart of an unauthenticated SuperNode.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> introduce(app, size=lambda context: 120)

    Args:
        app: where the question of the server shall be answered.
        size: of a client's data, the λ of its update before normalising; None: all are equal.
    """

    @app.query("kvib")
    def answer(message: Message, context: Context) -> Message:
        said = ConfigRecord()
        if "client-id" in context.node_config:
            said["key"] = str(context.node_config["client-id"])
        elif "partition-id" in context.node_config:
            said["key"] = int(context.node_config["partition-id"])
        try:
            if size is not None:
                said["size"] = float(size(context))
        except Exception as error:  # said, not raised: then the server knows us, and asks again
            said["problem"] = repr(error)
        return Message(RecordDict({"kvib": said}), reply_to=message)


def scaled_update(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for `Hidden` updates: reply with coefficient·(x − x_i) and the norm ‖x − x_i‖.

    Put mods that mask before it in `ClientApp(mods=[…])`: the first sees the reply last. What is
    sent is in double precision, whatever the model is in: masks would eat the digits.
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return call_next(message, context)
    given = message.content.config_records.get("kvib")
    if given is None:
        raise ValueError(
            "scaled_update was given no coefficient; on the server say UnbiasedSampling(…, "
            "updates=Hidden()), or take scaled_update out of the mods"
        )
    [record] = message.content.array_records.values()
    whole = Model(to_arrays(record), set(cast(list[str], given["buffers"])))
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    sent, coefficient = received(reply.content).arrays, float(cast(float, given["coefficient"]))
    model = whole.only(sent.keys())
    arrays = model.read(sent)
    norm, [name] = model.distance(arrays), reply.content.array_records
    reply.content[name] = to_record(model.scaled(arrays, coefficient))
    reply.content["kvib"] = ConfigRecord({"norm": norm})
    return reply

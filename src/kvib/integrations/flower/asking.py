"""The server's question who a node is, and how it takes the answer."""

from collections.abc import Iterator
from logging import INFO

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from kvib.integrations.fleet import Introduction

QUESTION = f"{MessageType.QUERY}.kvib"
RAISED, REFUSED_BY_MOD = 2, 6
"""Flower's error codes: the ClientApp raised; a mod does not let questions through."""
NO_SUCH_FUNCTION = "No query function registered"
"""What it raised, then: the app does not call `introduce`."""


def ask(grid: Grid, nodes: list[int], timeout: float) -> Iterator[Introduction]:
    """Who these nodes are; those that do not say so are left out, to be asked again later."""
    if not nodes:
        return
    asked = [Message(RecordDict(), node, QUESTION) for node in nodes]
    replies = grid.send_and_receive(asked, timeout=timeout)
    by_id = {message.metadata.message_id: message for message in asked}
    for reply in replies:
        question = by_id.get(reply.metadata.reply_to_message_id)
        if question is not None:
            introduction = _heard(question.metadata.dst_node_id, reply)
            if introduction is not None:
                yield introduction


def _heard(node: int, reply: Message) -> Introduction | None:
    if reply.has_error():
        code, reason = reply.error.code, str(reply.error.reason)
        if code == REFUSED_BY_MOD or (code == RAISED and NO_SUCH_FUNCTION in reason):
            return Introduction(node, f"node-{node}", named=False)
        log(INFO, "kvib: node %s did not say who it is: error %s, %s", node, code, reason)
        return None
    said = reply.content.config_records.get("kvib", ConfigRecord())
    if "problem" in said:
        log(INFO, "kvib: node %s cannot tell its size: %s", node, said["problem"])
        return None
    key, size = said.get("key", f"node-{node}"), said.get("size")
    return Introduction(
        node,
        key if isinstance(key, str | int) else str(key),
        float(size) if isinstance(size, int | float) else None,
        named="key" in said,
    )

"""The server's question which client a node is, and the reading of the answer."""

from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from kvib.integrations.kit import Introduction

QUESTION = f"{MessageType.QUERY}.kvib"
"""The type of the message that asks a node which client it is."""
RAISED, REFUSED_BY_MOD = 2, 6
"""Flower's error codes: the ClientApp raised an error, and a mod refused the question."""
NO_SUCH_FUNCTION = "No query function registered"
"""The text of the error that a ClientApp raises if it does not call `introduce`."""


class Asked(NamedTuple):
    """The answers to the question."""

    introductions: list[Introduction]
    """The introductions of the nodes that answered."""
    problems: dict[int, str]
    """The reasons why the other nodes are still unknown, by node. They are asked again later."""


def ask(grid: Grid, nodes: list[int], timeout: float) -> Asked:
    """Ask these nodes which clients they are.

    Args:
        grid: The grid that sends the question.
        nodes: The ids of the nodes.
        timeout: The seconds to wait for the answers.
    """
    silent = {node: f"node {node} gave no answer in {timeout} s" for node in nodes}
    found = Asked([], silent)
    if not nodes:
        return found
    asked = [Message(RecordDict(), node, QUESTION) for node in nodes]
    replies = grid.send_and_receive(asked, timeout=timeout)
    by_id = {message.metadata.message_id: message for message in asked}
    for reply in replies:
        question = by_id.get(reply.metadata.reply_to_message_id)
        if question is None:
            continue
        node = question.metadata.dst_node_id
        answer = _read(node, reply)
        if isinstance(answer, Introduction):
            found.introductions.append(answer)
            found.problems.pop(node, None)
        else:
            found.problems[node] = answer
    return found


def _read(node: int, reply: Message) -> Introduction | str:
    """The introduction of the node, or the reason why it is still unknown."""
    if reply.has_error():
        code, reason = reply.error.code, str(reply.error.reason)
        if code == REFUSED_BY_MOD or (code == RAISED and NO_SUCH_FUNCTION in reason):
            return Introduction(node, f"node-{node}", named=False)
        return _logged(INFO, f"node {node} did not say who it is: error {code}, {reason}")
    record = reply.content.config_records.get("kvib", ConfigRecord())
    if "problem" in record:
        return _logged(WARNING, f"node {node} cannot tell its size: {record['problem']!s}")
    key, size = record.get("key", f"node-{node}"), record.get("size")
    return Introduction(
        node,
        key if isinstance(key, str | int) and not isinstance(key, bool) else str(key),
        float(size) if isinstance(size, int | float) else None,
        named="key" in record,
    )


def _logged(level: int, problem: str) -> str:
    """The problem, after it was written to the log."""
    log(level, "kvib: %s", problem)
    return problem

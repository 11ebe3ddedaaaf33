"""The server's question who a node is, and how it takes the answer."""

from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from kvib.integrations.kit import Introduction

QUESTION = f"{MessageType.QUERY}.kvib"
RAISED, REFUSED_BY_MOD = 2, 6
"""Flower's error codes: the ClientApp raised; a mod does not let questions through."""
NO_SUCH_FUNCTION = "No query function registered"
"""What it raised, then: the app does not call `introduce`."""


class Asked(NamedTuple):
    """What came of the question."""

    introductions: list[Introduction]
    problems: dict[int, str]
    """Why the other nodes are still unknown, by node; they are to be asked again later."""


def ask(grid: Grid, nodes: list[int], timeout: float) -> Asked:
    """Who these nodes are."""
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
    """Who the node is, or why it is still unknown."""
    if reply.has_error():
        code, reason = reply.error.code, str(reply.error.reason)
        if code == REFUSED_BY_MOD or (code == RAISED and NO_SUCH_FUNCTION in reason):
            return Introduction(node, f"node-{node}", named=False)
        return _said(INFO, f"node {node} did not say who it is: error {code}, {reason}")
    said = reply.content.config_records.get("kvib", ConfigRecord())
    if "problem" in said:
        return _said(WARNING, f"node {node} cannot tell its size: {said['problem']!s}")
    key, size = said.get("key", f"node-{node}"), said.get("size")
    return Introduction(
        node,
        key if isinstance(key, str | int) and not isinstance(key, bool) else str(key),
        float(size) if isinstance(size, int | float) else None,
        named="key" in said,
    )


def _said(level: int, problem: str) -> str:
    """The problem, once it is in the log."""
    log(level, "kvib: %s", problem)
    return problem

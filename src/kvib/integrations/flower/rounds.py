"""The messages that were sent to a cohort, and the replies."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message, RecordDict

from kvib.integrations.kit import Model, Refusal, Round, Silence

UNREACHABLE = (3, 4, 5)
"""Flower's error codes for messages and nodes that are not available."""


@dataclass
class Sent:
    """A round between `configure_train` and `aggregate_train`."""

    round: Round
    model: Model
    """The model that was sent."""
    template: Message
    """The message that the wrapped strategy sends to every node."""
    online: int
    """The number of nodes that were online at the draw."""
    messages: dict[int, Message] = field(default_factory=dict)
    """The messages by position in the cohort."""


class Replies(NamedTuple):
    """The replies to a round, by position in the cohort."""

    contents: dict[int, RecordDict]
    """The contents of the replies that arrived without an error."""
    refused: dict[int, Refusal]
    """The reasons of the clients that sent no reply, or an error."""

    @property
    def kinds(self) -> set[Silence]:
        """The kinds of reasons in a round in which no client answered. Else empty."""
        return set() if self.contents else {refusal.kind for refusal in self.refused.values()}


def sorted_replies(sent: Sent, replies: Iterable[Message]) -> Replies:
    """The replies by position in the cohort, each once.

    The reply of a dead node is from the SuperLink, so each reply is found by the message to which
    it replies.
    """
    positions = {message.metadata.message_id: at for at, message in sent.messages.items()}
    contents, refused = {}, {}
    for reply in replies:
        position = positions.pop(reply.metadata.reply_to_message_id, None)
        if position is None:
            continue  # late, or sent twice
        if reply.has_error():
            kind = Silence.OFFLINE if reply.error.code in UNREACHABLE else Silence.REFUSED
            why = f"error {reply.error.code}: {reply.error.reason}"
            refused[position] = Refusal(kind, why)
        else:
            contents[position] = reply.content
    for position in positions.values():
        refused[position] = Refusal(Silence.LATE, "no answer in time")
    for position in range(len(sent.round)):
        if position not in sent.messages:
            refused[position] = Refusal(Silence.OFFLINE, "it is offline")
    return Replies(dict(sorted(contents.items())), refused)

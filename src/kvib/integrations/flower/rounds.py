"""What was sent to a cohort, and what came back."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message, RecordDict

from kvib.integrations.kit import Model, Refusal, Round, Silence

UNREACHABLE = (3, 4, 5)
"""Flower's error codes of messages and nodes that are not available."""


@dataclass
class Sent:
    """A round between `configure_train` and `aggregate_train`."""

    round: Round
    model: Model
    template: Message
    online: int
    """Nodes that were online at the draw."""
    messages: dict[int, Message] = field(default_factory=dict)
    """By position in the cohort."""


class Replies(NamedTuple):
    """What came back, by position in the cohort."""

    contents: dict[int, RecordDict]
    refused: dict[int, Refusal]

    @property
    def kinds(self) -> set[Silence]:
        """Why clients were not heard; empty where one was."""
        return set() if self.contents else {refusal.kind for refusal in self.refused.values()}


def sorted_replies(sent: Sent, replies: Iterable[Message]) -> Replies:
    """Replies by position, each once.

    A dead node's reply is from the SuperLink, so go by the message it replies to.
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

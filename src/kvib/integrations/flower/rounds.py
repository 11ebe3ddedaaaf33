"""One round between its draw and its step, and what came back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message, RecordDict

from kvib.cohort import Cohort
from kvib.integrations.arrays import Model
from kvib.integrations.watch import Refusal, Silence
from kvib.population import Key

UNREACHABLE = (3, 4, 5)
"""Flower's error codes of messages and nodes that are not available."""


@dataclass
class Round:
    """One round between `configure_train` and `aggregate_train`."""

    cohort: Cohort
    keys: list[Key]
    model: Model
    template: Message
    online: int
    """Nodes that were online at the draw."""
    sent: dict[int, Message] = field(default_factory=dict)
    """By position in the cohort."""


class Replies(NamedTuple):
    """What came back, by position in the cohort."""

    contents: dict[int, RecordDict]
    refused: dict[int, Refusal]

    @property
    def kinds(self) -> set[Silence]:
        """Why clients were not heard; empty where one was."""
        return set() if self.contents else {refusal.kind for refusal in self.refused.values()}


def sorted_replies(round: Round, replies: Iterable[Message]) -> Replies:
    """Replies by position, each once.

    A dead node's reply is from the SuperLink, so go by the message it replies to.
    """
    positions = {message.metadata.message_id: at for at, message in round.sent.items()}
    contents, refused = {}, {}
    for reply in replies:
        position = positions.pop(reply.metadata.reply_to_message_id, None)
        if position is None:
            continue  # late, or sent twice
        if reply.has_error():
            kind = Silence.AWAY if reply.error.code in UNREACHABLE else Silence.REFUSED
            why = f"error {reply.error.code}: {reply.error.reason}"
            refused[position] = Refusal(kind, why)
        else:
            contents[position] = reply.content
    for position in positions.values():
        refused[position] = Refusal(Silence.LATE, "no answer in time")
    for position in range(len(round.keys)):
        if position not in round.sent:
            refused[position] = Refusal(Silence.AWAY, "it is offline")
    return Replies(dict(sorted(contents.items())), refused)


def keys_of(round: Round, refused: Mapping[int, Refusal]) -> dict[Key, Refusal]:
    """Refusals by the key of the client."""
    return {round.keys[position]: refusal for position, refusal in refused.items()}

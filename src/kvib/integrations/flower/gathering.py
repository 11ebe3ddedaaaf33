"""From the replies of a round to their sum: the arrays they train, and the replies that count."""

from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import RecordDict

from kvib.integrations.flower.records import Records, Reply, received
from kvib.integrations.flower.rounds import Replies, Sent
from kvib.integrations.kit import (
    Answer,
    BadReplyError,
    Combination,
    Hidden,
    Model,
    Round,
    Visible,
    agreed,
    must_agree,
)


class Gathered(NamedTuple):
    """The replies of a round that count."""

    combination: Combination
    """The sum of the replies."""
    model: Model
    """The part of the model that the replies train."""
    records: Mapping[int, Records]
    """The records that clients sent beside arrays, by position in the cohort."""


def gathered(updates: Visible | Hidden, sent: Sent, replies: Replies) -> Gathered:
    """Add up the replies that have the arrays which most replies have.

    Clients that sent other replies are refused in the round.

    Args:
        updates: The way in which the server sees updates.
        sent: The round that was sent.
        replies: The replies that arrived, and the reasons of those that did not.
    """
    round, every = sent.round, sent.model.arrays.keys()
    for position, refusal in replies.refused.items():
        round.refuse(position, refusal.why, refusal.kind)
    opened = _opened(round, replies.contents)
    names = agreed(every, (reply.arrays.keys() for reply in opened.values()))
    model = sent.model.only(names)
    combination, records = updates.begin(round, model), {}
    for position, reply in opened.items():
        try:
            must_agree(reply.arrays.keys(), names, every)
            combination.add(Answer(position, reply.arrays, reply.norm))
            records[position] = reply.records
        except BadReplyError as error:
            round.refuse(position, str(error))
    return Gathered(combination, model, records)


def _opened(round: Round, contents: Mapping[int, RecordDict]) -> dict[int, Reply]:
    """The replies that could be a model, by position. Clients that sent others are refused."""
    opened = {}
    for position, content in contents.items():
        try:
            opened[position] = received(content)
        except BadReplyError as error:
            round.refuse(position, str(error))
    return opened

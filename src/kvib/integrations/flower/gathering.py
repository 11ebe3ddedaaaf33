"""From the replies of a round to their sum: which arrays they train, and which replies count."""

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
    """Their sum so far."""
    model: Model
    """The arrays that they train."""
    said: Mapping[int, Records]
    """What clients sent beside arrays, by position in the cohort."""


def gathered(updates: Visible | Hidden, sent: Sent, replies: Replies) -> Gathered:
    """Add up the replies that are updates of the arrays which most of them have.

    Clients whose replies are not are refused in the round.
    """
    round, every = sent.round, sent.model.arrays.keys()
    for position, refusal in replies.refused.items():
        round.refuse(position, refusal.why, refusal.kind)
    came = _opened(round, replies.contents)
    names = agreed(every, (reply.arrays.keys() for reply in came.values()))
    model = sent.model.only(names)
    combination, said = updates.begin(round, model), {}
    for position, reply in came.items():
        try:
            must_agree(reply.arrays.keys(), names, every)
            combination.add(Answer(position, reply.arrays, reply.norm))
            said[position] = reply.said
        except BadReplyError as error:
            round.refuse(position, str(error))
    return Gathered(combination, model, said)


def _opened(round: Round, contents: Mapping[int, RecordDict]) -> dict[int, Reply]:
    """Replies that could be a model, by position; clients that sent others are refused."""
    came = {}
    for position, content in contents.items():
        try:
            came[position] = received(content)
        except BadReplyError as error:
            round.refuse(position, str(error))
    return came

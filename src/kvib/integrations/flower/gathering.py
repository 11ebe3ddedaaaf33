"""From the replies of a round to their sum: which arrays they train, and which replies count."""

from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import RecordDict

from kvib.integrations.arrays import BadReplyError, Model
from kvib.integrations.combining import Answer, Combination, Hidden, Visible
from kvib.integrations.flower.records import Records, Reply, received
from kvib.integrations.flower.rounds import Replies, Round
from kvib.integrations.subsets import agreed, must_agree
from kvib.integrations.watch import Refusal, Silence
from kvib.sampler import Sampler


class Gathered(NamedTuple):
    """The replies of a round that count."""

    combination: Combination
    """Their sum so far."""
    model: Model
    """The arrays that they train."""
    said: Mapping[int, Records]
    """What clients sent beside arrays, by position in the cohort."""
    refused: Mapping[int, Refusal]
    """Why others do not count, by position."""


def gathered(
    updates: Visible | Hidden, sampler: Sampler, round: Round, replies: Replies
) -> Gathered:
    """Add up the replies that are updates of the arrays which most of them have."""
    refused = dict(replies.refused)
    came = _opened(replies.contents, refused)
    every = round.model.arrays.keys()
    names = agreed(every, (reply.arrays.keys() for reply in came.values()))
    model = round.model.only(names)
    combination, said = updates.begin(sampler, round.cohort, model), {}
    for position, reply in came.items():
        try:
            must_agree(reply.arrays.keys(), names, every)
            combination.add(Answer(position, reply.arrays, reply.norm))
            said[position] = reply.said
        except BadReplyError as error:
            refused[position] = Refusal(Silence.REFUSED, str(error))
    return Gathered(combination, model, said, refused)


def _opened(contents: Mapping[int, RecordDict], refused: dict[int, Refusal]) -> dict[int, Reply]:
    """Replies that could be a model, by position; why others could not be goes to `refused`."""
    came = {}
    for position, content in contents.items():
        try:
            came[position] = received(content)
        except BadReplyError as error:
            refused[position] = Refusal(Silence.REFUSED, str(error))
    return came

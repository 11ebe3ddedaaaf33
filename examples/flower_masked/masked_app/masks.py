"""Masks of pairs of clients, and checks that refuse messages whose answers masks cannot hide.

The masks are a DEMONSTRATION of the algebra, not secure aggregation. All clients share one secret,
which stands in the run config. Real protocols agree on a secret for every pair. Floating-point
masks leak. A client that fails leaves its masks in the sum, so the round is lost. And the server
chooses the coefficients: within SPAN it can still make one update count more than all others.
"""

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from masked_app.memory import answer_once

MASK = 1e6
"""The standard deviation of each number of a mask."""
DWARFED = 1e-6
"""The largest norm of what is masked, relative to MASK.

One masked reply distinguishes two updates below it with an advantage below 10⁻⁶. The advantage is
the total variation of two normal laws whose means are 2·DWARFED standard deviations apart.
"""
SPAN = 100.0
"""The factor by which a coefficient may differ from 1/size. Coefficients sum to about 1."""
SMALLEST_COHORT = 2
"""A cohort of one has no pairs, so there are no masks."""
INTRODUCTION = "query.kvib"
"""The message type that asks a client who it is. Its answer holds no update."""


def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add a mask for each other client of the cohort. One client of a pair adds it, the other
    subtracts it.

    The mod answers the two types of message that it knows and refuses all others, because their
    replies would leave the client without a mask.
    """
    kind = message.metadata.message_type
    if kind == INTRODUCTION:
        return call_next(message, context)
    if kind != "train":
        raise ValueError(f"message type {kind!r} is refused: only 'train' is masked; send that")
    me, size, round = _question(message.content.config_records.get("kvib"))
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    [(name, record)] = reply.content.array_records.items()
    arrays = {key: array.numpy() for key, array in record.items()}
    _must_be_dwarfed(arrays)
    answer_once(context, round)  # last: from here on the round counts as answered
    secret = int(context.run_config["secret"])
    for other in (k for k in range(size) if k != me):
        pair = (secret, context.run_id, round, min(me, other), max(me, other))
        rng = np.random.default_rng(pair)
        for key, array in arrays.items():
            arrays[key] = array + np.sign(other - me) * MASK * rng.normal(size=array.shape)
    reply.content[name] = ArrayRecord({key: Array(array) for key, array in arrays.items()})
    return reply


def _question(record: ConfigRecord | None) -> tuple[int, int, int]:
    """The position, the size of the cohort and the round. Raise ValueError if masks cannot hide
    the answer."""
    if record is None:
        raise ValueError(
            "the message has no record 'kvib', so the cohort is not known; on the server say "
            "UnbiasedSampling(…, updates=Hidden())"
        )
    me, size, round = (_whole(record, name) for name in ("position", "size", "round"))
    if size < SMALLEST_COHORT:
        raise ValueError(
            f"a cohort of {size} is refused: masks belong to pairs; draw at least "
            f"{SMALLEST_COHORT} clients"
        )
    if me >= size:
        raise ValueError(f"position {me} is refused: the cohort has positions 0 to {size - 1}")
    coefficient = record.get("coefficient")
    if not isinstance(coefficient, float) or not 1 / SPAN <= coefficient * size <= SPAN:
        raise ValueError(
            f"coefficient {coefficient!r} is refused: a client of a cohort of {size} expects "
            f"{1 / SPAN / size:g} to {SPAN / size:g}, since all of them sum to about 1"
        )
    return me, size, round


def _whole(record: ConfigRecord, name: str) -> int:
    """A whole number from 0 on. Raise ValueError for any other value."""
    value = record.get(name)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} {value!r} is refused: it is no whole number from 0 on")
    return value


def _must_be_dwarfed(arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError for an update that is too large for the masks to hide."""
    norm = math.sqrt(sum(float(np.sum(np.square(array))) for array in arrays.values()))
    if not norm <= DWARFED * MASK:
        raise ValueError(
            f"an update of norm {norm:g}, coefficient included, is refused: masks hide up to "
            f"{DWARFED * MASK:g}; lower the learning rate, or raise MASK in all clients"
        )

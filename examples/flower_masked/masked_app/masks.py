"""Masks of pairs, and the questions that a client refuses since masks would not hide the answer.

The masks are a DEMONSTRATION of the algebra, not secure aggregation. All clients share a secret
that stands in the run config, where real protocols agree on one for every pair. Floating-point
masks leak. A client that fails leaves its masks in the sum, so the round is lost. And the server
chooses the coefficients: within SPAN it can still make one update count more than all others.
"""

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from masked_app.memory import answer_once

MASK = 1e6
"""Standard deviation of each number of a mask."""
DWARFED = 1e-6
"""The largest norm of what is masked, relative to MASK.

Two updates below it are told apart by one masked reply with an advantage below 10⁻⁶: that is the
total variation of two normal laws whose means are 2·DWARFED standard deviations apart.
"""
SPAN = 100.0
"""Coefficients sum to about 1, so a client expects about 1/size: within this factor."""
SMALLEST_COHORT = 2
"""A cohort of one has no pairs, so there are no masks."""
INTRODUCTION = "query.kvib"
"""The question who the client is, which concerns no update."""


def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add a mask for each other client of the cohort: what one adds, the other subtracts.

    The mod answers the two kinds of message that it knows and refuses all others: what it let
    through without a look would leave the client without a mask.
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


def _question(told: ConfigRecord | None) -> tuple[int, int, int]:
    """Position, size of the cohort and round, if masks can hide the answer."""
    if told is None:
        raise ValueError(
            "the message has no record 'kvib', so the cohort is not known; on the server say "
            "UnbiasedSampling(…, updates=Hidden())"
        )
    me, size, round = (_whole(told, name) for name in ("position", "size", "round"))
    if size < SMALLEST_COHORT:
        raise ValueError(
            f"a cohort of {size} is refused: masks belong to pairs; draw at least "
            f"{SMALLEST_COHORT} clients"
        )
    if me >= size:
        raise ValueError(f"position {me} is refused: the cohort has positions 0 to {size - 1}")
    coefficient = told.get("coefficient")
    if not isinstance(coefficient, float) or not 1 / SPAN <= coefficient * size <= SPAN:
        raise ValueError(
            f"coefficient {coefficient!r} is refused: a client of a cohort of {size} expects "
            f"{1 / SPAN / size:g} to {SPAN / size:g}, since all of them sum to about 1"
        )
    return me, size, round


def _whole(told: ConfigRecord, name: str) -> int:
    value = told.get(name)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} {value!r} is refused: it is no whole number from 0 on")
    return value


def _must_be_dwarfed(arrays: dict[str, np.ndarray]) -> None:
    norm = math.sqrt(sum(float(np.sum(np.square(array))) for array in arrays.values()))
    if not norm <= DWARFED * MASK:
        raise ValueError(
            f"an update of norm {norm:g}, coefficient included, is refused: masks hide up to "
            f"{DWARFED * MASK:g}; lower the learning rate, or raise MASK in all clients"
        )

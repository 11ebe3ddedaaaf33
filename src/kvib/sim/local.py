"""What a drawn client does with the model: local SGD, on batches that every engine shares."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.sim.data import ClientData
from kvib.types import IntArray


@dataclass(frozen=True)
class LocalSGD:
    """Plain SGD on the client's own data.

    Args:
        learning_rate: η_l.
        batch_size: samples per step; a client with fewer makes one step of all it has.
        epochs: passes over the client's data, unless `steps` is given.
        steps: SGD steps of every client, however much data it has.
        prox: μ of FedProx: adds μ(x_i − x) to every gradient.
    """

    learning_rate: float
    batch_size: int
    epochs: int = 1
    steps: int | None = None
    prox: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}={getattr(self, name)} is not a positive number")
        for name in ("batch_size", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and (int(value) != value or value < 1):
                raise ValueError(f"{name}={value} is not a positive whole number; leave it out")
        if not 0 <= self.prox < np.inf:
            raise ValueError(f"prox={self.prox} is not a number ≥ 0")


class Batches(NamedTuple):
    """The local work of some clients in one round: client c makes the steps of batches
    `first[c]` to `first[c + 1]`, step k on `samples[starts[k] : starts[k] + lengths[k]]`."""

    samples: IntArray
    """Positions in the data of all clients."""
    starts: IntArray
    """Where each batch begins in `samples`, [steps]."""
    lengths: IntArray
    """How many samples each batch has, [steps]."""
    first: IntArray
    """First batch of each client, [m + 1]."""
    seeds: IntArray
    """For whatever else is random in a client's training (dropout), [m]."""

    @property
    def steps(self) -> IntArray:
        """SGD steps of each client, [m]."""
        return np.diff(self.first)

    def part(self, clients: IntArray) -> "Batches":
        """The work of some of these clients, by their positions."""
        steps = self.steps[clients]
        _, within = _within(steps)
        batch = np.repeat(self.first[:-1][clients], steps) + within
        lengths = self.lengths[batch]
        segment, offset = _within(lengths)
        samples = self.samples[self.starts[batch][segment] + offset]
        first = np.concatenate([[0], np.cumsum(steps)])
        starts = np.cumsum(lengths) - lengths
        return Batches(samples, starts, lengths, first, self.seeds[clients])


def shared_out(steps: IntArray, workers: int) -> list[list[int]]:
    """Positions of clients for each worker: longest first, to whoever has least to do."""
    load = [0] * workers
    shares: list[list[int]] = [[] for _ in load]
    work = steps.tolist()
    for c in sorted(range(len(work)), key=work.__getitem__, reverse=True):
        least = load.index(min(load))
        shares[least].append(c)
        load[least] += work[c]
    return shares


def local_batches(
    data: ClientData, ids: IntArray, local: LocalSGD, seed: int, round: int
) -> Batches:
    """Who trains on what, in which order: decided by (seed, round, client) and nothing else.

    A client's batches therefore do not depend on who else was drawn, and are the same in every
    engine and on every machine.
    """
    sizes = data.sizes[ids]
    B = local.batch_size
    per_epoch = -(-sizes // B)  # batches in one pass, the last may be smaller
    passes = np.full(len(ids), local.epochs)
    if local.steps is not None:
        passes = -(-local.steps // per_epoch)
    client, number = _within(passes)  # one entry per (client, pass), clients one after another
    salt = _hash(np.array([seed], np.uint64), np.array([round], np.uint64))
    keys = _hash(salt, ids.astype(np.uint64))  # one per client
    index = _shuffled(data.starts[ids], sizes, client, number, keys)

    segment, within = _within(per_epoch[client])  # one entry per batch
    lengths = np.minimum(B, sizes[client][segment] - within * B)
    starts = np.cumsum(lengths) - lengths
    first = np.concatenate([[0], np.cumsum(per_epoch * passes)])
    if local.steps is not None:  # cut the last pass short
        keep = _within(np.diff(first))[1] < local.steps
        starts, lengths = starts[keep], lengths[keep]
        first = np.arange(len(ids) + 1) * local.steps
    return Batches(index, starts, lengths, first, (keys >> np.uint64(1)).astype(np.int64))


def _within(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """For segments of these lengths one after another: the segment of every entry, and its
    position in it."""
    ends = np.cumsum(lengths)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    return segment, np.arange(len(segment)) - (ends - lengths)[segment]


def _shuffled(
    begin: IntArray,
    sizes: IntArray,
    client: IntArray,
    number: IntArray,
    keys: "NDArray[np.uint64]",
) -> IntArray:
    """A random order of the samples of each (client, pass), all in one sort of hashed keys."""
    segment, offset = _within(sizes[client])
    own = _hash(keys[client], number.astype(np.uint64))
    bits = max(len(client).bit_length(), 1)
    key = _hash(own[segment], offset.astype(np.uint64)) >> np.uint64(bits)
    key |= segment.astype(np.uint64) << np.uint64(64 - bits)
    # Two equal keys of one client would be a chance of 2^−50 or so; their order hardly matters.
    order: IntArray = np.argsort(key)
    return begin[client][segment] + offset[order]


def _hash(a: "NDArray[np.uint64]", b: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """Mix two words into one (splitmix64). Arrays, whose overflow is silent, not numbers."""
    z = a + (b + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed

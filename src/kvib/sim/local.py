"""Local training of a drawn client: SGD on batches that are the same for every engine."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.sim.data import ClientData
from kvib.types import IntArray


@dataclass(frozen=True)
class LocalSGD:
    """A drawn client takes plain SGD steps on its own data.

    Client i starts at the server's model, x_i = x, and steps
    x_i ← x_i − η_l·(∇f_i(x_i) + μ(x_i − x)), where ∇f_i is the gradient of the mean loss of a
    batch. It sends the update g_i = x − x_i.

    Args:
        learning_rate: The step size η_l.
        batch_size: The number of samples per step. A client with fewer samples than this takes one
            step per pass, with all of its samples.
        epochs: The number of passes over the client's data, unless `steps` is given.
        steps: The number of SGD steps of every client, however much data it has. None means that
            `epochs` decides.
        prox: μ of FedProx, which pulls the local model towards the server's. 0 means no pull.

    Examples:
        >>> from kvib.sim import LocalSGD
        >>> LocalSGD(learning_rate=0.02, batch_size=64)
        LocalSGD(learning_rate=0.02, batch_size=64, epochs=1, steps=None, prox=0.0)

    References:
        Li et al., "Federated optimization in heterogeneous networks" (FedProx), 2020.
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
    """The local work of some clients in one round.

    Client c takes the steps `first[c]` to `first[c + 1]`. Step k trains on
    `samples[starts[k] : starts[k] + lengths[k]]`.
    """

    samples: IntArray
    """Positions of samples in the data of all clients."""
    starts: IntArray
    """The position in `samples` where each batch begins, [steps]."""
    lengths: IntArray
    """The number of samples of each batch, [steps]."""
    first: IntArray
    """The first batch of each client, [m + 1]."""
    seeds: IntArray
    """Seeds for everything else that is random in a client's training (dropout), [m]."""

    @property
    def steps(self) -> IntArray:
        """The number of SGD steps of each client, [m]."""
        return np.diff(self.first)

    def part(self, clients: IntArray) -> "Batches":
        """The work of the clients at these positions."""
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
    """Positions of clients for each worker.

    The clients with most steps are dealt out first, each to the worker with the least work so far.
    """
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
    """The batches of these clients: a function of (seed, round, client) and nothing else.

    A client's batches therefore do not depend on which other clients were drawn. They are the same
    in every engine and on every machine.
    """
    # The number of passes of each client over its data.
    sizes = data.sizes[ids]
    B = local.batch_size
    per_epoch = -(-sizes // B)  # batches in one pass: the last may be smaller
    passes = np.full(len(ids), local.epochs)
    if local.steps is not None:
        passes = -(-local.steps // per_epoch)
    client, number = _within(passes)  # one entry per (client, pass), clients one after another
    # The order of the samples in each pass, from one key per client.
    salt = _hash(np.array([seed], np.uint64), np.array([round], np.uint64))
    keys = _hash(salt, ids.astype(np.uint64))
    index = _shuffled(data.starts[ids], sizes, client, number, keys)
    # Each pass is cut into batches.
    segment, within = _within(per_epoch[client])  # one entry per batch
    lengths = np.minimum(B, sizes[client][segment] - within * B)
    starts = np.cumsum(lengths) - lengths
    first = np.concatenate([[0], np.cumsum(per_epoch * passes)])
    if local.steps is not None:  # the last pass ends when the client has taken all of its steps
        keep = _within(np.diff(first))[1] < local.steps
        starts, lengths = starts[keep], lengths[keep]
        first = np.arange(len(ids) + 1) * local.steps
    return Batches(index, starts, lengths, first, (keys >> np.uint64(1)).astype(np.int64))


def _within(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """The segment of every entry and the entry's position in it, for segments of these lengths
    that lie one after another."""
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
    """The samples of each (client, pass) in random order, by one sort of hashed keys."""
    segment, offset = _within(sizes[client])
    own = _hash(keys[client], number.astype(np.uint64))
    # The high bits of a key are its segment, so that segments stay apart. The low bits are random.
    bits = max(len(client).bit_length(), 1)
    key = _hash(own[segment], offset.astype(np.uint64)) >> np.uint64(bits)
    key |= segment.astype(np.uint64) << np.uint64(64 - bits)
    # Two keys of one client are equal with a probability of 2^−50 or so. Their order hardly
    # matters.
    order: IntArray = np.argsort(key)
    return begin[client][segment] + offset[order]


def _hash(a: "NDArray[np.uint64]", b: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """Two words mixed into one (splitmix64). Both are arrays, whose overflow is silent."""
    z = a + (b + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed

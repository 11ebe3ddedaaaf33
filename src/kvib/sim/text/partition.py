"""Partitions: which client has which documents, in a long tail or by author."""

from collections.abc import Sequence

import numpy as np

from kvib.sim.data import Array
from kvib.sim.text.tokens import Tokens
from kvib.types import FloatArray, IntArray

SIZES, ORDER = 8, 9
"""Joined to a seed, so that sizes and the order of samples come from different random numbers."""
ROUNDING = 1e-9
"""Added before a size is cut to a whole number, so that rounding errors cut nothing off."""
AT_LEAST_ONE = 1 - 1e-12
"""Sizes from here on count as at least 1, which leaves room for rounding errors."""


def tail_sizes(samples: int, clients: int, sigma: float, seed: int = 0) -> IntArray:
    """The numbers of samples of clients, in a long tail.

    The sizes are max(1, c·x) with x ~ LogNormal(0, σ), and c such that they add up to n.

    Examples:
        >>> sizes = tail_sizes(20_000, 1_000, sigma=2.0)
        >>> int(sizes.sum()), int(sizes.min())
        (20000, 1)

    Args:
        samples: The number of samples n.
        clients: The number of clients N.
        sigma: σ, which is 1, 2 or 3 in the paper's three tails.
        seed: The seed of the sizes.
    """
    if not 0 < clients <= samples:
        raise ValueError(
            f"{samples} samples cannot be dealt to {clients} clients, one each at least; take "
            "fewer clients"
        )
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma={sigma} is not a number ≥ 0")
    rng = np.random.Generator(np.random.PCG64([seed, SIZES]))
    shares = np.exp(sigma * rng.standard_normal(clients))
    exact = np.maximum(1, _factor(shares, samples) * shares)
    # Sizes are cut to whole numbers. What is left, fewer than N, goes to the largest remainders.
    sizes: IntArray = (exact + ROUNDING).astype(np.int64)
    short = samples - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    return sizes


def _factor(shares: FloatArray, total: float) -> float:
    """The c for which Σ max(1, c·share) = total."""
    ordered = np.sort(shares)
    at_one = np.arange(len(shares))  # the number of smallest clients that have one sample
    c = (total - at_one) / np.cumsum(ordered[::-1])[::-1]
    return float(c[np.flatnonzero(c * ordered >= AT_LEAST_ONE)[0]])


def deal(samples: int, sizes: IntArray, seed: int = 0) -> IntArray:
    """The samples of all clients in random order, one client after another, [Σ sizes]."""
    rng = np.random.Generator(np.random.PCG64([seed, ORDER]))
    return rng.permutation(samples)[: int(sizes.sum())]


def blocks(tokens: Tokens, length: int) -> Array:
    """Full blocks of consecutive tokens of all documents, [n, length]. The rest is left out."""
    n = len(tokens.values) // length
    if n == 0:
        raise ValueError(
            f"{len(tokens.values)} tokens do not fill one block of {length}; take shorter blocks"
        )
    return tokens.values[: n * length].reshape(n, length)


def blocks_by_client(
    tokens: Tokens, names: Sequence[str], length: int, *, leave_out: bool = False
) -> tuple[Array, IntArray]:
    """Full blocks of every client's own text, [n, length], and the number of blocks of each.

    Args:
        tokens: One document per client.
        names: The names of the clients, for messages.
        length: The number of tokens of a block.
        leave_out: Whether clients without a full block are left out. Otherwise they are an error.
    """
    counts = tokens.sizes // length
    if not leave_out and not counts.all():
        k = int(np.flatnonzero(counts == 0)[0])
        raise ValueError(
            f"client {names[k]!r} has {tokens.sizes[k]} tokens, not one full block of {length}; "
            "take shorter blocks, or leave_out=True for clients with full blocks only"
        )
    if not counts.any():
        raise ValueError(f"no client has one full block of {length} tokens; take shorter blocks")
    starts = np.cumsum(tokens.sizes) - tokens.sizes
    client = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = starts[client] + number * length
    return tokens.values[at[:, None] + np.arange(length)], counts[counts > 0]

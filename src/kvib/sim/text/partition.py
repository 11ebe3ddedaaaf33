"""Who has which documents: long tails, or whoever wrote them."""

from collections.abc import Sequence

import numpy as np

from kvib.sim.data import Array
from kvib.sim.text.tokens import Tokens
from kvib.types import FloatArray, IntArray


def tail_sizes(samples: int, clients: int, sigma: float, seed: int = 0) -> IntArray:
    """Sizes max(1, c·x), x LogNormal(0, σ), with c such that they add up to n.

    Examples:
        >>> sizes = tail_sizes(20_000, 1_000, sigma=2.0)
        >>> int(sizes.sum()), int(sizes.min())
        (20000, 1)

    Args:
        samples: n.
        clients: N.
        sigma: σ of the paper's three tails: 1, 2 or 3.
        seed: which sizes.
    """
    if not 0 < clients <= samples:
        raise ValueError(
            f"{samples} samples cannot be dealt to {clients} clients, one each at least; take "
            "fewer clients"
        )
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma={sigma} is not a number ≥ 0")
    rng = np.random.Generator(np.random.PCG64([seed, 8]))
    shares = np.exp(sigma * rng.standard_normal(clients))
    exact = np.maximum(1, _factor(shares, samples) * shares)
    sizes: IntArray = (exact + 1e-9).astype(np.int64)
    short = samples - int(sizes.sum())  # fewer than N: to the largest remainders
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    return sizes


def _factor(shares: FloatArray, total: float) -> float:
    """c of Σ max(1, c·share) = total."""
    ordered = np.sort(shares)
    at_one = np.arange(len(shares))  # how many of the smallest have one sample
    c = (total - at_one) / np.cumsum(ordered[::-1])[::-1]
    return float(c[np.flatnonzero(c * ordered >= 1 - 1e-12)[0]])


def deal(samples: int, sizes: IntArray, seed: int = 0) -> IntArray:
    """Samples in random order, one client's after another's, [Σ sizes]."""
    rng = np.random.Generator(np.random.PCG64([seed, 9]))
    return rng.permutation(samples)[: int(sizes.sum())]


def blocks(tokens: Tokens, length: int) -> Array:
    """Full blocks of consecutive tokens, documents joined, the rest left out, [n, length]."""
    n = len(tokens.values) // length
    if n == 0:
        raise ValueError(
            f"{len(tokens.values)} tokens do not fill one block of {length}; take shorter blocks"
        )
    return tokens.values[: n * length].reshape(n, length)


def blocks_by_client(
    tokens: Tokens, names: Sequence[str], length: int, *, leave_out: bool = False
) -> tuple[Array, IntArray]:
    """Full blocks of every client's own text, and how many each has.

    Args:
        tokens: one document per client.
        names: of the clients, for messages.
        length: tokens of a block.
        leave_out: clients without a full block are left out; otherwise an error.
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

"""All randomness comes from (seed, round, purpose): nothing to save, and resuming is exact."""

from zlib import crc32

import numpy as np


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """A generator of its own for one purpose in one round of one run."""
    return np.random.Generator(np.random.PCG64([seed, round, crc32(purpose.encode())]))

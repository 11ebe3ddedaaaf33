"""Randomness that is a function of (seed, round, purpose).

No state of a generator has to be saved, and a resumed run draws exactly what the run would have
drawn without the interruption.
"""

from zlib import crc32

import numpy as np


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """The random generator for one purpose in one round of one run."""
    return np.random.Generator(np.random.PCG64([seed, round, crc32(purpose.encode())]))

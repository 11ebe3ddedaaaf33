"""The independent sampling procedure (ISP) of the paper."""

import numpy as np

from kvib.cohort import Pairs
from kvib.procedures.procedure import Indexed, Procedure
from kvib.types import FloatArray, IntArray


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    return (rng.random(len(p)) < p).astype(np.int64)


def _pairs(p: FloatArray, at: IntArray) -> Pairs:
    return Pairs(ratio=1.0, size=1 - p[at])


def _by_index(index: Indexed, rng: np.random.Generator) -> IntArray:
    return index.tossed(rng)


independent = Procedure("independent", _counts, _pairs, by_index=_by_index)
"""Every client tosses its own coin. The size varies around the budget and may be 0: then the
estimate is 0 and the model stays, since drawing again until somebody comes would bias it."""

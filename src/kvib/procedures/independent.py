"""The independent sampling procedure (ISP) of the paper."""

from typing import Any

import numpy as np

from kvib.cohort import FloatArray, IntArray, Pairs
from kvib.procedures.procedure import Procedure


def _counts(p: FloatArray, rng: np.random.Generator) -> IntArray:
    return (rng.random(len(p)) < p).astype(np.int64)


def _pairs(p: FloatArray, at: IntArray) -> Pairs:
    return Pairs(ratio=1.0, size=1 - p[at])


def _by_index(index: Any, mixture: Any, rng: np.random.Generator) -> IntArray:
    drawn: IntArray = index.independent(mixture, rng)
    return drawn


independent = Procedure("independent", _counts, _pairs, by_index=_by_index)
"""Every client tosses its own coin. The size varies around the budget and may be 0: then the
estimate is 0 and the model stays, since drawing again until somebody comes would bias it."""

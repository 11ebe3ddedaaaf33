"""What the authors' released scripts do, to show where their curves come from. Not of the library.

Their uniform baseline pairs the weights of the drawn in the order they were drawn with updates in
ascending order, and self-normalises. Their solver takes ω + γ without the square root.

Not done here: theirs also leaves one "probability" p above 1 where ours has 1 (`authors_solver` in
benchmarks/core.py). A coin cannot tell, but the coefficient λ/p can: in their runs one client of
those drawn for certain counts for less than λ, in ours for λ.
"""

import zlib
from dataclasses import dataclass

import numpy as np

import kvib
from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.policies.regularised import RegularisedState
from kvib.randomness import generator


def permuted_mean(cohort: Cohort) -> FloatArray:
    """Σ λ_σ(i) g_i / Σ λ: weights of the right clients in the wrong order.

    Which order follows from who was drawn: the same after a restart, another for every seed.
    """
    drawn = zlib.crc32(cohort.ids.tobytes())
    order = generator(drawn, cohort.round, "as released").permutation(len(cohort))
    weights: FloatArray = cohort.weight[order]
    return weights / weights.sum()


@dataclass(frozen=True)
class ReleasedKVib(kvib.KVib):
    """Scores ω + γ, without the square root."""

    def scores(self, state: RegularisedState, ids: IntArray) -> FloatArray:
        """Of the drawn."""
        return np.square(super().scores(state, ids))

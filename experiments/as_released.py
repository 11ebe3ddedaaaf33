"""Variants as in the authors' released scripts, to show where their curves come from.

This file is not part of the library. The authors' uniform baseline pairs the weights of the drawn
clients, in the order of the draw, with updates in ascending order of clients, and self-normalises.
Their solver takes ω + γ without the square root.

One difference is not imitated here. The authors' solver leaves one "probability" p above 1 where
ours has 1 (`authors_solver` in benchmarks/core.py). The draw does not change, but the coefficient
λ/p does: in their runs, one of the clients that are drawn for certain counts for less than λ, in
ours for λ.
"""

import zlib
from dataclasses import dataclass

import numpy as np

import kvib
from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.policies.regularised import RegularisedState
from kvib.randomness import generator


def permuted_mean(cohort: Cohort) -> FloatArray:
    """The coefficients of Σ λ_σ(i) g_i / Σ λ: weights of the right clients in the wrong order.

    The order is computed from the drawn clients, so it is the same after a restart and differs
    between seeds.
    """
    drawn = zlib.crc32(cohort.ids.tobytes())
    order = generator(drawn, cohort.round, "as released").permutation(len(cohort))
    weights: FloatArray = cohort.weight[order]
    return weights / weights.sum()


@dataclass(frozen=True)
class ReleasedKVib(kvib.KVib):
    """K-Vib with the scores ω + γ, without the square root."""

    def scores(self, state: RegularisedState, ids: IntArray) -> FloatArray:
        """The scores of these clients, [m]."""
        return np.square(super().scores(state, ids))

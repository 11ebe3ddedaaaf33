"""Probabilities of very many clients in a few numbers."""

from typing import NamedTuple

import numpy as np

from kvib.index.buckets import Threshold
from kvib.types import FloatArray


class Mixture(NamedTuple):
    """p = (1−θ)·min(cap, c·score) + θ·(what everybody gets, or what weights deserve)."""

    mix: float
    """θ."""
    main: Threshold
    uniform: float
    by_weight: Threshold | None
    cap: float

    def of_scores(self, scores: FloatArray) -> FloatArray:
        """(1−θ)·min(cap, c·score)."""
        if self.mix == 1:
            return np.zeros(len(scores))
        return (1 - self.mix) * np.minimum(self.cap, self.main.c * scores)

    def of_weights(self, weights: FloatArray) -> FloatArray:
        """θ·min(cap, c·weight)."""
        assert self.by_weight is not None
        if self.mix == 0:
            return np.zeros(len(weights))
        return self.mix * np.minimum(self.cap, self.by_weight.c * weights)

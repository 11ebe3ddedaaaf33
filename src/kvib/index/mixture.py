"""The probabilities of very many clients in a few numbers."""

from typing import NamedTuple

import numpy as np

from kvib.index.buckets import Threshold
from kvib.types import FloatArray


class Mixture(NamedTuple):
    """p = (1−θ)·min(cap, c·score) + θ·(the uniform probability, or min(cap, c·weight))."""

    mix: float
    """The share θ of exploration."""
    main: Threshold
    """The factor of the scores."""
    uniform: float
    """The probability of every client in uniform exploration."""
    by_weight: Threshold | None
    """The factor of the weights in exploration by weight. None: exploration is uniform."""
    cap: float
    """The largest expected count of a client."""

    def of_scores(self, scores: FloatArray) -> FloatArray:
        """The part of p by scores, (1−θ)·min(cap, c·score)."""
        if self.mix == 1:
            return np.zeros(len(scores))
        return (1 - self.mix) * np.minimum(self.cap, self.main.c * scores)

    def of_weights(self, weights: FloatArray) -> FloatArray:
        """The part of p by weights, θ·min(cap, c·weight)."""
        assert self.by_weight is not None
        if self.mix == 0:
            return np.zeros(len(weights))
        return self.mix * np.minimum(self.cap, self.by_weight.c * weights)

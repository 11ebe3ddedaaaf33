"""Estimators: from the updates of a cohort to an estimate of the step of all clients."""

from kvib.estimators.difference import Difference
from kvib.estimators.estimate import (
    estimate,
    estimated_variance,
    norm,
    norms,
    self_normalised,
    unbiased,
)
from kvib.estimators.guard import Guard
from kvib.estimators.memory import GroupMeans, LargestEntries, LastUpdates
from kvib.estimators.streaming import Estimation, NotFiniteError
from kvib.estimators.variance import VarianceEstimate

__all__ = [
    "Difference",
    "Estimation",
    "GroupMeans",
    "Guard",
    "LargestEntries",
    "LastUpdates",
    "NotFiniteError",
    "VarianceEstimate",
    "estimate",
    "estimated_variance",
    "norm",
    "norms",
    "self_normalised",
    "unbiased",
]

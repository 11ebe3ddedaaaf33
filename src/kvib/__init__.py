"""Unbiased adaptive client sampling for federated learning."""

from kvib import metrics, theory
from kvib.cohort import Cohort, Pairs
from kvib.estimators import (
    VarianceEstimate,
    estimate,
    estimated_variance,
    norm,
    norms,
    self_normalised,
    unbiased,
)
from kvib.policies import (
    AOCS,
    OSMD,
    Avare,
    BySize,
    Exploration,
    KVib,
    Mabs,
    Optimal,
    Policy,
    Setting,
    Uniform,
    Vrb,
)
from kvib.procedures import (
    Procedure,
    conditional_poisson,
    independent,
    pivotal,
    systematic,
    with_replacement,
    without_replacement,
)
from kvib.rates import EstimatedRate
from kvib.sampler import Sampler
from kvib.selectors import DivFL, PowerOfChoice, Selector
from kvib.waterfill import waterfill

__version__ = "0.1.0"

__all__ = [
    "AOCS",
    "OSMD",
    "Avare",
    "BySize",
    "Cohort",
    "DivFL",
    "EstimatedRate",
    "Exploration",
    "KVib",
    "Mabs",
    "Optimal",
    "Pairs",
    "Policy",
    "PowerOfChoice",
    "Procedure",
    "Sampler",
    "Selector",
    "Setting",
    "Uniform",
    "VarianceEstimate",
    "Vrb",
    "conditional_poisson",
    "estimate",
    "estimated_variance",
    "independent",
    "metrics",
    "norm",
    "norms",
    "pivotal",
    "self_normalised",
    "systematic",
    "theory",
    "unbiased",
    "waterfill",
    "with_replacement",
    "without_replacement",
]

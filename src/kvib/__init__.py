"""Unbiased adaptive client sampling for federated learning."""

from kvib import journal, metrics, plan, replay, theory
from kvib.checkin import Admission
from kvib.cohort import Cohort, Pairs
from kvib.diagnose import Diagnosis, diagnose
from kvib.difference import Difference
from kvib.estimation import NotFiniteError
from kvib.estimators import (
    estimate,
    estimated_variance,
    norm,
    norms,
    self_normalised,
    unbiased,
)
from kvib.guard import Guard
from kvib.journal import Journalled, journalled
from kvib.memory import GroupMeans, LargestEntries, LastUpdates
from kvib.policies import (
    AOCS,
    OSMD,
    Avare,
    BySize,
    Exploration,
    Forecast,
    Forecasts,
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
    balanced,
    conditional_poisson,
    independent,
    neighbours,
    ordered,
    pivotal,
    systematic,
    with_replacement,
    without_replacement,
)
from kvib.rates import EstimatedRate
from kvib.recommended import recommended
from kvib.sampler import Sampler
from kvib.selectors import DivFL, PowerOfChoice, Selector
from kvib.variance import VarianceEstimate
from kvib.waterfill import waterfill

__version__ = "0.1.0"

__all__ = [
    "AOCS",
    "OSMD",
    "Admission",
    "Avare",
    "BySize",
    "Cohort",
    "Diagnosis",
    "Difference",
    "DivFL",
    "EstimatedRate",
    "Exploration",
    "Forecast",
    "Forecasts",
    "GroupMeans",
    "Guard",
    "Journalled",
    "KVib",
    "LargestEntries",
    "LastUpdates",
    "Mabs",
    "NotFiniteError",
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
    "balanced",
    "conditional_poisson",
    "diagnose",
    "estimate",
    "estimated_variance",
    "independent",
    "journal",
    "journalled",
    "metrics",
    "neighbours",
    "norm",
    "norms",
    "ordered",
    "pivotal",
    "plan",
    "recommended",
    "replay",
    "self_normalised",
    "systematic",
    "theory",
    "unbiased",
    "waterfill",
    "with_replacement",
    "without_replacement",
]

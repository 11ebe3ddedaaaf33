"""Whom to prefer: from what was observed to expected counts."""

from kvib.policies.aocs import AOCS
from kvib.policies.avare import Avare
from kvib.policies.by_size import BySize
from kvib.policies.forecast import Forecast
from kvib.policies.kvib import KVib
from kvib.policies.mabs import Mabs
from kvib.policies.optimal import Optimal
from kvib.policies.osmd import OSMD
from kvib.policies.policy import Exploration, Forecasts, Policy, Setting
from kvib.policies.uniform import Uniform
from kvib.policies.vrb import Vrb

__all__ = [
    "AOCS",
    "OSMD",
    "Avare",
    "BySize",
    "Exploration",
    "Forecast",
    "Forecasts",
    "KVib",
    "Mabs",
    "Optimal",
    "Policy",
    "Setting",
    "Uniform",
    "Vrb",
]

"""Unbiased adaptive client sampling for federated learning."""

import inspect
import typing

from kvib import journal as journal
from kvib import replay as replay
from kvib.analysis import metrics as metrics
from kvib.analysis import theory as theory
from kvib.analysis.diagnose import Diagnosis as Diagnosis
from kvib.analysis.diagnose import diagnose as diagnose
from kvib.checks import renamed as _renamed
from kvib.clients.rates import EstimatedRate as EstimatedRate
from kvib.cohort import Cohort as Cohort
from kvib.estimators.difference import Difference as Difference
from kvib.estimators.estimate import estimate as estimate
from kvib.estimators.estimate import estimated_variance as estimated_variance
from kvib.estimators.estimate import norm as norm
from kvib.estimators.estimate import norms as norms
from kvib.estimators.estimate import self_normalised as self_normalised
from kvib.estimators.estimate import unbiased as unbiased
from kvib.estimators.guard import Guard as Guard
from kvib.estimators.memory import GroupMeans as GroupMeans
from kvib.estimators.memory import LargestEntries as LargestEntries
from kvib.estimators.memory import LastUpdates as LastUpdates
from kvib.estimators.streaming import NotFiniteError as NotFiniteError
from kvib.estimators.variance import VarianceEstimate as VarianceEstimate
from kvib.journal import Journalled as Journalled
from kvib.journal import journalled as journalled
from kvib.policies.catalogue import *  # noqa: F403
from kvib.policies.policy import Policy as Policy
from kvib.procedures.catalogue import *  # noqa: F403
from kvib.procedures.procedure import Procedure as Procedure
from kvib.recommended import recommended as recommended
from kvib.replay import plan as plan
from kvib.sampler.sampler import Sampler as Sampler
from kvib.selectors import DivFL as DivFL
from kvib.selectors import PowerOfChoice as PowerOfChoice
from kvib.selectors import Selector as Selector
from kvib.version import __version__ as __version__
from kvib.waterfill import waterfill as waterfill

_MODULES = ("journal", "metrics", "plan", "replay", "theory")
if not typing.TYPE_CHECKING:  # type checkers read the imports above instead
    __all__ = sorted(
        name
        for name, value in globals().items()
        if name in _MODULES or not (name.startswith("_") or inspect.ismodule(value))
    )
    __all__ += ["__version__"]

    __getattr__ = _renamed(
        __name__,
        {
            "Admission": "kvib.clients.check_in.Admission",
            "Exploration": "kvib.policies.Exploration",
            "Forecasts": "kvib.policies.Forecasts",
            "Pairs": "kvib.procedures.Pairs",
            "Setting": "kvib.policies.Setting",
        },
    )

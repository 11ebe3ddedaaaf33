"""Policies decide which clients are preferred: they turn what was observed into expected counts.

`Policy`, `Setting`, `Exploration` and `Forecasts` are for authors of policies. The policies
themselves are listed in `catalogue`.
"""

import typing

from kvib.policies import catalogue as catalogue
from kvib.policies.catalogue import *  # noqa: F403
from kvib.policies.policy import Exploration as Exploration
from kvib.policies.policy import Forecasts as Forecasts
from kvib.policies.policy import Policy as Policy
from kvib.policies.policy import Setting as Setting

if not typing.TYPE_CHECKING:  # type checkers read the imports above instead
    __all__ = [name for name in vars(catalogue) if not name.startswith("_")]
    __all__ += ["Exploration", "Forecasts", "Policy", "Setting"]

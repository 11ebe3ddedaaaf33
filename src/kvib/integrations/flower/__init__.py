"""Flower (https://flower.ai): unbiased adaptive sampling around any strategy that averages.

The server wraps its strategy in `UnbiasedSampling(strategy)`. The client app needs one line:
`introduce(app, size=…)`.
"""

from kvib.checks import renamed
from kvib.integrations.flower.client import introduce, scaled_update
from kvib.integrations.flower.fedavg import KVibFedAvg
from kvib.integrations.flower.report import RoundReport
from kvib.integrations.flower.strategy import UnbiasedSampling
from kvib.integrations.kit import (
    EstimateAvailability,
    Hidden,
    NothingUsableError,
    Renormalise,
    Visible,
    default_guard,
)

__getattr__ = renamed(__name__, {"usual_guard": "default_guard"})

__all__ = [
    "EstimateAvailability",
    "Hidden",
    "KVibFedAvg",
    "NothingUsableError",
    "Renormalise",
    "RoundReport",
    "UnbiasedSampling",
    "Visible",
    "default_guard",
    "introduce",
    "scaled_update",
]

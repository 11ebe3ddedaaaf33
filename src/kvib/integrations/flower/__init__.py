"""Flower (https://flower.ai): unbiased adaptive sampling around any strategy that averages.

The server's side is `UnbiasedSampling(strategy)`, the client's one line: `introduce(app, size=…)`.
"""

from kvib.integrations.combining import Hidden, Visible
from kvib.integrations.fleet import EstimateAvailability, Renormalise, usual_guard
from kvib.integrations.flower.client import introduce, scaled_update
from kvib.integrations.flower.report import RoundReport
from kvib.integrations.flower.strategy import KVibFedAvg, UnbiasedSampling
from kvib.integrations.watch import NothingUsableError

__all__ = [
    "EstimateAvailability",
    "Hidden",
    "KVibFedAvg",
    "NothingUsableError",
    "Renormalise",
    "RoundReport",
    "UnbiasedSampling",
    "Visible",
    "introduce",
    "scaled_update",
    "usual_guard",
]

"""The combination that the measurements support."""

from __future__ import annotations  # so that help() shows names, not what they stand for

from typing import Any

from numpy.typing import ArrayLike

from kvib.difference import Difference
from kvib.guard import Guard
from kvib.policies import Forecast
from kvib.procedures import balanced
from kvib.sampler import Sampler


def recommended(
    weights: ArrayLike, budget: float, *, remember: bool = False, **options: Any
) -> Sampler:
    """Forecast norms, draw exactly `budget` clients balanced on sketches, guard against spikes.

    Of a fixed population: where clients join and leave, use `Sampler(Forecast(), weights, budget)`.
    Use it with `step`, which shows it the updates themselves:

    >>> import numpy as np, kvib
    >>> sampler = kvib.recommended(weights=[30, 10, 60, 20], budget=2, seed=1)
    >>> cohort = sampler.draw()
    >>> d = sampler.step(cohort, updates=np.ones((len(cohort), 8)))    # also learns

    Args:
        weights: λ of every client, any positive numbers (data sizes, say).
        budget: clients per round.
        remember: also keep every client's last update, N·d numbers, and sample differences only:
            a large gain where clients return often and differ persistently.
        options: of `Sampler`.
    """
    estimator = Difference() if remember else None
    given = {"procedure": balanced, "estimator": estimator, "guard": Guard(), "sketch": 32}
    return Sampler(Forecast(), weights, budget, **{**given, **options})

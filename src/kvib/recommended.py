"""The combination that the measurements support."""

from __future__ import annotations  # so that help() shows names, not what they stand for

import os
from typing import Any, overload

from numpy.typing import ArrayLike

from kvib.estimators.difference import Difference
from kvib.estimators.guard import Guard
from kvib.journal.opening import opened
from kvib.journal.sampler import Journalled
from kvib.policies import Forecast
from kvib.procedures import balanced
from kvib.sampler.sampler import Sampler


@overload
def recommended(
    weights: ArrayLike, budget: float, *, remember: bool = ..., journal: None = ..., **options: Any
) -> Sampler: ...
@overload
def recommended(
    weights: ArrayLike,
    budget: float,
    *,
    remember: bool = ...,
    journal: str | os.PathLike[str],
    **options: Any,
) -> Journalled: ...
def recommended(
    weights: ArrayLike,
    budget: float,
    *,
    remember: bool = False,
    journal: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Sampler | Journalled:
    """Forecast norms, draw exactly `budget` clients balanced on sketches, guard against spikes.

    The population is fixed: where clients join and leave, use `Sampler(Forecast(), weights,
    budget)`.
    Use it with `step`, which shows it the updates themselves:

    Examples:
        >>> import numpy as np, kvib
        >>> sampler = kvib.recommended(weights=[30, 10, 60, 20], budget=2, seed=1)
        >>> cohort = sampler.draw()
        >>> d = sampler.step(cohort, updates=np.ones((len(cohort), 8)))    # also learns

    Args:
        weights: λ of every client, any positive numbers (data sizes, say).
        budget: clients per round.
        remember: also keep every client's last update, N·d numbers, and sample differences only:
            a large gain where clients return often and differ persistently.
        journal: a file in which it lives, as `journalled` says; begun there, or continued.
        options: of `Sampler`.
    """
    defaults: dict[str, Any] = {
        "policy": Forecast(),
        "procedure": balanced,
        "estimator": Difference() if remember else None,
        "guard": Guard(),
        "sketch": 32,
    }
    given = {"weights": weights, "budget": budget, **options}
    if journal is not None:
        schedule = {name: given.pop(name) for name in ("snapshot_every", "keep") if name in given}
        return opened(journal, given, defaults, **schedule)
    return Sampler(**{**defaults, **given})

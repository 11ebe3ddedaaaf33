"""The combination of policy, procedure and guard that the measurements support."""

from __future__ import annotations  # so that help() shows the names of types, not their contents

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
    """Return the sampler that the measurements recommend.

    It forecasts norms (`Forecast`), draws exactly `budget` clients (`balanced`, on sketches of
    their last updates), and bounds what one client can add to a step (`Guard`). Call `step`, which
    shows the updates to the sampler, instead of `estimate` and `update`.

    The population is fixed. Where clients join and leave, use
    `Sampler(Forecast(), weights, budget)`.

    Args:
        weights: λ of every client: any positive numbers, for example data sizes.
        budget: The number of clients per round.
        remember: Whether to keep the last update of every client, which takes N·d numbers, and to
            sample differences only (`Difference`). The gain is large where clients return often
            and differ persistently.
        journal: The path of a file that the sampler lives in, as `journalled` describes. The
            sampler is begun there, or continued. None means that there is no file.
        options: Further options of `Sampler`, and with a journal `snapshot_every` and `keep`.

    Examples:
        >>> import numpy as np, kvib
        >>> sampler = kvib.recommended(weights=[30, 10, 60, 20], budget=2, seed=1)
        >>> cohort = sampler.draw()
        >>> sampler.step(cohort, updates=np.ones((len(cohort), 3)))    # also learns
        array([1., 1., 1.])
    """
    defaults: dict[str, Any] = {
        "policy": Forecast(),
        "procedure": balanced,
        "estimator": Difference() if remember else None,
        "guard": Guard(),
        "sketch": 32,
    }
    options = {"weights": weights, "budget": budget, **options}
    if journal is not None:
        names = ("snapshot_every", "keep")
        schedule = {name: options.pop(name) for name in names if name in options}
        return opened(journal, options, defaults, **schedule)
    return Sampler(**{**defaults, **options})

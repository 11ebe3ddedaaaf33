"""A bound on what one client can do to the model in a round."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvib.files import intact
from kvib.files.part import Part, Saved
from kvib.types import BoolArray, FloatArray

FORGET = 0.9
"""Weight of the past in the size of a usual step: about ten rounds count, since steps shrink in
training."""
FIRST = 30.0
"""In the first round nothing is usual yet: an explosion is a norm of this many medians. Norms that
differ little stay within ten; of log-normal ones with σ = 1.5 one in a hundred is beyond 30."""
ENOUGH = 3
"""Clients that a median takes: of two nobody can say which one exploded."""
USUAL, ORDINARY = 2.0, 20.0
"""Steps that one client may add. One of K adds 1/K as a rule, and a few times that by chance."""


@dataclass(frozen=True)
class Guard:
    """Shorten an update whose share of the step, coefficient·‖g‖, exceeds `limit` usual steps.

    Importance sampling seeks out large updates, so a client whose local training explodes would be
    drawn again and again. The usual step is the running mean of Σ coefficient·‖g‖, whose mean is
    Σλ‖g‖. Where the guard fires the estimate is biased by at most what it cut off, which is
    reported. It fires rarely where norms differ little, but not only at explosions: where the norms
    of clients are log-normal with σ = 1.5 it shortens an update in 2 to 3 % of the rounds. An
    update that is not finite cannot be shortened: it is left out as if its client had not answered,
    with a warning. Where more than half of those who answered are like that, the model has
    exploded, and the round is refused.

    The first round is measured by its own median norm, as of the updates that came so far, and
    teaches a usual step without those far beyond it. Rounds of one or two clients have no such
    median, nor have the first two updates where they are added one by one: what explodes there
    gets through.

    Args:
        limit: in usual steps; by default 2, or 20/K where fewer than ten are drawn: one of few is
            most of a step. Of a limit below 2/K steps shrink round by round.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit > 0:
            raise ValueError(f"limit={self.limit} is not a positive number of usual steps")

    def over(self, factors: FloatArray, typical_step: float) -> "GuardedRound":
        """The bounds of one round.

        Args:
            factors: coefficients of the clients of the round.
            typical_step: the length of a typical step; NaN before it is known.
        """
        limit = max(USUAL, ORDINARY / max(len(factors), 1)) if self.limit is None else self.limit
        return GuardedRound(factors, limit * typical_step)


class StepLength(Part):
    """The length of a usual step, a running mean of Σ coefficient·‖g‖: what a guard measures by."""

    HEADER = ("usual step",)

    def __init__(self) -> None:
        self.value = math.nan
        """NaN before the first round that a guard saw."""

    def learn(self, total: float) -> None:
        """Take in a round whose shares, cut off, sum to `total`."""
        if total > 0:
            known, before = not math.isnan(self.value), FORGET * self.value
            self.value = before + (1 - FORGET) * total if known else total

    def about(self) -> dict[str, Any]:
        """The length, for the header of a file."""
        return {"usual step": None if math.isnan(self.value) else self.value}

    def restore(self, saved: Saved) -> None:
        """What was saved."""
        if saved.about["usual step"] is not None:
            self.value = intact.number(saved.about, "usual step")


class GuardedRound:
    """What the clients of one round add to its step, coefficient·‖g‖, each at most `most`.

    Args:
        factors: coefficients of the clients of the round.
        most: NaN before anything is usual.
    """

    def __init__(self, factors: FloatArray, most: float) -> None:
        self._factors, self._most = factors, most
        self._norms = np.full(len(factors), np.nan)
        self._shares = np.full(len(factors), np.nan)
        self._calm = np.ones(len(factors), dtype=np.bool_)
        self.cut = 0.0
        """What was cut off so far: a bound on the bias of this round."""

    def shorten(self, at: BoolArray, lengths: FloatArray, norms: FloatArray) -> FloatArray:
        """The factor for every update, [m]; 1 for most.

        Args:
            at: the clients of the round that these are.
            lengths: ‖g − βh‖ of each, which is what they add.
            norms: ‖g‖. A usual step is one of these: residuals shrink while a memory fills.
        """
        self._norms[at] = norms
        shares, most = self._factors[at] * lengths, self._bounds()[at]
        shorter = np.divide(most, shares, out=np.ones(len(shares)), where=shares > most)
        self.cut += float((shares * (1 - shorter)).sum())
        self._calm[at] = shorter == 1
        self._shares[at] = np.where(shorter == 1, self._factors[at] * norms, shares * shorter)
        return shorter

    def most(self, at: BoolArray) -> float:
        """What these clients may add at the most, as far as it is known by now."""
        return float(self._bounds()[at].sum())

    def _bounds(self) -> FloatArray:
        """The largest share of each client of the round; infinite where nothing is known."""
        if not math.isnan(self._most):
            return np.full(len(self._factors), self._most)
        answered = self._norms[~np.isnan(self._norms)]
        middle = float(np.median(answered)) if len(answered) >= ENOUGH else 0.0
        if middle == 0:
            return np.full(len(self._factors), np.inf)
        return self._factors * (FIRST * middle)

    def total(self) -> float:
        """Σ coefficient·‖g‖ of the round; without those cut off, unless they are the most."""
        answered = ~np.isnan(self._shares)
        calm = answered & self._calm
        if math.isnan(self._most):  # also who came before there was a median
            calm[answered] &= self._shares[answered] <= self._bounds()[answered]
        if calm.sum() < answered.sum() / 2:
            calm = answered
        return float(self._shares[calm].sum())

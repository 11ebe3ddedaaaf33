"""The guard: a bound on what one client can add to a step."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvib.files import intact
from kvib.files.part import Part, Saved
from kvib.types import BoolArray, FloatArray

STEP_DECAY = 0.9
"""Weight of the past in the length of a typical step. About ten rounds count, since steps shrink in
training."""
MOST_MEDIANS = 30.0
"""The largest norm in the first round, in median norms, since no typical step is known yet. Norms
that differ little stay within ten medians. Among log-normal norms with σ = 1.5, one in a hundred is
beyond 30."""
FEWEST_FOR_MEDIAN = 3
"""The fewest norms of which a median is taken: two norms do not show which one exploded."""
MOST_STEPS, MOST_SHARES = 2.0, 20.0
"""The default limit in typical steps: 2, or 20/K where that is more. One client of K adds 1/K of a
step on average, and a few times that by chance."""


@dataclass(frozen=True)
class Guard:
    """A bound on what one client can add to a step: it shortens updates that exceed the bound.

    Importance sampling seeks out large updates, so a client whose local training explodes would be
    drawn again and again.

    coefficient·‖g‖ ≤ limit · typical step, where the typical step is the running mean of
    Σ coefficient·‖g‖, whose mean is Σλ‖g‖.

    Where the guard fires, the estimate is biased by at most what the guard cut off, and this amount
    is reported. The guard fires rarely where norms differ little, but it does not fire at
    explosions only. Where the norms of clients are log-normal with σ = 1.5, it shortens an update
    in 2 to 3 % of the rounds.

    An update that is not finite cannot be shortened. It is left out as if its client had not
    answered, with a warning. Where more than half of the answers are not finite, the model has
    exploded, and the round is refused.

    The first round is measured by the median norm of its updates so far. It teaches the typical
    step without the updates far beyond the median. Rounds of one or two clients have no median to
    measure by. The first two updates have none either where updates are added one by one. An
    explosion there is not shortened.

    Args:
        limit: The largest share of one client in typical steps. By default it is 2, or 20/K where
            fewer than ten clients are drawn, since one of few clients is most of a step. With a
            limit below 2/K steps shrink round by round.

    Examples:
        Five of ten equal clients are drawn. In the third round one update is a thousand times too
        large, and the guard cuts it to four typical steps.

        >>> import numpy as np, kvib
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 10, budget=5, guard=kvib.Guard(), seed=0)
        >>> for scale in (1, 1, 1000):
        ...     updates = np.array([[scale], [1.0], [1.0], [1.0], [1.0]])
        ...     print(sampler.step(sampler.draw(), updates), round(sampler.cut, 1))
        [1.] 0.0
        [1.] 0.0
        [4.8] 196.0
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit > 0:
            raise ValueError(f"limit={self.limit} is not a positive number of usual steps")

    def over(self, factors: FloatArray, typical_step: float) -> "GuardedRound":
        """Start to bound the updates of one round.

        Args:
            factors: The coefficients of the clients of the round, [m].
            typical_step: The length of a typical step. NaN means that it is not known yet.
        """
        default = max(MOST_STEPS, MOST_SHARES / max(len(factors), 1))
        limit = default if self.limit is None else self.limit
        return GuardedRound(factors, limit * typical_step)


class StepLength(Part):
    """The length of a typical step, a running mean of Σ coefficient·‖g‖. A guard measures by it."""

    HEADER = ("usual step",)

    def __init__(self) -> None:
        self.value = math.nan
        """The length, NaN before the first round that a guard saw."""

    def learn(self, total: float) -> None:
        """Learn from a round whose shares sum to `total` after the guard has cut them."""
        if total > 0:
            known, before = not math.isnan(self.value), STEP_DECAY * self.value
            self.value = before + (1 - STEP_DECAY) * total if known else total

    def about(self) -> dict[str, Any]:
        """The length, for the header of a file."""
        return {"usual step": None if math.isnan(self.value) else self.value}

    def restore(self, saved: Saved) -> None:
        """Take over the saved length."""
        if saved.about["usual step"] is not None:
            self.value = intact.number(saved.about, "usual step")


class GuardedRound:
    """The shares coefficient·‖g‖ of the clients of one round, each at most `most`.

    Args:
        factors: The coefficients of the clients of the round, [m].
        most: The largest share. NaN means that no typical step is known yet.
    """

    def __init__(self, factors: FloatArray, most: float) -> None:
        self._factors, self._most = factors, most
        self._norms = np.full(len(factors), np.nan)
        self._shares = np.full(len(factors), np.nan)
        self._uncut = np.ones(len(factors), dtype=np.bool_)
        self.cut = 0.0
        """The sum of all that was cut off so far: a bound on the bias of this round."""

    def shorten(self, at: BoolArray, lengths: FloatArray, norms: FloatArray) -> FloatArray:
        """The factor that shortens each of these updates, [m]; 1 for most.

        Args:
            at: A mask that marks the clients of these updates.
            lengths: ‖g − βh‖ of each update, the part that is added to the step.
            norms: ‖g‖ of each update. The typical step is learned from these, since residuals
                shrink while a memory fills up.
        """
        self._norms[at] = norms
        shares, most = self._factors[at] * lengths, self._bounds()[at]
        shorter = np.divide(most, shares, out=np.ones(len(shares)), where=shares > most)
        self.cut += float((shares * (1 - shorter)).sum())
        self._uncut[at] = shorter == 1
        self._shares[at] = np.where(shorter == 1, self._factors[at] * norms, shares * shorter)
        return shorter

    def most(self, at: BoolArray) -> float:
        """The sum of the largest shares of these clients, as far as it is known by now."""
        return float(self._bounds()[at].sum())

    def _bounds(self) -> FloatArray:
        """The largest share of each client of the round, [m]; infinite where no bound is known."""
        if not math.isnan(self._most):
            return np.full(len(self._factors), self._most)
        answered = self._norms[~np.isnan(self._norms)]
        median = float(np.median(answered)) if len(answered) >= FEWEST_FOR_MEDIAN else 0.0
        if median == 0:
            return np.full(len(self._factors), np.inf)
        return self._factors * (MOST_MEDIANS * median)

    def total(self) -> float:
        """Σ coefficient·‖g‖ of the round, without the updates that were cut.

        Where more than half of the updates were cut, all count with the shares that are left.
        """
        answered = ~np.isnan(self._shares)
        uncut = answered & self._uncut
        if math.isnan(self._most):  # updates that arrived before there was a median are checked now
            uncut[answered] &= self._shares[answered] <= self._bounds()[answered]
        if uncut.sum() < answered.sum() / 2:
            uncut = answered
        return float(self._shares[uncut].sum())

"""A procedure: from expected counts to a cohort."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kvib.cohort import Cohort, Pairs
from kvib.types import FloatArray, IntArray

_CLOSE = 1e-12
"""Expected counts this near to the cap have reached it."""


class Indexed(Protocol):
    """What a procedure may ask of an index: clients too many to list, and their probabilities."""

    def __len__(self) -> int:
        """The number of clients that can be drawn."""

    def tossed(self, rng: np.random.Generator) -> IntArray:
        """Clients whose own coin, which falls with their probability, has fallen; ascending ids."""

    def at(self, points: Callable[[float], FloatArray]) -> IntArray:
        """The client at each of some points of a line, [m].

        Clients lie on the line side by side in the order of their ids, each as long as its
        probability.

        Args:
            points: length of the line → points on it, ascending, [m].
        """


@dataclass(frozen=True, repr=False)
class Procedure:
    """A way to draw clients so that client i is drawn `expected[i]` times on average.

    Examples:
        >>> import numpy as np, kvib
        >>> cohort = kvib.pivotal([0.25, 0.75, 1.0], np.random.default_rng(0))
        >>> len(cohort), cohort.expected.max()
        (2, np.float64(1.0))
    """

    name: str
    counts: Callable[..., IntArray]
    """(expected [N], rng) → how often each client is drawn, [N]; variables [N, d] come third."""
    pairs: Callable[[FloatArray, IntArray], Pairs] | None = None
    """(expected [N], at [m]) → second moments among the clients at `at`; None: not known."""
    cap: float = 1.0
    """The largest expected count it can give: 1, or no limit when drawing with replacement."""
    uses_variables: bool = False
    """Whether it keeps the totals of what is known of the clients (`variables`)."""
    by_index: Callable[[Indexed, np.random.Generator], IntArray] | None = None
    """(index, rng) → ids of the drawn, ascending, without a look at all clients."""

    def __call__(
        self,
        expected: ArrayLike,
        rng: np.random.Generator,
        *,
        weights: ArrayLike | None = None,
        ids: IntArray | None = None,
        variables: FloatArray | None = None,
        **about: Any,
    ) -> Cohort:
        """Draw a cohort.

        Args:
            expected: E[count] of every client, [N], in [0, cap]; its sum is the budget.
            rng: the source of all randomness.
            weights: λ, [N]; equal by default.
            ids: what to call the N clients, ascending; 0 … N−1 by default.
            variables: what to balance on, [N, d], for the procedures that do.
            about: further fields of the cohort (round, token, …).
        """
        e = self.checked(expected)
        if variables is not None:
            shape = np.shape(variables)
            if len(shape) != 2 or shape[0] != len(e) or not np.isfinite(variables).all():
                raise ValueError(
                    f"variables of shape {shape} are not of {len(e)} clients; give each a row of "
                    "finite numbers"
                )
        counts = self.draw(e, rng, variables)
        at = np.flatnonzero(counts)
        weight = np.full(len(e), 1 / len(e)) if weights is None else np.asarray(weights)
        return Cohort(
            ids=at if ids is None else ids[at],
            count=counts[at],
            expected=e[at],
            weight=weight[at],
            pairs=None if self.pairs is None else partial(self.pairs, e, at),
            most=min(self.cap, max(float(e.sum()), 1.0)),
            **{"budget": float(e.sum()), "requested": float(e.sum()), **about},
        )

    def draw(
        self, expected: FloatArray, rng: np.random.Generator, variables: FloatArray | None = None
    ) -> IntArray:
        """Counts of all clients, [N]."""
        if self.uses_variables and variables is not None:
            return self.counts(expected, rng, variables)
        return self.counts(expected, rng)

    @cached_property
    def uncorrelated(self) -> bool:
        """Whether clients are drawn independently, so that norms tell the variance; asked of
        two."""
        return self.pairs is not None and self.pairs(np.full(2, 0.5), np.arange(2)).uncorrelated

    def checked(self, expected: ArrayLike) -> FloatArray:
        """Expected counts that this procedure can give, or an error."""
        e = np.asarray(expected, dtype=np.float64)
        if e.ndim != 1 or len(e) == 0:
            raise ValueError(f"expected has shape {e.shape}; give one number per client")
        most = e.max()
        if not (e.min() >= 0 and most <= self.cap + _CLOSE):  # NaN fails too
            bad = int(np.flatnonzero(~((e >= 0) & (e <= self.cap + _CLOSE)))[0])
            raise ValueError(
                f"expected count {e[bad]} of client {bad} is not between 0 and {self.cap:g}; "
                "kvib.waterfill turns scores into valid ones"
            )
        # Whoever is at the cap but for rounding is at the cap: one client more among those that
        # chance decides would give every random number another meaning.
        certain = self.cap - _CLOSE
        return np.where(e > certain, self.cap, e) if most > certain else e.copy()

    def __repr__(self) -> str:
        return self.name


def whole_and_part(total: float, terms: int) -> tuple[int, float]:
    """Split a sum of `terms` floats into an integer and a rest in [0, 1), forgiving its rounding.

    A budget of 10 must give cohorts of exactly 10 although Σp is 10.000000000000002.
    """
    nearest = round(total)
    if abs(total - nearest) <= rounding(total, terms):
        return nearest, 0.0
    return math.floor(total), total - math.floor(total)


def rounding(total: float, terms: int) -> float:
    """How far a sum of `terms` floats may be from what it is in exact arithmetic."""
    return 4 * math.ulp(max(total, 1.0)) * math.sqrt(terms) + 1e-12 * total


def random_size(expected: FloatArray, rng: np.random.Generator) -> int:
    """⌊K⌋ or ⌈K⌉, with mean K = Σ expected."""
    whole, part = whole_and_part(float(expected.sum()), len(expected))
    return whole + int(part > 0 and rng.random() < part)


def size_moments(expected: FloatArray) -> tuple[float, float, float]:
    """K, E[n(n−1)] and Var(n) of that random size n."""
    whole, part = whole_and_part(float(expected.sum()), len(expected))
    return whole + part, whole * (whole - 1) + 2 * whole * part, part * (1 - part)

"""The type of all procedures: a procedure turns expected counts into a cohort."""

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
"""Expected counts this near to the cap are at the cap."""


class Indexed(Protocol):
    """An index of clients that answers the questions of a procedure.

    The index holds clients, too many to list, and their probabilities. A procedure that asks it
    draws a round at a cost that does not grow with the number of clients.
    """

    def __len__(self) -> int:
        """The number of clients that can be drawn."""

    def tossed(self, rng: np.random.Generator) -> IntArray:
        """Toss one coin per client, and return the ids whose coin shows heads, ascending.

        The coin of a client shows heads with the client's probability.

        Args:
            rng: The source of all randomness.
        """

    def at(self, points: Callable[[float], FloatArray]) -> IntArray:
        """Find the client at each of some points of a line, [m].

        Clients lie on the line side by side in the order of their ids, each as long as its
        probability.

        Args:
            points: A function from the length of the line to points on it, ascending, [m].
        """


@dataclass(frozen=True, repr=False)
class Procedure:
    """A way to draw clients so that client i is drawn `expected[i]` times on average.

    Procedures with the same expected counts differ in which clients are drawn together, and hence
    in the noise of the estimate.

    E[count_i] = expected_i for every client.

    Examples:
        >>> import numpy as np, kvib
        >>> cohort = kvib.pivotal([0.25, 0.75, 1.0], np.random.default_rng(0))
        >>> len(cohort), cohort.expected.max()
        (2, np.float64(1.0))
    """

    name: str
    """The name in state files, experiments and messages."""
    counts: Callable[..., IntArray]
    """A function (expected [N], rng) → how often each client is drawn, [N]. With `uses_variables`
    its third argument is the variables, [N, d]."""
    pairs: Callable[[FloatArray, IntArray], Pairs] | None = None
    """A function (expected [N], at [m]) → second moments among the clients at `at`. None means that
    they are not known."""
    cap: float = 1.0
    """The largest expected count of a client: 1, or infinite for draws with replacement."""
    uses_variables: bool = False
    """Whether the draw takes account of what is known of the clients (`variables`)."""
    by_index: Callable[[Indexed, np.random.Generator], IntArray] | None = None
    """A function (index, rng) → ids of the drawn clients, ascending, that does not visit all
    clients. None means that there is none."""

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
            expected: E[count] of every client, [N], in [0, cap]. The sum is the budget.
            rng: The source of all randomness.
            weights: The weights λ, [N]. They are equal by default.
            ids: The ids of the N clients, ascending. They are 0 … N−1 by default.
            variables: What is known of each client, [N, d], for procedures that use it.
            about: Further fields of the cohort (round, token, …).
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
        """Draw how often each client is in the cohort, [N].

        Args:
            expected: E[count] of every client, [N], as `checked` returns it.
            rng: The source of all randomness.
            variables: What is known of each client, [N, d], for procedures that use it.
        """
        if self.uses_variables and variables is not None:
            return self.counts(expected, rng, variables)
        return self.counts(expected, rng)

    @cached_property
    def uncorrelated(self) -> bool:
        """Whether clients are drawn independently, so that norms alone give the variance.

        The second moments of two clients answer the question.
        """
        return self.pairs is not None and self.pairs(np.full(2, 0.5), np.arange(2)).uncorrelated

    def checked(self, expected: ArrayLike) -> FloatArray:
        """Check expected counts, and return them as an array, [N].

        Args:
            expected: E[count] of every client, [N]. An error refuses numbers outside [0, cap].
        """
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
        # A client that is at the cap except for rounding is put at the cap. Otherwise rounding
        # would add a client to those decided by chance, and every random number would decide
        # about another client.
        certain = self.cap - _CLOSE
        return np.where(e > certain, self.cap, e) if most > certain else e.copy()

    def __repr__(self) -> str:
        return self.name


def whole_and_part(total: float, terms: int) -> tuple[int, float]:
    """Split a sum of `terms` floats into an integer and a rest in [0, 1), up to rounding.

    A budget of 10 must give cohorts of exactly 10 clients although Σp is 10.000000000000002.
    """
    nearest = round(total)
    if abs(total - nearest) <= rounding(total, terms):
        return nearest, 0.0
    return math.floor(total), total - math.floor(total)


def rounding(total: float, terms: int) -> float:
    """A bound on the distance of a sum of `terms` floats from the sum in exact arithmetic."""
    return 4 * math.ulp(max(total, 1.0)) * math.sqrt(terms) + 1e-12 * total


def random_size(expected: FloatArray, rng: np.random.Generator) -> int:
    """The random size of a cohort: ⌊K⌋ or ⌈K⌉, with mean K = Σ expected."""
    whole, part = whole_and_part(float(expected.sum()), len(expected))
    return whole + int(part > 0 and rng.random() < part)


def size_moments(expected: FloatArray) -> tuple[float, float, float]:
    """K, E[n(n−1)] and Var(n) of the size n that `random_size` returns."""
    whole, part = whole_and_part(float(expected.sum()), len(expected))
    return whole + part, whole * (whole - 1) + 2 * whole * part, part * (1 - part)

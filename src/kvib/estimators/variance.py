"""The sampling noise of a round, from all inner products or from sums over passing updates."""

import math
from typing import NamedTuple

import numpy as np

from kvib.cohort import Cohort, Pairs
from kvib.procedures.procedure import whole_and_part
from kvib.types import BoolArray, FloatArray

_ROUNDING = 1e-9
"""The relative error of a sum of expected counts that is taken for rounding."""


class VarianceEstimate(NamedTuple):
    """An estimate of the variance E‖d − D‖² of an estimated step, made from the same cohort.

    A server that plots it sees how noisy its steps are. `kvib.estimated_variance` returns it.

    E[value] = E‖d − D‖² where `exact` is True, with D = Σλg.

    Examples:
        >>> import numpy as np, kvib
        >>> cohort = kvib.independent([0.5, 0.5], np.random.default_rng(0))
        >>> cohort.ids
        array([1])
        >>> kvib.estimated_variance(cohort, [[2.0]])
        VarianceEstimate(value=2.0, exact=True)

    References:
        Horvitz and Thompson 1952, Yates and Grundy 1953, Deville 1999.
    """

    value: float
    """The estimated variance, NaN where it is not known.

    It is not known where some clients can never be drawn together (with a single draw, for
    example), or where an approximation has too few clients. It is not known either where an answer
    is missing that was certain. With estimated rates it is not known where an answer is missing and
    the answers that arrived were all certain."""
    exact: bool
    """Whether the mean of the value over all draws is exactly the variance. False means a good
    approximation (pivotal, …), or NaN."""


def deviation(
    cohort: Cohort, lengths: FloatArray, gram: FloatArray | None, pairs: Pairs | None = None
) -> VarianceEstimate:
    """The variance of an estimate, from norms and inner products of a cohort's updates.

    Args:
        cohort: The clients of the round.
        lengths: ‖g‖ in the order of `cohort.ids`, NaN where there was no answer.
        gram: g_i·g_j of the clients that answered. Independent draws do not need it. For other
            draws None gives NaN.
        pairs: The second moments, where the caller has them already.
    """
    if not cohort.by_chance:
        raise ValueError("a selector's cohort has no inclusion probabilities, hence no variance")
    if pairs is None and cohort.pairs is not None:
        pairs = cohort.pairs()
    answered = ~np.isnan(lengths)
    drawn = cohort.take(answered)
    if cohort.guarantee == "biased" or not (pairs is None or pairs.complete):
        return estimated(math.nan, exact=False)
    # the noise of silence and of absence
    count, a, r = drawn.count, drawn.availability, drawn.answer_probability / drawn.availability
    zeta = drawn.weight / (a * drawn.expected)
    squared = (zeta * lengths[answered]) ** 2
    silent_part = (
        (count**2 * (1 - r) / r**2 + count * drawn.expected * (1 - a) / r) * squared
    ).sum()
    # the noise of the draw
    alone = pairs is not None and pairs.uncorrelated
    if gram is None and not alone:
        return estimated(math.nan, exact=False)
    scaled = np.empty((0, 0)) if gram is None else np.outer(zeta, zeta) * gram
    if pairs is None:
        value = _approximate(cohort, drawn, r, scaled) + silent_part
        return estimated(seen(cohort, answered, value), exact=False)
    between = 0.0 if alone else _between(count / r, pairs, answered, scaled)
    own = (count * pairs.size[answered] / r * squared).sum()
    value = seen(cohort, answered, own - between + silent_part)
    return estimated(value, exact=cohort.guarantee == "unbiased")


def seen(cohort: Cohort, answered: BoolArray, value: float) -> float:
    """The variance, or NaN where the clients that answered do not show it.

    Two kinds of silence hide noise. The first is that of a client whose answer was certain, even if
    only by an estimate: nothing is known of this noise. The second concerns a value of 0 with
    estimated rates. The clients that answered were certain and showed no noise, but a silent client
    was not certain, so 0 would be wrong. With known rates 0 is right: rounds in which that client
    answers show more, and the mean is the variance.
    """
    silent = not answered.all()
    if cohort.lost(answered).any() or (silent and value == 0 and cohort.guarantee != "unbiased"):
        return math.nan
    return value


def estimated(value: float, exact: bool) -> VarianceEstimate:
    """A variance estimate; a value that is not finite becomes NaN and is not exact."""
    known = math.isfinite(value)
    return VarianceEstimate(float(value) if known else math.nan, exact and known)


def _between(weight: FloatArray, pairs: Pairs, answered: BoolArray, gram: FloatArray) -> float:
    """½ΣΣ weight_i weight_j (1 − 1/ratio_ij) ‖ζ_i − ζ_j‖²."""
    if len(weight) < 2:
        return 0.0
    ratio = pairs.ratio if isinstance(pairs.ratio, float) else pairs.ratio[answered][:, answered]
    distance = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram  # ‖ζ_i − ζ_j‖²
    return float((np.outer(weight, weight) * (1 - 1 / ratio) * distance).sum() / 2)


def _approximate(cohort: Cohort, drawn: Cohort, r: FloatArray, gram: FloatArray) -> float:
    """Σ (1−p)/r·‖ζ − ζ̄‖²/(1 − Σw²), ζ̄ the mean with weights w ∝ (1−p)/r (Deville 1999).

    It is NaN where fewer than two of the clients that answered were drawn by chance.
    """
    if decided(cohort):
        return 0.0
    extra = phantom(cohort)
    free = np.append((1 - np.minimum(drawn.expected, 1.0)) / r, extra)
    if np.count_nonzero(free) < 2:
        return math.nan
    gram = np.pad(gram, (0, len(extra)))
    total = free.sum()
    w = free / total
    spread = np.diag(gram) - 2 * (gram @ w) + w @ gram @ w  # ‖ζ_i − ζ̄‖²
    return float((free * spread).sum() / (1 - (w * w).sum()))


def decided(cohort: Cohort) -> bool:
    """Whether all clients that could be drawn were certain to be, so that nothing was random."""
    certain = cohort.most <= 1 and bool((cohort.expected >= 1).all())
    return certain and len(cohort) >= cohort.budget * (1 - _ROUNDING)


def phantom(cohort: Cohort) -> FloatArray:
    """1 − p of a client that does not exist, [1], or nothing, [0].

    With a fractional budget this client, with ζ = 0, is drawn whenever the size is ⌊K⌋. It is NaN
    where the budget is not known.
    """
    if math.isnan(cohort.budget):
        return np.array([math.nan])
    whole, part = whole_and_part(cohort.budget, max(len(cohort), 1))
    return np.full(int(part > 0 and len(cohort) <= whole), part)


class Spread:
    """The variance of an estimate, from the norms of updates and one running sum.

    It gives what `kvib.estimated_variance` gives without storing updates. With ζ = λg/(a·expected),
    two identities take the place of all inner products:
    Σf‖ζ − ζ̄‖² = Σf‖ζ‖² − ‖Σfζ‖²/Σf and ½ΣΣff′‖ζ − ζ′‖² = ΣfΣf‖ζ‖² − ‖Σfζ‖². The factors f are
    known before any client answers. Second moments may differ from pair to pair (conditional
    Poisson), or be lost after a restart. Then Deville's approximation (1999), made for draws of
    this kind, takes their place.

    Args:
        cohort: The clients of the round.
    """

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._a = cohort.availability
        self._r = cohort.answer_probability / cohort.availability
        self._zeta = cohort.weight / (self._a * cohort.expected)
        pairs = None if cohort.pairs is None else cohort.pairs()
        self._pairs = None if pairs is None or isinstance(pairs.ratio, np.ndarray) else pairs
        self.norms_suffice = pairs is not None and pairs.uncorrelated
        """Whether norms give the variance, as for independent draws. Then no sum is needed."""
        # Without second moments the variance of draws with replacement is not known.
        self._complete = cohort.most <= 1 if pairs is None else pairs.complete
        if self._pairs is None:
            self._f = (1 - np.minimum(cohort.expected, 1.0)) / self._r
        else:
            self._f = cohort.count / self._r
        self.weights = self._f * self._zeta
        """The weight f·λ/(a·expected) of each update in the sum Σ weight·g, [m]."""

    def value(self, norms: FloatArray, squared_sum: float = math.nan) -> float:
        """The variance of the estimate; NaN where it is not known.

        Args:
            norms: The norms of the updates as the guard left them, NaN without an answer, [m].
            squared_sum: ‖Σ weight·g‖². A server that does not see updates leaves it out, and then
                norms must suffice.
        """
        answered = ~np.isnan(norms)
        if not self._complete or self._cohort.guarantee == "biased":
            return math.nan
        return seen(self._cohort, answered, self._value(answered, norms, squared_sum))

    def _value(self, answered: BoolArray, norms: FloatArray, squared_sum: float) -> float:
        """The variance, whether or not the clients that answered show it."""
        r, a = self._r, self._a
        count, squared = self._cohort.count, (self._zeta * norms) ** 2
        silence = count**2 * (1 - r) / r**2 + count * self._cohort.expected * (1 - a) / r
        silent_part = float((silence * squared)[answered].sum())
        f, square = self._f[answered], float(np.dot(self._f[answered], squared[answered]))
        if self._pairs is None:
            return silent_part + self._approximate(f, square, squared_sum)
        own = float((count * self._pairs.size / r * squared)[answered].sum())
        if self.norms_suffice or len(f) < 2:
            return own + silent_part
        between = float(f.sum()) * square - squared_sum
        return own - (1 - 1 / float(self._pairs.ratio)) * between + silent_part

    def _approximate(self, f: FloatArray, square: float, squared_sum: float) -> float:
        """Σf‖ζ − ζ̄‖²/(1 − Σw²), ζ̄ the mean with weights w ∝ f (Deville 1999)."""
        if decided(self._cohort):
            return 0.0
        f = np.append(f, phantom(self._cohort))
        if np.count_nonzero(f) < 2:
            return math.nan
        total = f.sum()
        w = f / total
        within = square - squared_sum / total
        return float(max(within, 0.0) / (1 - (w * w).sum()))


def norm_part(
    pi: FloatArray, answer_probability: FloatArray, expected: FloatArray, cap: float
) -> FloatArray:
    """The part of the variance that each client adds and norms determine, [m].

    It is π²(1/(q·p) − 1). Draws with replacement add π²/q, which is included here. They also lower
    the variance, which is left out here: by ‖D‖²/K in all, with D = Σλg, and for q < 1 by at most
    π²(1/q − 1)/K per client.

    Args:
        pi: The feedback π of each client, [m].
        answer_probability: The answer probability q of each client, [m].
        expected: The expected count p of each client, [m].
        cap: The largest expected count of the procedure, above 1 for draws with replacement.
    """
    repeated = 1.0 if cap > 1 else 0.0
    return np.asarray(pi**2 * ((1 / expected + repeated) / answer_probability - 1))

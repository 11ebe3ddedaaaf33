"""The sampling noise of a round: from all inner products, or while its updates pass by."""

import math
from typing import NamedTuple

import numpy as np

from kvib.cohort import Cohort, Pairs
from kvib.procedures.procedure import whole_and_part
from kvib.types import BoolArray, FloatArray


class VarianceEstimate(NamedTuple):
    """What a cohort says about the variance E‖d − D‖² of its own estimate."""

    value: float
    """NaN where it is not known: some clients can never be drawn together (one draw, say), an
    approximation has too little to go by, an answer is missing that was certain, or that of a
    client whose rate of answers is an estimate, and all who came were certain."""
    exact: bool
    """Whether its mean over all draws is the variance exactly; False: a good approximation
    (pivotal, …), or NaN."""


def deviation(
    cohort: Cohort, lengths: FloatArray, gram: FloatArray | None, pairs: Pairs | None = None
) -> VarianceEstimate:
    """The same from the norms of a cohort's updates and the inner products of those that came.

    Args:
        cohort: who was drawn.
        lengths: ‖g‖ in the order of `cohort.ids`, NaN where there was no answer.
        gram: g_i·g_j of those who answered; independent draws do without, others give NaN.
        pairs: second moments, if already at hand.
    """
    if not cohort.by_chance:
        raise ValueError("a selector's cohort has no inclusion probabilities, hence no variance")
    if pairs is None and cohort.pairs is not None:
        pairs = cohort.pairs()
    answered = ~np.isnan(lengths)
    drawn = cohort.take(answered)
    if cohort.guarantee == "biased" or not (pairs is None or pairs.complete):
        return estimated(math.nan, exact=False)
    count, a, r = drawn.count, drawn.availability, drawn.answer_probability / drawn.availability
    zeta = drawn.weight / (a * drawn.expected)
    squared = (zeta * lengths[answered]) ** 2
    silent_part = (
        (count**2 * (1 - r) / r**2 + count * drawn.expected * (1 - a) / r) * squared
    ).sum()
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
    """A variance as far as those who answered show it; NaN where they do not.

    Silence of a client whose answer was certain, if only by an estimate, is noise of which nothing
    is known. Where those who came were certain, and an estimated rate says that others were not,
    no noise was seen, and 0 would say that there is none. With known rates 0 is right: rounds in
    which such a client answers show more, and the mean is the variance.
    """
    silent = not answered.all()
    if cohort.lost(answered).any() or (silent and value == 0 and cohort.guarantee != "unbiased"):
        return math.nan
    return value


def estimated(value: float, exact: bool) -> VarianceEstimate:
    """What is not a number is not known, and nothing of it is exact."""
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

    NaN where fewer than two are seen whom chance decided on.
    """
    if decided(cohort):
        return 0.0
    more = phantom(cohort)
    free = np.append((1 - np.minimum(drawn.expected, 1.0)) / r, more)
    if np.count_nonzero(free) < 2:
        return math.nan
    gram = np.pad(gram, (0, len(more)))
    total = free.sum()
    w = free / total
    spread = np.diag(gram) - 2 * (gram @ w) + w @ gram @ w  # ‖ζ_i − ζ̄‖²
    return float((free * spread).sum() / (1 - (w * w).sum()))


def decided(cohort: Cohort) -> bool:
    """Whether all who could be drawn were drawn for certain, so that no chance was in the draw."""
    certain = cohort.most <= 1 and bool((cohort.expected >= 1).all())
    return certain and len(cohort) >= cohort.budget * (1 - 1e-9)


def phantom(cohort: Cohort) -> FloatArray:
    """1 − p of a client that does not exist, [1] or [0]: with a fractional budget it is drawn, with
    ζ = 0, whenever the size is ⌊K⌋. NaN where the budget is not known."""
    if math.isnan(cohort.budget):
        return np.array([math.nan])
    whole, part = whole_and_part(cohort.budget, max(len(cohort), 1))
    return np.full(int(part > 0 and len(cohort) <= whole), part)


class Spread:
    """What `kvib.estimated_variance` says of a round, from norms and one running sum.

    With ζ = λg/(a·expected), two identities take the place of all inner products:
    Σf‖ζ − ζ̄‖² = Σf‖ζ‖² − ‖Σfζ‖²/Σf and ½ΣΣff′‖ζ − ζ′‖² = ΣfΣf‖ζ‖² − ‖Σfζ‖², where f is known
    before anybody answers. Where pairs of clients differ in how likely they are drawn together
    (conditional Poisson), or where second moments are lost (after a restart), Deville's
    approximation (1999), made for such draws, takes their place.
    """

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._a = cohort.availability
        self._r = cohort.answer_probability / cohort.availability
        self._zeta = cohort.weight / (self._a * cohort.expected)
        pairs = None if cohort.pairs is None else cohort.pairs()
        self._pairs = None if pairs is None or isinstance(pairs.ratio, np.ndarray) else pairs
        self.norms_suffice = pairs is not None and pairs.uncorrelated
        """As for independent draws; then no sum is needed."""
        # with replacement nothing is known without second moments
        self._complete = cohort.most <= 1 if pairs is None else pairs.complete
        if self._pairs is None:
            self._f = (1 - np.minimum(cohort.expected, 1.0)) / self._r
        else:
            self._f = cohort.count / self._r
        self.weights = self._f * self._zeta
        """Of every update in that sum, Σ weight·g over those who come."""

    def value(self, norms: FloatArray, squared_sum: float = math.nan) -> float:
        """The variance, given the norms of those who came, NaN of others; NaN if not known.

        Args:
            norms: of what the guard left of each update.
            squared_sum: ‖Σ weight·g‖²; where a server does not see updates, norms must suffice.
        """
        answered = ~np.isnan(norms)
        if not self._complete or self._cohort.guarantee == "biased":
            return math.nan
        return seen(self._cohort, answered, self._value(answered, norms, squared_sum))

    def _value(self, answered: BoolArray, norms: FloatArray, squared_sum: float) -> float:
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
    """What each client adds to the variance, as far as norms can tell.

    π²(1/(q·p) − 1). Counts above 1 and D = Σλg add π²/q and take ‖D‖²/K, and for q < 1 at most
    π²(1/q − 1)/K; the first is here.
    """
    repeated = 1.0 if cap > 1 else 0.0
    return np.asarray(pi**2 * ((1 / expected + repeated) / answer_probability - 1))

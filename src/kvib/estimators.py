"""From a cohort's updates to the estimate of the full-participation step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvib import rows
from kvib.checks import LARGEST_NORM, by_id
from kvib.cohort import BoolArray, Cohort, FloatArray, IntArray, Pairs
from kvib.estimation import Coefficients, NotFiniteError

Update = Any
"""One client's update: a NumPy array, a torch tensor, a number, or dicts and lists of them."""


def unbiased(cohort: Cohort) -> FloatArray:
    """λ·count/(q·expected): E[Σ coefficient·update] is the full-participation step, exactly."""
    if cohort.guarantee == "biased":
        raise ValueError(
            "a selector's cohort has no inclusion probabilities, so nothing makes it unbiased; "
            "pass coefficients=kvib.self_normalised"
        )
    return cohort.coefficients


def self_normalised(cohort: Cohort) -> FloatArray:
    """The same, divided by their sum: a mean of the updates, as FedAvg takes it. Biased."""
    coefficients = cohort.coefficients
    total = coefficients.sum()
    return coefficients / total if total > 0 else coefficients


def estimate(
    cohort: Cohort,
    updates: Sequence[Update] | Mapping[int, Update] | Any,
    coefficients: Coefficients = unbiased,
    like: Update | None = None,
) -> Update:
    """Estimate Σ_i λ_i g_i over all clients from the updates of the drawn ones.

    d = Σ_{i ∈ S} λ_i·count_i/(q_i·expected_i) · g_i.

    Examples:
        >>> import kvib
        >>> cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.5, 1.0], weight=[0.1, 0.4])
        >>> kvib.estimate(cohort, [{"w": np.array([1.0, 0.0])}, {"w": np.array([0.0, 1.0])}])
        {'w': array([0.2, 0.4])}

    Args:
        cohort: who was drawn.
        updates: one per client in the order of `cohort.ids` (a list, or an array or tensor stacked
            along the first axis), None where a client did not answer; or a mapping from client id
            to update, without those.
        coefficients: `unbiased` or `self_normalised`.
        like: what the model looks like; then an empty cohort gives zeros of that form, not 0.0.
    """
    answered, given = answers(cohort, updates)
    if not answered.any():
        if like is not None:
            return _map(lambda leaf: rows.zeros(leaf, leaf.shape), like)
        return rows.zeros(updates, updates.shape[1:]) if hasattr(updates, "shape") else 0.0
    heard = cohort.take(answered)
    factors = coefficients(heard).tolist()
    if rows.is_numpy(updates) and updates.dtype.kind == "f":
        total: Any = np.tensordot(np.asarray(factors, updates.dtype), np.asarray(given), axes=1)
    else:
        total = _map(lambda leaf: leaf * factors[0], given[0])
        for factor, update in zip(factors[1:], given[1:], strict=True):
            total = _add(total, update, factor)
    if not math.isfinite(norm(total)):
        _blame(heard.ids, given)
    return total


def _blame(ids: IntArray, updates: Sequence[Update]) -> None:
    """Whose update has left the numbers."""
    for client, length in zip(ids.tolist(), norms(updates).tolist(), strict=True):
        if not length <= LARGEST_NORM:
            raise NotFiniteError(client, length)


def norm(update: Update) -> float:
    """‖g‖ over all entries of one update."""
    leaves = map(rows.double, _leaves(update))
    return math.sqrt(math.fsum(float((leaf * leaf).sum()) for leaf in leaves))


def norms(updates: Sequence[Update]) -> FloatArray:
    """‖g‖ of each update, [m], as `Sampler.update` wants them; NaN where an update is None."""
    return np.array([math.nan if u is None else norm(u) for u in updates], dtype=np.float64)


class VarianceEstimate(NamedTuple):
    """What a cohort says about the variance E‖d − D‖² of its own estimate."""

    value: float
    """NaN where the design never shows two clients together (with replacement, one draw)."""
    exact: bool
    """Whether its mean is the variance exactly; False: a good approximation (pivotal, …)."""


def estimated_variance(cohort: Cohort, updates: Sequence[Update] | Any) -> VarianceEstimate:
    """Estimate the sampling noise of one round from that round alone, so that a server can plot it.

    With ζ = λg/(a·expected), availability a, response r and the second moments of `Cohort.pairs`,
    v = Σ count_i size_i ‖ζ_i‖²/r_i − ½ΣΣ count_i count_j (1 − 1/ratio_ij) ‖ζ_i − ζ_j‖²/(r_i r_j)
    + Σ (count_i² (1 − r_i)/r_i² + count_i e_i (1 − a_i)/r_i) ‖ζ_i‖²: Horvitz and Thompson's
    estimator for independent draws, Yates and Grundy's (1953) for a fixed size, then the noise of
    silence and of absence. Where no second moments are known, Deville's approximation (1999).

    Args:
        cohort: who was drawn.
        updates: as for `estimate`.
    """
    answered, given = answers(cohort, updates)
    lengths = np.full(len(cohort), math.nan)
    lengths[answered] = norms(given)
    pairs = None if cohort.pairs is None else cohort.pairs()
    alone = pairs is not None and pairs.uncorrelated
    return deviation(cohort, lengths, None if alone else _gram(given), pairs)


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
    if cohort.guarantee == "biased":
        raise ValueError("a selector's cohort has no inclusion probabilities, hence no variance")
    if pairs is None and cohort.pairs is not None:
        pairs = cohort.pairs()
    answered = ~np.isnan(lengths)
    drawn = cohort.take(answered)
    count, a, r = drawn.count, drawn.availability, drawn.response / drawn.availability
    zeta = drawn.weight / (a * drawn.expected)
    squared = (zeta * lengths[answered]) ** 2
    away = ((count**2 * (1 - r) / r**2 + count * drawn.expected * (1 - a) / r) * squared).sum()
    alone = pairs is not None and pairs.uncorrelated
    if gram is None and not alone:
        return VarianceEstimate(math.nan, exact=False)
    scaled = np.empty((0, 0)) if gram is None else np.outer(zeta, zeta) * gram
    if pairs is None:
        return VarianceEstimate(float(_approximate(cohort, drawn, r, scaled) + away), exact=False)
    between = 0.0 if alone else _between(count / r, pairs, answered, scaled)
    own = (count * pairs.size[answered] / r * squared).sum()
    return VarianceEstimate(float(own - between + away), exact=cohort.guarantee == "unbiased")


def _between(weight: FloatArray, pairs: Pairs, answered: BoolArray, gram: FloatArray) -> float:
    """½ΣΣ weight_i weight_j (1 − 1/ratio_ij) ‖ζ_i − ζ_j‖²; NaN if no pair can ever be seen."""
    ratio = pairs.ratio if isinstance(pairs.ratio, float) else pairs.ratio[answered][:, answered]
    if np.min(ratio, initial=1.0) <= 0:
        return math.nan
    distance = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram  # ‖ζ_i − ζ_j‖²
    return float((np.outer(weight, weight) * (1 - 1 / ratio) * distance).sum() / 2)


def _approximate(cohort: Cohort, drawn: Cohort, r: FloatArray, gram: FloatArray) -> float:
    """Σ (1−p)/r·‖ζ − ζ̄‖²/(1 − Σw²), ζ̄ the mean with weights w ∝ (1−p)/r (Deville 1999).

    A fractional budget adds a client who is nobody, ζ = 0, drawn whenever the size is ⌊K⌋.
    """
    free = (1 - np.minimum(drawn.expected, 1.0)) / r
    part = cohort.budget - math.floor(cohort.budget)
    if part > 0 and len(cohort) <= cohort.budget:
        free = np.append(free, part)
        gram = np.pad(gram, (0, 1))
    total = free.sum()
    if total == 0:
        return 0.0
    if np.count_nonzero(free) < 2:
        return math.nan
    w = free / total
    spread = np.diag(gram) - 2 * (gram @ w) + w @ gram @ w  # ‖ζ_i − ζ̄‖²
    return float((free * spread).sum() / (1 - (w * w).sum()))


def answers(cohort: Cohort, updates: Any) -> tuple[BoolArray, Sequence[Update]]:
    """Which clients of a cohort answered, and their updates in the same order."""
    given = by_id(cohort, updates) if isinstance(updates, Mapping) else updates
    if len(given) != len(cohort):
        raise ValueError(
            f"{len(given)} updates for a cohort of {len(cohort)}; give one per client in the order "
            "of cohort.ids, None where there was no answer, or a mapping from client id to update"
        )
    answered = np.array([update is not None for update in given], dtype=np.bool_)
    return answered, given if answered.all() else [u for u in given if u is not None]


def as_rows(updates: Sequence[Update] | Any) -> tuple[Any, tuple[int, ...]]:
    """Updates of one shape as rows, [m, d], and that shape; arrays and tensors alike."""
    stacked: Any = updates
    if isinstance(updates, list | tuple):
        first = updates[0]
        if isinstance(first, Mapping | list | tuple) and not _numbers(first):
            raise ValueError(
                "sampler.step takes arrays or tensors; join the parts of a nested update first"
            )
        for k, update in enumerate(updates):
            if np.shape(update) != np.shape(first):
                raise ValueError(
                    f"the updates have shapes {np.shape(first)} and {np.shape(update)} (number "
                    f"{k}); all must be of one model"
                )
        stacked = rows.stacked(updates)
    return rows.floating(stacked.reshape(len(stacked), -1)), tuple(stacked.shape[1:])


def _numbers(update: Any) -> bool:
    return isinstance(update, list | tuple) and all(isinstance(x, int | float) for x in update)


def _map(function: Callable[[Any], Any], update: Update) -> Update:
    """Apply to every array of a nested update; NumPy arrays and torch tensors alike."""
    if isinstance(update, Mapping):
        return {name: _map(function, part) for name, part in update.items()}
    if isinstance(update, list | tuple):
        return [_map(function, part) for part in update]
    return function(np.asarray(update, np.float64) if isinstance(update, int | float) else update)


def _add(total: Update, update: Update, factor: float) -> Update:
    """total + factor·update, where total may be changed."""
    mine, others = _form(total), _form(update)
    if mine != others:
        raise ValueError(
            f"one client's update is of form {others}, another's {mine}; all must be of one model"
        )
    if isinstance(total, Mapping):
        return {name: _add(part, update[name], factor) for name, part in total.items()}
    if isinstance(total, list):
        return [_add(part, new, factor) for part, new in zip(total, update, strict=True)]
    total += update * factor
    return total


def _form(update: Update) -> Any:
    """Names, length or shape: what two updates must share to be added."""
    if isinstance(update, Mapping):
        return sorted(update)
    return len(update) if isinstance(update, list | tuple) else tuple(getattr(update, "shape", ()))


def _gram(updates: Sequence[Update]) -> FloatArray:
    """Inner products of all pairs of updates, [m, m]."""
    m = len(updates)
    gram = np.zeros((m, m))
    for layer in zip(*map(_leaves, updates), strict=True):  # one array of every client
        gram += rows.gram(rows.stacked(list(map(rows.double, layer))).reshape(m, -1))
    return gram


def _leaves(update: Update) -> list[Any]:
    leaves: list[Any] = []
    _map(leaves.append, update)
    return leaves

"""From a cohort's updates to the estimate of the full-participation step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvib.checks import LARGEST_NORM
from kvib.cohort import Cohort
from kvib.estimators import tensors
from kvib.estimators.streaming import (
    Coefficients,
    NotFiniteError,
    Update,
    answers,
    is_numbers,
    overflown,
)
from kvib.estimators.variance import VarianceEstimate, deviation, estimated
from kvib.types import FloatArray, IntArray, Tensor


def unbiased(cohort: Cohort) -> FloatArray:
    """λ·count/(q·expected): E[Σ coefficient·update] is the full-participation step, exactly."""
    if not cohort.by_chance:
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
    updates: Sequence[Update] | Mapping[int, Update] | Tensor,
    coefficients: Coefficients = unbiased,
    like: Update | None = None,
) -> Update:
    """Estimate Σ_i λ_i g_i over all clients from the updates of the drawn ones.

    d = Σ_{i ∈ S} λ_i·count_i/(q_i·expected_i) · g_i, added in double precision and returned in the
    form and precision of the first update, without gradients; double for integers.

    Examples:
        >>> import kvib
        >>> cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.5, 1.0], weight=[0.1, 0.4])
        >>> kvib.estimate(cohort, [{"w": np.array([1.0, 0.0])}, {"w": np.array([0.0, 1.0])}])
        {'w': array([0.2, 0.4])}

    Args:
        cohort: who was drawn.
        updates: one per client in the order of `cohort.ids` (a list, or an array or tensor stacked
            along the first axis), None where a client did not answer; or a mapping from client id
            to update, without those. All are real and finite.
        coefficients: `unbiased` or `self_normalised`.
        like: what the model looks like; then an empty cohort gives zeros of that form, not 0.0.
    """
    answered, given = answers(cohort, updates)
    if not answered.any():
        if like is not None:
            return _map(lambda leaf: tensors.zeros(leaf, leaf.shape), like)
        if hasattr(updates, "shape"):
            nothing = tensors.real(updates)
            return tensors.zeros(nothing, nothing.shape[1:])
        return 0.0
    those = cohort.take(answered)
    factors = coefficients(those)
    total = _summed(factors, given)
    if not math.isfinite(norm(total)):
        raise _blamed(those.ids, factors, given, total)
    return total


def _summed(factors: FloatArray, updates: Sequence[Update] | Tensor) -> Update:
    """Σ factor·update, part by part."""
    if hasattr(updates, "shape"):
        stacked = tensors.real(updates)
        flat = tensors.doubled(factors, stacked.reshape((len(stacked), -1)))
        return tensors.cast(flat.reshape(stacked.shape[1:]), stacked[0])
    _check_forms(updates)
    first = updates[0]
    if isinstance(first, Mapping):
        return {name: _summed(factors, [u[name] for u in updates]) for name in first}
    if is_numbers(first):
        return list(_summed(factors, np.array(updates)))
    if isinstance(first, list | tuple):
        return [_summed(factors, parts) for parts in zip(*updates, strict=True)]
    arrays = [tensors.real(update) for update in updates]
    return tensors.cast(tensors.summed(factors, arrays), arrays[0])


def _check_forms(updates: Sequence[Update]) -> None:
    mine = _form(updates[0])
    for update in updates[1:]:
        if _form(update) != mine:
            raise ValueError(
                f"one client's update is of form {_form(update)}, another's {mine}; all must be of "
                "one model"
            )


def _blamed(
    ids: IntArray, factors: FloatArray, updates: Sequence[Update], total: Update
) -> ValueError:
    """Whose update has left the numbers, or who adds most to a sum that has."""
    lengths = norms(updates)
    bad = np.flatnonzero(~(lengths <= LARGEST_NORM))
    if len(bad):
        return NotFiniteError(int(ids[bad[0]]), float(lengths[bad[0]]))
    leaves = [leaf for leaf in _leaves(total) if not math.isfinite(norm(leaf))]
    return overflown(ids, factors * lengths, leaves[0])


def norm(update: Update) -> float:
    """‖g‖ over all entries of one update."""
    leaves = map(tensors.double, _leaves(update))
    return math.sqrt(math.fsum(float((leaf * leaf).sum()) for leaf in leaves))


def norms(updates: Sequence[Update]) -> FloatArray:
    """‖g‖ of each update, [m], as `Sampler.update` wants them; NaN where an update is None."""
    return np.array([math.nan if u is None else norm(u) for u in updates], dtype=np.float64)


def estimated_variance(cohort: Cohort, updates: Sequence[Update] | Tensor) -> VarianceEstimate:
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
    if not (lengths[answered] <= LARGEST_NORM).all():
        return estimated(math.nan, exact=False)
    pairs = None if cohort.pairs is None else cohort.pairs()
    alone = pairs is not None and pairs.uncorrelated
    return deviation(cohort, lengths, None if alone else _gram(given), pairs)


def _map(function: Callable[[Tensor], Any], update: Update) -> Update:
    """Apply to every array of a nested update; NumPy arrays and torch tensors alike."""
    if isinstance(update, Mapping):
        return {name: _map(function, part) for name, part in update.items()}
    if isinstance(update, list | tuple):
        return [_map(function, part) for part in update]
    return function(tensors.real(update))


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
        gram += tensors.gram(tensors.stacked(list(map(tensors.double, layer))).reshape((m, -1)))
    return gram


def _leaves(update: Update) -> list[Tensor]:
    leaves: list[Tensor] = []
    _map(leaves.append, update)
    return leaves

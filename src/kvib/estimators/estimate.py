"""The estimate of the full-participation step from the updates of a cohort."""

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
    """Coefficients that make the estimate unbiased, [m].

    An update counts in inverse proportion to how often it arrives on average. Then
    E[Σ coefficient·update] is the full-participation step Σλg, exactly.

    coefficient_i = λ_i·count_i/(q_i·expected_i).

    Args:
        cohort: The clients of the round. A selector's cohort is refused: it has no probabilities.

    Examples:
        >>> import kvib
        >>> cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.5, 1.0], weight=[0.1, 0.4])
        >>> kvib.unbiased(cohort)
        array([0.2, 0.4])

    References:
        Horvitz and Thompson 1952; Hansen and Hurwitz 1943 for draws with replacement.
    """
    if not cohort.by_chance:
        raise ValueError(
            "a selector's cohort has no inclusion probabilities, so nothing makes it unbiased; "
            "pass coefficients=kvib.self_normalised"
        )
    return cohort.coefficients


def self_normalised(cohort: Cohort) -> FloatArray:
    """Coefficients that make the estimate a mean of the updates, [m]. The estimate is biased.

    They are the unbiased coefficients divided by their sum. FedAvg takes a mean of this kind.

    coefficient_i = c_i/Σc with c_i = λ_i·count_i/(q_i·expected_i).

    Args:
        cohort: The clients of the round.

    Examples:
        >>> import kvib
        >>> cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.5, 1.0], weight=[0.1, 0.4])
        >>> kvib.self_normalised(cohort)
        array([0.33333333, 0.66666667])

    References:
        McMahan et al. 2017 (FedAvg). Survey sampling calls it Hájek's estimator.
    """
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

    Clients that are seldom drawn count more when they are drawn, so that the mean over all draws is
    the step of all clients.

    d = Σ_{i ∈ S} λ_i·count_i/(q_i·expected_i) · g_i.

    The sum is taken in double precision. It is returned without gradients in the form and precision
    of the first update, in double precision for integers.

    Args:
        cohort: The clients of the round.
        updates: One update per client in the order of `cohort.ids`, None where a client did not
            answer. They are a list, or an array or tensor stacked along the first axis. A mapping
            from client id to update works too, without the clients that did not answer. All
            updates are real and finite.
        coefficients: The function that gives the coefficients: `unbiased` or `self_normalised`.
        like: An update of the form of the model. If no client answered, the estimate is then zeros
            of that form, not 0.0.

    Examples:
        >>> import numpy as np, kvib
        >>> cohort = kvib.Cohort(ids=[0, 3], count=[1, 1], expected=[0.5, 1.0], weight=[0.1, 0.4])
        >>> kvib.estimate(cohort, [{"w": np.array([1.0, 0.0])}, {"w": np.array([0.0, 1.0])}])
        {'w': array([0.2, 0.4])}

    References:
        Horvitz and Thompson 1952; Hansen and Hurwitz 1943 for draws with replacement.
    """
    answered, arrived = answers(cohort, updates)
    if not answered.any():
        if like is not None:
            return _map(lambda leaf: tensors.zeros(leaf, leaf.shape), like)
        if hasattr(updates, "shape"):
            empty = tensors.real(updates)
            return tensors.zeros(empty, empty.shape[1:])
        return 0.0
    part = cohort.take(answered)
    factors = coefficients(part)
    total = _summed(factors, arrived)
    if not math.isfinite(norm(total)):
        raise _cause(part.ids, factors, arrived, total)
    return total


def _summed(factors: FloatArray, updates: Sequence[Update] | Tensor) -> Update:
    """Σ factor·update, in the form of the first update."""
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
    """Refuse updates of different forms."""
    first = _form(updates[0])
    for update in updates[1:]:
        if _form(update) != first:
            raise ValueError(
                f"one client's update is of form {_form(update)}, another's {first}; all must be "
                "of one model"
            )


def _cause(
    ids: IntArray, factors: FloatArray, updates: Sequence[Update], total: Update
) -> ValueError:
    """The error that names the client with an update that is not finite.

    Where all updates are finite, it names the client that adds most to the sum, which is not.
    """
    lengths = norms(updates)
    bad = np.flatnonzero(~(lengths <= LARGEST_NORM))
    if len(bad):
        return NotFiniteError(int(ids[bad[0]]), float(lengths[bad[0]]))
    leaves = [leaf for leaf in _leaves(total) if not math.isfinite(norm(leaf))]
    return overflown(ids, factors * lengths, leaves[0])


def norm(update: Update) -> float:
    """The Euclidean norm of one update over all its entries.

    Policies learn from the norms of updates, see `Sampler.update`.

    ‖g‖ = √(Σ g_j²), summed in double precision.

    Args:
        update: An array, a tensor or a number, or dicts and lists of them.

    Examples:
        >>> import numpy as np, kvib
        >>> kvib.norm({"weights": np.array([3.0, 0.0]), "bias": np.array([4.0])})
        5.0
    """
    leaves = map(tensors.double, _leaves(update))
    return math.sqrt(math.fsum(float((leaf * leaf).sum()) for leaf in leaves))


def norms(updates: Sequence[Update]) -> FloatArray:
    """The norm of each update in the order of the list, [m], as `Sampler.update` takes them.

    ‖g_i‖ = √(Σ_j g_ij²), NaN where an update is None.

    Args:
        updates: The updates of the clients, None where a client did not answer.

    Examples:
        >>> import kvib
        >>> kvib.norms([[3.0, 4.0], None])
        array([ 5., nan])
    """
    return np.array([math.nan if u is None else norm(u) for u in updates], dtype=np.float64)


def estimated_variance(cohort: Cohort, updates: Sequence[Update] | Tensor) -> VarianceEstimate:
    """Estimate the sampling noise of one round from that round alone, so that a server can plot it.

    The updates of a cohort show how much clients differ, and the design says how much of that
    difference becomes noise.

    With ζ = λg/(a·e), availability a, response r, e = expected and the second moments of
    `Cohort.pairs`,

    v = Σ count_i size_i ‖ζ_i‖²/r_i − ½ΣΣ count_i count_j (1 − 1/ratio_ij) ‖ζ_i − ζ_j‖²/(r_i r_j)
    + Σ (count_i² (1 − r_i)/r_i² + count_i e_i (1 − a_i)/r_i) ‖ζ_i‖².

    The first two sums are Horvitz and Thompson's estimator for independent draws, and Yates and
    Grundy's for a fixed size. The third sum is the noise of silence and of absence. Where no second
    moments are known, Deville's approximation takes the place of the first two.

    Args:
        cohort: The clients of the round.
        updates: The updates in one of the forms that `estimate` takes.

    Examples:
        >>> import numpy as np, kvib
        >>> cohort = kvib.independent([0.5, 0.5, 0.5, 0.5], np.random.default_rng(0))
        >>> cohort.ids
        array([1, 2, 3])
        >>> kvib.estimated_variance(cohort, [[1.0], [2.0], [1.0]])
        VarianceEstimate(value=0.75, exact=True)

    References:
        Horvitz and Thompson 1952, Yates and Grundy 1953, Deville 1999.
    """
    answered, arrived = answers(cohort, updates)
    lengths = np.full(len(cohort), math.nan)
    lengths[answered] = norms(arrived)
    if not (lengths[answered] <= LARGEST_NORM).all():
        return estimated(math.nan, exact=False)
    pairs = None if cohort.pairs is None else cohort.pairs()
    alone = pairs is not None and pairs.uncorrelated
    return deviation(cohort, lengths, None if alone else _gram(arrived), pairs)


def _map(function: Callable[[Tensor], Any], update: Update) -> Update:
    """A nested update with a function applied to each of its arrays or tensors."""
    if isinstance(update, Mapping):
        return {name: _map(function, part) for name, part in update.items()}
    if isinstance(update, list | tuple):
        return [_map(function, part) for part in update]
    return function(tensors.real(update))


def _form(update: Update) -> Any:
    """The names, length or shape that two updates must share to be added."""
    if isinstance(update, Mapping):
        return sorted(update)
    return len(update) if isinstance(update, list | tuple) else tuple(getattr(update, "shape", ()))


def _gram(updates: Sequence[Update]) -> FloatArray:
    """The inner products of all pairs of updates, [m, m]."""
    m = len(updates)
    gram = np.zeros((m, m))
    for layer in zip(*map(_leaves, updates), strict=True):  # one array of every client
        gram += tensors.gram(tensors.stacked(list(map(tensors.double, layer))).reshape((m, -1)))
    return gram


def _leaves(update: Update) -> list[Tensor]:
    """The arrays and tensors of a nested update, in order."""
    leaves: list[Tensor] = []
    _map(leaves.append, update)
    return leaves

"""Validation at the border: every error names the value and the way out. Inside, trust."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvib.cohort import Cohort, FloatArray, IntArray

# Between these, ratios of squares divided by cubes of probabilities stay finite.
LARGEST_NORM = 1e60
SMALLEST_FEEDBACK = 1e-60


def checked_weights(weights: ArrayLike) -> FloatArray:
    """λ: positive weights, normalised to sum 1."""
    w = positive_weights(weights)
    normalise(w)
    return w


def normalise(weights: FloatArray) -> tuple[float, float]:
    """Make the sum 1, in place; what they were divided by, in two factors that cannot overflow."""
    largest = float(weights.max())
    weights /= largest
    rest = float(weights.sum())
    weights /= rest
    return largest, rest


def positive_weights(weights: ArrayLike) -> FloatArray:
    """Weights of clients, a copy."""
    w = np.array(weights, dtype=np.float64)
    if w.ndim != 1 or len(w) == 0:
        raise ValueError(f"weights have shape {w.shape}; give one positive number per client")
    bad = np.flatnonzero(~((w > 0) & np.isfinite(w)))
    if len(bad):
        raise ValueError(
            f"weight {w[bad[0]]} of client {bad[0]} is not a positive finite number; "
            "leave out clients without data"
        )
    return w


def checked_cost(cost: ArrayLike | None, clients: int) -> FloatArray | None:
    """What drawing each client costs, a copy; None: one each."""
    if cost is None:
        return None
    each = np.array(cost, dtype=np.float64)
    if each.shape != (clients,) or not ((each > 0) & np.isfinite(each)).all():
        raise ValueError(
            f"cost of shape {each.shape} is not one positive number for each of {clients} clients"
        )
    return each


def checked_budget(budget: float, clients: float, cost: FloatArray | None = None) -> float:
    """A number of clients per round, or a sum of costs, that this population can provide."""
    if not (np.isfinite(budget) and budget > 0):
        raise ValueError(f"budget {budget} is not a positive number of clients per round")
    if cost is not None:
        if budget > cost.sum():
            raise ValueError(
                f"budget {budget:g} exceeds the cost of all clients, {cost.sum():g}; lower it"
            )
    elif budget > clients:
        raise ValueError(
            f"budget {budget:g} exceeds the {clients} clients; lower it or add clients"
        )
    return float(budget)


def checked_seed(seed: int) -> int:
    """A non-negative integer."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed {seed!r} is not an integer ≥ 0")
    return int(seed)


def available_ids(available: ArrayLike | None, clients: int) -> IntArray:
    """Who can be drawn, ascending: from nothing (all), a mask of all clients, or a list of ids."""
    if available is None:
        return np.arange(clients)
    given = np.asarray(available)
    if given.dtype == np.bool_:
        if given.shape != (clients,):
            raise ValueError(
                f"the availability mask has shape {given.shape} for {clients} clients; "
                "give one boolean per client, or a list of ids"
            )
        return np.flatnonzero(given)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"available is an array of {given.dtype} with shape {given.shape}; "
            "give one boolean per client, or a list of ids"
        )
    unknown = given[(given < 0) | (given >= clients)]
    if len(unknown):
        raise ValueError(f"unknown client id {unknown[0]}; ids are 0 to {clients - 1}")
    ids = np.sort(given).astype(np.int64)
    twice = ids[1:][np.diff(ids) == 0]
    if len(twice):
        raise ValueError(
            f"client {twice[0]} is listed twice; give every id once, or a mask of booleans"
        )
    return ids


def all_norms(norms: ArrayLike, clients: int) -> FloatArray:
    """‖g‖ of all clients, for policies that must know them before the draw."""
    values = np.asarray(norms, dtype=np.float64)
    if values.shape != (clients,):
        raise ValueError(f"norms have shape {values.shape}; give one per client, {clients} in all")
    _refuse(values, np.isnan(values), np.arange(clients), "norms at draw must all be known")
    return _finite_norms(values, np.arange(clients))


def cohort_norms(cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> FloatArray:
    """‖g‖ of a cohort in the order of its ids; NaN where a client did not answer."""
    if isinstance(norms, Mapping):
        values = np.array([np.nan if n is None else n for n in by_id(cohort, norms)], dtype=float)
    else:
        values = np.asarray(norms, dtype=np.float64)
    if values.shape != (len(cohort),):
        raise ValueError(
            f"norms have shape {values.shape} for a cohort of {len(cohort)}; give one per client "
            "in the order of cohort.ids, NaN where there was no answer"
        )
    return _finite_norms(values, cohort.ids)


def by_id(cohort: Cohort, values: Mapping[int, Any]) -> list[Any]:
    """A mapping from client id to value as a list in the order of cohort.ids, None where absent."""
    unknown = set(values) - set(cohort.ids.tolist())
    if unknown:
        raise ValueError(
            f"client {min(unknown)} is not in the cohort of round {cohort.round}; "
            f"its ids are {cohort.ids.tolist()[:10]}{' …' if len(cohort) > 10 else ''}"
        )
    return [values.get(i) for i in cohort.ids.tolist()]


def _finite_norms(values: FloatArray, ids: IntArray) -> FloatArray:
    way_out = (
        f"a norm is between 0 and {LARGEST_NORM:g}; report NaN for a client that failed or diverged"
    )
    _refuse(values, (values < 0) | (values > LARGEST_NORM), ids, way_out)
    return values


def _refuse(values: FloatArray, bad: Any, ids: IntArray, why: str) -> None:
    at = np.flatnonzero(bad)
    if len(at):
        raise ValueError(f"norm {values[at[0]]} of client {ids[at[0]]}: {why}")


def checked_variables(variables: ArrayLike | None, clients: int) -> FloatArray:
    """What is known of every client, [N, d]; nothing by default."""
    if variables is None:
        return np.empty((clients, 0))
    known = np.asarray(variables, dtype=np.float64)
    known = known[:, None] if known.ndim == 1 else known
    if known.ndim != 2 or len(known) != clients or not np.isfinite(known).all():
        raise ValueError(
            f"variables of shape {known.shape} are not of {clients} clients; give each a row of "
            "finite numbers"
        )
    return known


def checked_sketch(sketch: int) -> int:
    """A number of numbers."""
    if not np.isfinite(sketch) or int(sketch) != sketch or sketch < 0:
        raise ValueError(f"sketch={sketch} is not a number of numbers to keep; 32 is a good one")
    return int(sketch)

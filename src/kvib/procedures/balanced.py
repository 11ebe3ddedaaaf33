"""Draws that keep known totals: the cube method, and pivotal duels between neighbours."""

import numpy as np

from kvib.compiled import kernel
from kvib.procedures.pivotal import PLAYS_FOR_ALL, duel
from kvib.procedures.procedure import Procedure, whole_and_part
from kvib.types import FloatArray, IntArray

_CLOSE = 1e-12
"""Probabilities this near to 0 or 1, in units of what they were, have arrived."""

_PIVOT = 1e-10
"""Smaller coefficients are 0 but for rounding."""

_ALIKE = 1e-9
"""Numbers whose relative difference is smaller are equal but for rounding."""


@kernel
def _flight(p: FloatArray, ratio: FloatArray, order: IntArray, rng: np.random.Generator) -> int:
    """Move p along directions that keep Σ ratio_i p_i, until it is a corner of the cube.

    d + 1 undecided clients at a time have such a direction u; going up or down it with the right
    odds keeps every mean, and decides one of them. When too few are left the last variables are
    given up, one by one. Returns the client that is left undecided, or −1.
    """
    d = ratio.shape[1]
    active, system, u = np.empty(d + 1, np.int64), np.empty((d, d + 1)), np.empty(d + 1)
    m, following = 0, 0
    while True:
        while m < d + 1 and following < len(order):
            active[m] = order[following]
            m, following = m + 1, following + 1
        if m < 2:
            return active[0] if m == 1 else -1
        _aim(u, ratio, active[:m], system)
        up, top = _distance(p, u, active[:m], 1.0)
        down, bottom = _distance(p, u, active[:m], -1.0)
        if rng.random() < down / (up + down):
            m = _go(p, u, active[:m], up, top)
        else:
            m = _go(p, u, active[:m], -down, bottom)


@kernel
def _aim(u: FloatArray, ratio: FloatArray, active: IntArray, system: FloatArray) -> None:
    """Write into u a direction that keeps Σ ratio_i p_i of the active clients, [m].

    The first variables are kept, one fewer than there are clients. `system` is room to work in.
    """
    m = len(active)
    rows = min(len(system), m - 1)
    for k in range(m):
        for v in range(rows):
            system[v, k] = ratio[active[k], v]
    free = _eliminate(system, rows, m)
    u[:m] = 0.0
    u[free] = 1.0
    for v in range(free):
        u[v] = -system[v, free]


@kernel
def _eliminate(system: FloatArray, rows: int, m: int) -> int:
    """Gauss–Jordan up to the first of m columns that has no pivot; returns that column.

    There is one, since there are fewer rows than columns.
    """
    k = 0
    while True:
        best, size = -1, _PIVOT
        for v in range(k, rows):
            if abs(system[v, k]) > size:
                best, size = v, abs(system[v, k])
        if best < 0:
            return k
        for j in range(k, m):
            system[k, j], system[best, j] = system[best, j], system[k, j]
        scale = system[k, k]
        for j in range(k, m):
            system[k, j] /= scale
        for v in range(rows):
            factor = system[v, k]
            if v != k and factor != 0.0:
                for j in range(k, m):
                    system[v, j] -= factor * system[k, j]
        k += 1


@kernel
def _distance(p: FloatArray, u: FloatArray, active: IntArray, sign: float) -> tuple[float, int]:
    """How far p can go along sign·u within [0, 1], and the active client that ends it."""
    nearest, first = np.inf, -1
    for k in range(len(active)):
        if u[k] != 0.0:
            room = 1 - p[active[k]] if sign * u[k] > 0 else p[active[k]]
            if room / abs(u[k]) < nearest:
                nearest, first = room / abs(u[k]), k
    return nearest, first


@kernel
def _go(p: FloatArray, u: FloatArray, active: IntArray, move: float, arrived: int) -> int:
    """Move p along u; returns how many of the active clients are undecided, now in front."""
    left = 0
    for k in range(len(active)):
        i = active[k]
        x = p[i] + move * u[k]
        if k == arrived:
            x = 1.0 if move * u[k] > 0 else 0.0
        if x <= _CLOSE * p[i]:
            p[i] = 0.0
        elif x >= 1 - _CLOSE * (1 - p[i]):
            p[i] = 1.0
        else:
            p[i] = x
            active[left] = i
            left += 1
    return left


def _in_order(at: IntArray, variables: FloatArray | None, rng: np.random.Generator) -> IntArray:
    """Along the direction in which clients differ most; without variables at random."""
    if variables is None:
        return at[rng.permutation(len(at))]
    x = variables[at] - variables[at].mean(axis=0)
    along = x @ _axis(x.T @ x)
    unit = np.abs(along).max() * _ALIKE  # clients alike are in the order of their ids
    return at[np.argsort(np.rint(along / unit) if unit > 0 else along, kind="stable")]


def _axis(spread: FloatArray) -> FloatArray:
    """An eigenvector of the largest eigenvalue, whose largest component is positive.

    Either sign is an eigenvector, and where eigenvalues are equal so is any mixture. Their span is
    one in all cases, and the projection of a unit vector on it too, whatever a library returns.
    """
    values, vectors = np.linalg.eigh(spread)
    top = vectors[:, values >= (1 - _ALIKE) * values[-1]]
    onto = top @ top.T
    lengths = np.diag(onto)
    return np.asarray(onto[np.argmax(lengths >= (1 - _ALIKE) * lengths.max())])  # the first


def _balanced(
    expected: FloatArray, rng: np.random.Generator, variables: FloatArray | None = None
) -> IntArray:
    p = expected.copy()
    order = np.flatnonzero((p > 0) & (p < 1))
    if len(order) == 0:
        return p.astype(np.int64)
    order = _in_order(order, variables, rng)  # what cannot be kept is traded between neighbours
    whole, part = whole_and_part(float(p[order].sum()), len(order))
    inverse = np.divide(1.0, expected, out=np.zeros_like(p), where=expected > 0)
    columns = [np.ones(len(p))]  # p/p: the size of the cohort, given up last
    if variables is not None:
        size = np.abs(variables).max(axis=0)
        columns += list((variables / np.where(size > 0, size, 1.0) * inverse[:, None]).T)
    left = _flight(p, np.column_stack(columns), order, rng)
    if left >= 0:
        p[left] = 0.0
        missing = whole - int(p[order].sum())
        p[left] = missing if part == 0 else missing + (rng.random() < part)
    return p.astype(np.int64)


def _neighbours(
    expected: FloatArray, rng: np.random.Generator, variables: FloatArray | None = None
) -> IntArray:
    return duel(expected, rng, lambda at: _in_order(at, variables, rng), PLAYS_FOR_ALL)


balanced = Procedure("balanced", _balanced, uses_variables=True)
"""The cube method: exactly K clients whose Σ x/p is close to Σ x for every variable x.

Deville and Tillé, "Efficient balanced sampling: the cube method", 2004; flights of d + 1 clients
as in Chauvet and Tillé, 2006, who are neighbours as in Grafström and Tillé, 2013.
"""

neighbours = Procedure("neighbours", _neighbours, uses_variables=True)
"""Exactly K clients, by duels between clients that are alike: of two such one is drawn at most."""

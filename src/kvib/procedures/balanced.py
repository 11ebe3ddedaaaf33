"""Draws that keep known totals: the cube method, and pivotal duels between neighbours."""

import numpy as np

from kvib import compiled
from kvib.cohort import FloatArray, IntArray
from kvib.procedures.pivotal import PLAYS_FOR_ALL, duel
from kvib.procedures.procedure import Procedure, whole_and_part

_CLOSE = 1e-12
"""Probabilities this near to 0 or 1, in units of what they were, have arrived."""

_ALIKE = 1e-9
"""Numbers whose relative difference is smaller are equal but for rounding."""


def _flight(p: FloatArray, ratio: FloatArray, order: IntArray, rng: np.random.Generator) -> int:
    """Move p along directions that keep Σ ratio_i p_i, until it is a corner of the cube.

    d + 1 undecided clients at a time have such a direction u; going up or down it with the right
    odds keeps every mean, and decides one of them. When too few are left the last variables are
    given up, one by one. Returns the client that is left undecided, or −1.
    """
    d = ratio.shape[1]
    active = np.empty(d + 1, np.int64)
    system, u, pivots = np.empty((d, d + 1)), np.empty(d + 1), np.empty(d, np.int64)
    m, following = 0, 0
    while True:
        while m < d + 1 and following < len(order):
            active[m] = order[following]
            m, following = m + 1, following + 1
        if m < 2:
            return active[0] if m == 1 else -1
        rows = min(d, m - 1)
        for k in range(m):
            for v in range(rows):
                system[v, k] = ratio[active[k], v]
        # Gauss–Jordan; the first column without a pivot is free.
        rank, free = 0, -1
        for k in range(m):
            best, size = -1, 1e-10
            for v in range(rank, rows):
                if abs(system[v, k]) > size:
                    best, size = v, abs(system[v, k])
            if best < 0:
                free = k
                break
            for j in range(k, m):
                system[rank, j], system[best, j] = system[best, j], system[rank, j]
            scale = system[rank, k]
            for j in range(k, m):
                system[rank, j] /= scale
            for v in range(rows):
                if v != rank:
                    factor = system[v, k]
                    if factor != 0.0:
                        for j in range(k, m):
                            system[v, j] -= factor * system[rank, j]
            pivots[rank] = k
            rank += 1
        u[:m] = 0.0
        u[free] = 1.0
        for v in range(rank):
            u[pivots[v]] = -system[v, free]
        up, down, top, bottom = np.inf, np.inf, free, free
        for k in range(m):
            x = p[active[k]]
            if u[k] == 0.0:
                continue
            rise, fall = (1 - x) / abs(u[k]), x / abs(u[k])
            if u[k] < 0:
                rise, fall = fall, rise
            if rise < up:
                up, top = rise, k
            if fall < down:
                down, bottom = fall, k
        rises = rng.random() < down / (up + down)
        move, arrived = (up, top) if rises else (-down, bottom)
        left = 0
        for k in range(m):
            x = p[active[k]] + move * u[k]
            if k == arrived:
                x = 1.0 if move * u[k] > 0 else 0.0
            if x <= _CLOSE * p[active[k]]:
                p[active[k]] = 0.0
            elif x >= 1 - _CLOSE * (1 - p[active[k]]):
                p[active[k]] = 1.0
            else:
                p[active[k]] = x
                active[left] = active[k]
                left += 1
        m = left


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
    left = compiled.run(_flight, p, np.column_stack(columns), order, rng=rng)
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

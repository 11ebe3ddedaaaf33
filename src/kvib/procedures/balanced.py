"""Draws that use what is known of clients: the cube method, and duels between neighbours."""

import numpy as np

from kvib.compiled import kernel
from kvib.procedures.pivotal import PLAYS_FOR_ALL, duel
from kvib.procedures.procedure import Procedure, whole_and_part
from kvib.types import FloatArray, IntArray

_CLOSE = 1e-12
"""A probability is at 0 or 1 once its distance fell below this share of what it was."""

_PIVOT = 1e-10
"""Coefficients below this are 0 except for rounding."""

_ALIKE = 1e-9
"""Numbers whose relative difference is below this are equal except for rounding."""


@kernel
def _flight(p: FloatArray, ratio: FloatArray, order: IntArray, rng: np.random.Generator) -> int:
    """Move p along directions that keep Σ ratio_i p_i, until it is a corner of the cube [0, 1]^N.

    Any d + 1 undecided clients have a direction u along which their d totals stay the same. A move
    up or down this direction, with odds that keep every mean, decides at least one of them. When
    fewer clients are left, the last variables are given up one by one. Returns the client that is
    left undecided, or −1.

    Args:
        p: The probabilities of all clients, [N]. They are changed in place.
        ratio: The variables over the probabilities, x_i/p_i, [N, d]. The first ones are kept
            longest.
        order: The ids of the clients with 0 < p < 1, in the order in which they become active.
        rng: The source of all randomness.
    """
    d = ratio.shape[1]
    active, system, u = np.empty(d + 1, np.int64), np.empty((d, d + 1)), np.empty(d + 1)
    m, following = 0, 0
    while True:
        # Step 1: fill up the active clients to d + 1.
        while m < d + 1 and following < len(order):
            active[m] = order[following]
            m, following = m + 1, following + 1
        if m < 2:
            return active[0] if m == 1 else -1
        # Step 2: find a direction that keeps their totals.
        _find_direction(u, ratio, active[:m], system)
        # Step 3: find how far p can move up and down until a client is decided.
        up, first_up = _room(p, u, active[:m], 1.0)
        down, first_down = _room(p, u, active[:m], -1.0)
        # Step 4: move. P(up)·up = P(down)·down, so E[p] stays the same.
        if rng.random() < down / (up + down):
            m = _move(p, u, active[:m], up, first_up)
        else:
            m = _move(p, u, active[:m], -down, first_down)


@kernel
def _find_direction(u: FloatArray, ratio: FloatArray, active: IntArray, system: FloatArray) -> None:
    """Write into u a direction that keeps Σ ratio_i p_i of the active clients, [m].

    It solves Σ_k ratio_k u_k = 0 for the first variables, at most m − 1 of them. `system` is
    memory to work in, [d, d + 1].
    """
    m = len(active)
    rows = min(len(system), m - 1)
    for k in range(m):
        for v in range(rows):
            system[v, k] = ratio[active[k], v]
    free = _eliminate(system, rows, m)
    # u is 1 in the free column, and the columns before it follow from their rows.
    u[:m] = 0.0
    u[free] = 1.0
    for v in range(free):
        u[v] = -system[v, free]


@kernel
def _eliminate(system: FloatArray, rows: int, m: int) -> int:
    """Gauss–Jordan elimination up to the first of m columns without a pivot; returns that column.

    A column without a pivot exists, since there are fewer rows than columns.
    """
    k = 0
    while True:
        # the largest coefficient of column k is the pivot
        best, size = -1, _PIVOT
        for v in range(k, rows):
            if abs(system[v, k]) > size:
                best, size = v, abs(system[v, k])
        if best < 0:
            return k
        # its row becomes row k, divided by the pivot
        for j in range(k, m):
            system[k, j], system[best, j] = system[best, j], system[k, j]
        scale = system[k, k]
        for j in range(k, m):
            system[k, j] /= scale
        # row k is subtracted from all others, so that column k is 0 there
        for v in range(rows):
            factor = system[v, k]
            if v != k and factor != 0.0:
                for j in range(k, m):
                    system[v, j] -= factor * system[k, j]
        k += 1


@kernel
def _room(p: FloatArray, u: FloatArray, active: IntArray, sign: float) -> tuple[float, int]:
    """The largest step along sign·u within [0, 1], and the position of the client that ends it."""
    largest, first = np.inf, -1
    for k in range(len(active)):
        if u[k] != 0.0:
            to_bound = 1 - p[active[k]] if sign * u[k] > 0 else p[active[k]]
            if to_bound / abs(u[k]) < largest:
                largest, first = to_bound / abs(u[k]), k
    return largest, first


@kernel
def _move(p: FloatArray, u: FloatArray, active: IntArray, step: float, arrived: int) -> int:
    """Move p by step·u, and put the undecided active clients in front; returns their number.

    `arrived` is the position of the client that reaches 0 or 1, whatever the rounding.
    """
    undecided = 0
    for k in range(len(active)):
        i = active[k]
        x = p[i] + step * u[k]
        if k == arrived:
            x = 1.0 if step * u[k] > 0 else 0.0
        if x <= _CLOSE * p[i]:
            p[i] = 0.0
        elif x >= 1 - _CLOSE * (1 - p[i]):
            p[i] = 1.0
        else:
            p[i] = x
            active[undecided] = i
            undecided += 1
    return undecided


def _in_order(at: IntArray, variables: FloatArray | None, rng: np.random.Generator) -> IntArray:
    """The clients along the direction in which they differ most; without variables at random."""
    if variables is None:
        return at[rng.permutation(len(at))]
    x = variables[at] - variables[at].mean(axis=0)
    along = x @ _axis(x.T @ x)
    unit = np.abs(along).max() * _ALIKE  # clients closer than this keep the order of their ids
    return at[np.argsort(np.rint(along / unit) if unit > 0 else along, kind="stable")]


def _axis(spread: FloatArray) -> FloatArray:
    """An eigenvector of the largest eigenvalue, the same on every machine.

    Both signs are eigenvectors, and where eigenvalues are equal every mixture is one too. The span
    of these eigenvectors does not depend on the library that computes them. The vector returned is
    the projection of a unit vector on the span, so it does not depend on the library either.
    """
    values, vectors = np.linalg.eigh(spread)
    top = vectors[:, values >= (1 - _ALIKE) * values[-1]]
    projection = top @ top.T
    lengths = np.diag(projection)
    longest = np.argmax(lengths >= (1 - _ALIKE) * lengths.max())  # the first of those equally long
    return np.asarray(projection[longest])


def _balanced(
    expected: FloatArray, rng: np.random.Generator, variables: FloatArray | None = None
) -> IntArray:
    """Counts by the cube method, [N]."""
    p = expected.copy()
    order = np.flatnonzero((p > 0) & (p < 1))
    if len(order) == 0:
        return p.astype(np.int64)
    order = _in_order(order, variables, rng)  # clients that become active together are neighbours
    whole, part = whole_and_part(float(p[order].sum()), len(order))
    inverse = np.divide(1.0, expected, out=np.zeros_like(p), where=expected > 0)
    columns = [np.ones(len(p))]  # p/p: the size of the cohort is the total that is given up last
    if variables is not None:
        size = np.abs(variables).max(axis=0)
        columns += list((variables / np.where(size > 0, size, 1.0) * inverse[:, None]).T)
    last = _flight(p, np.column_stack(columns), order, rng)
    if last >= 0:  # it keeps the fractional part of Σp, taken from the sum itself
        p[last] = 0.0
        missing = whole - int(p[order].sum())
        p[last] = missing if part == 0 else missing + (rng.random() < part)
    return p.astype(np.int64)


def _neighbours(
    expected: FloatArray, rng: np.random.Generator, variables: FloatArray | None = None
) -> IntArray:
    """Counts after duels along the direction in which clients differ most, [N]."""
    return duel(expected, rng, lambda at: _in_order(at, variables, rng), PLAYS_FOR_ALL)


balanced = Procedure("balanced", _balanced, uses_variables=True)
"""Exactly K clients that represent all clients in every known variable, by the cube method.

The probabilities move step by step to 0 or 1 along directions that keep the totals of the
variables. Clients that move together are neighbours: what one loses, a similar one gains. A
fractional K gives ⌊K⌋ or ⌈K⌉ clients.

Σ_{i ∈ S} x_i/p_i is close to Σ_i x_i for every variable x, and |S| = K.

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.
    variables: The numbers x to balance on, [N, d]. Without them only the size is kept.

Further arguments are those of `kvib.Procedure`.

Examples:
    A hundred clients have the variable 0, 1, …, 99. Each cohort of 20 estimates the total, 4950,
    by Σ x/p. The estimates scatter less than those of `pivotal`.

    >>> import numpy as np, kvib
    >>> x, p, rng = np.arange(100.0)[:, None], np.full(100, 0.2), np.random.default_rng(0)
    >>> [int(x[kvib.balanced(p, rng, variables=x).ids].sum() / 0.2) for _ in range(5)]
    [4625, 4725, 4770, 5180, 5115]
    >>> [int(x[kvib.pivotal(p, rng).ids].sum() / 0.2) for _ in range(5)]
    [4925, 5765, 4115, 4610, 4660]

References:
    Deville and Tillé, "Efficient balanced sampling: the cube method", 2004. Steps of d + 1 clients
    follow Chauvet and Tillé 2006, steps among neighbours follow Grafström and Tillé 2013.
"""

neighbours = Procedure("neighbours", _neighbours, uses_variables=True)
"""Exactly K clients, by duels between clients that are alike.

Two similar clients are rarely drawn together, so a cohort is spread over all kinds of clients. With
many clients the procedure is much faster than `balanced`. A fractional K gives ⌊K⌋ or ⌈K⌉ clients.

The duels are those of `pivotal`: (a, b) becomes (a + b, 0) or (0, a + b) if a + b < 1, and
(1, a + b − 1) or (a + b − 1, 1) otherwise. Their order follows the first principal axis of x.

Args:
    expected: The probability p_i of every client, [N]. Their sum is the budget K.
    rng: The source of all randomness.
    variables: The numbers x by which clients are compared, [N, d]. Without them the order is
        random.

Further arguments are those of `kvib.Procedure`.

Examples:
    Clients 0 and 1 are alike, and so are 2 and 3. One of each pair is drawn.

    >>> import numpy as np, kvib
    >>> x, rng = np.array([[0.0], [0.1], [5.0], [5.1]]), np.random.default_rng(0)
    >>> [kvib.neighbours(np.full(4, 0.5), rng, variables=x).ids.tolist() for _ in range(3)]
    [[0, 3], [1, 2], [0, 2]]

References:
    Deville and Tillé 1998 (duels), Grafström and Tillé 2013 (neighbours).
"""

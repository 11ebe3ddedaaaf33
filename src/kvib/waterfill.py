"""The only solver: p = clip(c·score, floor, cap) with Σp = budget."""

import numpy as np
from numpy.typing import ArrayLike

from kvib.types import BoolArray, FloatArray, IntArray

_SLACK = 1e-12
"""Relative rounding of Σfloor, Σcap and the budget: a budget this close to a limit is at it."""


def waterfill(
    scores: ArrayLike,
    budget: float,
    floor: ArrayLike = 0.0,
    cap: ArrayLike = 1.0,
    cost: ArrayLike | None = None,
) -> FloatArray:
    """Spend a budget on clients in proportion to their scores, between a floor and a cap.

    What a client cannot take above its cap goes to the others, as water rises in the vessels that
    are not full. The result minimises Σ score²/p subject to Σp = budget and floor ≤ p ≤ cap:

    p = clip(c·score, floor, cap).

    With a cost per client the budget is in units of that cost: Σ cost·p = budget and
    p = clip(c·score/√cost, floor, cap).

    Args:
        scores: One non-negative number per client, [N]. Only their ratios matter.
        budget: The value of Σp, or of Σ cost·p.
        floor: The smallest p, one number or [N]. A client with the score 0 gets its floor.
        cap: The largest p, one number or [N]. It is `inf` for draws with replacement.
        cost: The cost of drawing each client once, [N]. None means a cost of 1 for every client.

    Examples:
        >>> from kvib import waterfill
        >>> waterfill([1, 3, 6], budget=2)
        array([0.25, 0.75, 1.  ])
        >>> waterfill([1, 3, 6], budget=2, floor=0.4)
        array([0.4, 0.6, 1. ])
        >>> waterfill([1, 1, 1], budget=6, cost=[1, 4, 16])
        array([0.85714286, 0.42857143, 0.21428571])

    References:
        Zeng et al., "Enhanced Federated Optimization", Lemma 2.2 and, with a floor, Lemma 5.1
        (corrected). Bitran and Hax 1981 for the method, variable fixing.
    """
    s = np.asarray(scores, dtype=np.float64)
    lo, hi = np.asarray(floor, dtype=np.float64), np.asarray(cap, dtype=np.float64)
    w = np.asarray(1.0 if cost is None else cost, dtype=np.float64)
    _check(s, budget, lo, hi, w)

    # The two ends: a budget that only the floors, or only the caps, can meet.
    N = len(s)
    least, most = _sum(lo * w, N), _sum(hi * w, N)
    if not least * (1 - _SLACK) <= budget <= most * (1 + _SLACK):
        raise ValueError(
            f"budget {budget:g} is outside what floor and cap allow, {least:g} to {most:g}; "
            "change the budget, the floor or the cap"
        )
    if budget >= most * (1 - _SLACK):  # K = N among others
        return np.array(np.broadcast_to(hi, N))
    p = np.array(np.broadcast_to(lo, N))
    if budget <= least * (1 + _SLACK):
        return p

    # Clients with the score 0 stay at their floor: the others share the rest of the budget.
    positive = np.flatnonzero(s > 0)
    rest = budget - _sum(lo * w, N)
    if len(positive) < N:
        s, lo, hi, w = s[positive], _at(lo, positive), _at(hi, positive), _at(w, positive)
        room = _sum((hi - lo) * w, len(positive))
        if rest > room * (1 + _SLACK):
            raise ValueError(
                f"only {len(positive)} of {N} scores are positive, too few to spend the budget "
                f"{budget:g}; give the others a floor or a positive score, or lower the budget"
            )
        if rest >= room * (1 - _SLACK):
            p[positive] = hi
            return p
    rest += _sum(lo * w, len(s))
    if lo.ndim == hi.ndim == 0 and cost is None:
        p[positive] = _shared_limits(s, rest, float(lo), float(hi))
    else:
        p[positive] = _own_limits(s / np.sqrt(w), rest, lo, hi, w)
    return p


# The next two functions solve by variable fixing (Bitran & Hax 1981). First solve without limits.
# The limit (cap or floor) that is violated by more in total is also reached in the solution. Fix
# these clients at that limit, and solve again for the others.
# Every sum is computed anew from positive terms, so that no range of scores leads to cancellation.


def _shared_limits(s: FloatArray, rest: float, lo: float, hi: float) -> FloatArray:
    """clip(c·s, lo, hi) with sum `rest`, for limits that all clients share."""
    ordered = np.sort(s)
    a, b = 0, len(s)  # ordered[a:b] are not fixed: fixed clients are at the two ends
    while True:
        unit = ordered[b - 1]  # no overflow, however large or small the scores
        share = ordered[a:b] / unit
        c = rest / float(share.sum())
        share *= c
        under, over = np.searchsorted(share, lo, "right"), np.searchsorted(share, hi, "left")
        excess, shortfall = float((share[over:] - hi).sum()), float((lo - share[:under]).sum())
        if excess == shortfall:
            with np.errstate(over="ignore"):  # a fixed score may be infinitely many units
                filled: FloatArray = np.clip(s / unit * c, lo, hi)
            return filled
        if excess > shortfall:
            # The rest is the shares of the others plus the excess. Rounding must not bring it
            # below the shares.
            rest = max(rest - hi * (b - a - int(over)), float(share[:over].sum()))
            b = a + int(over)
        else:
            rest = max(rest - lo * int(under), lo * (b - a - int(under)))
            a += int(under)
        if a == b:  # every client is fixed
            return np.where(s >= (ordered[a] if a < len(s) else np.inf), hi, lo)


def _own_limits(
    r: FloatArray, rest: float, lo: FloatArray, hi: FloatArray, w: FloatArray
) -> FloatArray:
    """clip(c·r, lo, hi) with Σ w·p = `rest`, where each client has limits or a cost of its own."""
    p = np.empty_like(r)
    free = np.arange(len(r))
    while len(free):
        relative = r / r.max()
        share = relative * (rest / _sum(relative * w, len(r)))
        over, under = share >= hi, share <= lo
        excess, shortfall = _beyond(share - hi, over, w), _beyond(lo - share, under, w)
        if excess == shortfall:
            p[free] = np.clip(share, lo, hi)
            break
        fixed, limit = (over, hi) if excess > shortfall else (under, lo)
        at, keep = np.flatnonzero(fixed), np.flatnonzero(~fixed)
        p[free[at]] = _at(limit, at)
        least = share[keep] if fixed is over else _at(lo, keep)
        rest = max(rest - _sum(_at(limit * w, at), len(at)), _sum(least * _at(w, keep), len(keep)))
        free, r = free[keep], r[keep]
        lo, hi, w = _at(lo, keep), _at(hi, keep), _at(w, keep)
    return p


def _at(values: FloatArray, index: IntArray) -> FloatArray:
    """The entries at `index`. One number that all clients share is returned as it is."""
    return values[index] if values.ndim else values


def _sum(values: FloatArray, count: int) -> float:
    """Σ over `count` clients of an array, or of one number that all of them share."""
    return float(values.sum() if values.ndim else values * count)


def _beyond(distance: FloatArray, outside: BoolArray, w: FloatArray) -> float:
    """Σ w·distance over the clients outside of their limit."""
    at = np.flatnonzero(outside)
    return _sum(distance[at] * _at(w, at), len(at)) if len(at) else 0.0


def _check(
    scores: FloatArray, budget: float, floor: FloatArray, cap: FloatArray, cost: FloatArray
) -> None:
    """Refuse arguments that are not numbers in their ranges, or of the wrong shape."""
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"scores have shape {scores.shape}; give one number per client")
    for name, values in (("floor", floor), ("cap", cap), ("cost", cost)):
        if values.ndim and values.shape != scores.shape:
            raise ValueError(
                f"{name} has shape {values.shape} for {len(scores)} clients; "
                "give one number, or one per client"
            )
    if not (np.isfinite(scores).all() and (scores >= 0).all()):
        bad = int(np.flatnonzero(~(np.isfinite(scores) & (scores >= 0)))[0])
        raise ValueError(f"score {scores[bad]} of client {bad} is not a finite number ≥ 0")
    if not (np.isfinite(floor).all() and (floor >= 0).all() and (cap >= floor).all()):
        raise ValueError("floor must be finite and 0 ≤ floor ≤ cap for every client")
    if not (np.isfinite(cost).all() and (cost > 0).all()):
        raise ValueError("cost must be finite and positive for every client")
    if not (np.isfinite(budget) and budget > 0):
        raise ValueError(f"budget {budget} is not a positive number")

"""The solver: edge cases to the digit, and against a generic convex solver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from kvib import waterfill


def test_example_2_of_the_paper():
    assert waterfill([1, 3, 6], 2).tolist() == [0.25, 0.75, 1.0]
    assert waterfill([1, 3, 6], 3).tolist() == [1.0, 1.0, 1.0]
    assert waterfill([1, 3, 6], 2, cap=np.inf).tolist() == pytest.approx([0.2, 0.6, 1.2])


def test_never_above_one():
    assert waterfill([1, 1, 1, 10], 2).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
    assert waterfill([1, 1, 1, 10], 2).max() == 1.0


@pytest.mark.parametrize(
    ("scores", "budget", "options", "expected"),
    [
        ([5, 5, 5, 5], 2, {}, [0.5] * 4),  # ties
        ([2, 2, 1, 1], 3, {}, [1, 1, 0.5, 0.5]),  # ties exactly at the cap
        ([3, 3, 2, 2], 3, {}, [0.9, 0.9, 0.6, 0.6]),
        ([0, 0, 1, 3], 1, {}, [0, 0, 0.25, 0.75]),  # zeros
        ([0, 0, 1, 3], 2, {}, [0, 0, 1, 1]),  # exactly as many positive scores as the budget
        ([0, 0, 0], 1.5, {"floor": 0.5}, [0.5] * 3),  # nothing but floor
        ([1, 2, 3], 3, {}, [1, 1, 1]),  # K = N
        ([1, 2, 3], 3, {"floor": 1.0}, [1, 1, 1]),
        ([1, 1, 8], 1.5, {"floor": 0.5}, [0.5, 0.5, 0.5]),  # floor·N = K
        ([1, 1, 8], 1.5 + 1e-9, {"floor": 0.5}, [0.5, 0.5, 0.5 + 1e-9]),  # close to it
        ([1, 2, 3], 2, {"floor": [0, 0.9, 0]}, [0.275, 0.9, 0.825]),  # a floor of its own
        ([1, 2, 3], 2, {"cap": [1, 0.4, 1]}, [0.6, 0.4, 1.0]),
        ([4.0], 0.3, {}, [0.3]),
        ([1e-300, 1e300], 1.5, {}, [0.5, 1]),
        ([5e-324, 1e-323, 1.5e-323], 1.2, {}, [0.2, 0.4, 0.6]),  # subnormals
        ([1.0, 5e-324, 1e-323], 2.2, {}, [1, 0.4, 0.8]),  # and far below another
        ([1e308, 1e308, 1e308], 1, {}, [1 / 3] * 3),
        ([0.7, 0.3, 0.1 + 0.2, 1e-20], 3, {}, [1, 1, 1, 0]),  # near-ties at the cap
        ([0.7, 0.3, 0.1 + 0.2, 1e-20], 3, {"floor": [0, 0, 0, 0]}, [1, 1, 1, 0]),
        ([1 + 2**-52, 1, 1, 1e-17], 3, {}, [1, 1, 1, 0]),
    ],
)
def test_edge_cases(scores, budget, options, expected):
    p = waterfill(scores, budget, **options)
    assert p.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert (p[np.array(scores) > 0] > 0).all()
    assert p.sum() == pytest.approx(budget, rel=1e-14)


def test_twelve_orders_of_magnitude():
    scores = np.logspace(-6, 6, 200)
    p = waterfill(scores, 120)
    assert p.sum() == pytest.approx(120, rel=1e-14)
    free = p < 1
    ratio = p[free] / scores[free]
    assert ratio == pytest.approx(ratio[0], rel=1e-13)  # exactly proportional below the cap
    assert scores[~free].min() * ratio[0] >= 1 - 1e-12


def test_cost():
    p = waterfill([1, 1, 1], 6, cost=[1, 4, 16])
    assert p @ [1, 4, 16] == pytest.approx(6)
    assert p == pytest.approx(p[0] / np.array([1, 2, 4]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, np.nan], 1), "score nan of client 1"),
        (([1, -2], 1), "score -2.0 of client 1"),
        (([1, np.inf], 1), "score inf of client 1"),
        (([], 1), "one number per client"),
        (([1, 2], 0), "budget 0 is not a positive number"),
        (([1, 2], np.nan), "budget nan"),
        (([1, 2], 3), "outside what floor and cap allow, 0 to 2"),
        (([1, 2], 1, 0.8), "outside what floor and cap allow, 1.6 to 2"),
        (([0, 0, 5], 2), "only 1 of 3 scores are positive"),
        (([0, 0, 5], 2, 0.1), "only 1 of 3 scores are positive"),
        (([1, 2], 1, [0.1, 0.1, 0.1]), "floor has shape"),
        (([1, 2], 1, 0.5, 0.4), "0 ≤ floor ≤ cap"),
        (([1, 2], 1, 0, 1, [1, 0]), "cost must be"),
    ],
)
def test_bad_input_says_the_way_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        waterfill(*arguments)


def slow_waterfill(scores, budget, floor, cap, cost):
    """The readable oracle: bisection on c."""
    r = scores / np.sqrt(cost)
    low, high = 0.0, 2 * np.max(np.minimum(cap, budget / cost) / r)
    for _ in range(300):
        c = (low + high) / 2
        low, high = (c, high) if (cost * np.clip(c * r, floor, cap)).sum() < budget else (low, c)
    return np.clip(high * r, floor, cap)


@st.composite
def problems(draw):
    n = draw(st.integers(1, 12))
    finite = {"allow_nan": False, "allow_infinity": False}
    exponents = draw(st.lists(st.floats(-6, 6, **finite), min_size=n, max_size=n))
    scores = 10.0 ** np.array(exponents)
    per_client = draw(st.booleans())
    size = n if per_client else 1
    floor = np.array(draw(st.lists(st.floats(0, 0.5, **finite), min_size=size, max_size=size)))
    cap = draw(st.sampled_from([1.0, 0.7, np.inf]))
    cost = np.ones(n)
    if draw(st.booleans()):
        cost = np.array(draw(st.lists(st.floats(0.1, 10, **finite), min_size=n, max_size=n)))
    least = float((cost * floor).sum())
    most = float((cost * min(cap, 5.0)).sum())
    budget = least + draw(st.floats(0.001, 0.999, **finite)) * (most - least)
    return scores, budget, floor if per_client else float(floor[0]), cap, cost


@settings(max_examples=500, deadline=None)
@given(problems())
def test_agrees_with_bisection(problem):
    scores, budget, floor, cap, cost = problem
    p = waterfill(scores, budget, floor, cap, cost)
    assert (cost * p).sum() == pytest.approx(budget, rel=1e-12)
    assert p == pytest.approx(slow_waterfill(scores, budget, floor, cap, cost), rel=1e-9, abs=1e-14)
    assert (p >= floor).all()
    assert (p <= cap).all()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([0.3, 0.1 + 0.2, 0.7, 1.0, 1 + 2**-52, 1 - 2**-53]), min_size=2),
    st.integers(1, 4),
    st.floats(1e-25, 1e-12),
    st.booleans(),
)
def test_near_ties_at_the_cap(ties, small, tiny, own):
    """As many near-equal scores as the budget, and others too small to matter."""
    scores, K = np.array(ties + [tiny] * small), len(ties)
    p = waterfill(scores, K, np.zeros(len(scores)) if own else 0.0)
    assert p.sum() == pytest.approx(K, rel=1e-14)
    assert p[:K] == pytest.approx(np.ones(K), abs=1e-10)
    assert (p > 0).all()


@settings(max_examples=200, deadline=None)
@given(problems())
def test_shared_and_own_limits_agree(problem):
    """The two paths of the solver, on the same problem."""
    scores, budget, floor, cap, _ = problem
    n = len(scores)
    floor = float(np.max(floor))
    budget = floor * n + 0.5 * min(budget, (min(cap, 5.0) - floor) * n)
    shared = waterfill(scores, budget, floor, cap)
    own = waterfill(scores, budget, np.full(n, floor), cap)
    assert shared == pytest.approx(own, rel=1e-12)


@pytest.mark.parametrize("chunk", range(4))
def test_agrees_with_a_convex_solver(chunk):
    """A thousand random problems against SciPy, with floors, caps and costs and without."""
    rng, agreed = np.random.default_rng(chunk), 0
    for case in range(250):
        n = int(rng.integers(2, 9))
        scores = rng.lognormal(0, 1.5, n)
        floor = rng.uniform(0, 0.2, n) if case % 2 else 0.0
        cap = rng.uniform(0.5, 1, n) if case % 3 == 0 else 1.0
        cost = rng.uniform(0.5, 3, n) if case % 5 < 2 else np.ones(n)
        least, most = (cost * floor).sum(), (cost * cap).sum()
        budget = rng.uniform(least + 0.05 * (most - least), most)
        p = waterfill(scores, budget, floor, cap, None if (cost == 1).all() else cost)

        # Convex: p is optimal iff it minimises its own linearisation over the feasible set.
        gradient = -(scores**2) / p**2
        bounds = list(zip(np.broadcast_to(floor, n), np.broadcast_to(cap, n), strict=True))
        best = linprog(gradient, A_eq=cost[None], b_eq=[budget], bounds=bounds)
        assert best.status == 0
        assert gradient @ p - best.fun <= 1e-9 * abs(best.fun)

        scale = (scores**2 / p).sum()
        found = minimize(
            lambda x: (scores**2 / x).sum() / scale,  # noqa: B023
            np.clip(p * rng.uniform(0.8, 1.2, n), 1e-3, None),
            jac=lambda x: -(scores**2) / x**2 / scale,  # noqa: B023
            bounds=[(max(lo, 1e-6), hi) for lo, hi in bounds],
            constraints={"type": "eq", "fun": lambda x: cost @ x - budget},  # noqa: B023
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-13},
        )
        if abs(cost @ found.x - budget) < 1e-9:
            assert found.fun >= 1 - 1e-8  # it finds nothing better
            agreed += bool(np.abs(p - found.x).max() < 1e-3)
    assert agreed >= 240  # the generic solver itself gives up now and then

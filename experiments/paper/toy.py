"""Examples 1 and 2 of the K-Vib paper: how the procedure changes the noise of the estimate."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import kvib
from kvib.analysis import metrics

Floats = NDArray[np.float64]
COLOURS = {"uniform": "#888888", "random (RSP)": "#d95f02", "independent (ISP)": "#1b6ca8"}


class Errors(NamedTuple):
    """Squared errors of many draws, and their exact mean."""

    budget: int
    name: str
    squared: Floats
    exact: float


def example_1(
    seed: int, clients: int = 100, dimensions: int = 1000, draws: int = 1000
) -> list[Errors]:
    """The error of the estimated sum of random vectors with very different lengths."""
    rng = np.random.Generator(np.random.PCG64(seed))
    vectors = rng.normal(size=(clients, dimensions)) * rng.lognormal(0, 1, clients)[:, None]
    lengths = kvib.norms(list(vectors))
    gram, total = vectors @ vectors.T, vectors.sum(axis=0)
    results = []
    for budget in (10, 30):
        designs = {
            "uniform": (kvib.without_replacement, np.full(clients, budget / clients)),
            "random (RSP)": (kvib.with_replacement, kvib.waterfill(lengths, budget, cap=np.inf)),
            "independent (ISP)": (kvib.independent, kvib.waterfill(lengths, budget)),
        }
        for name, (procedure, expected) in designs.items():
            squared = np.empty(draws)
            for k in range(draws):
                cohort = procedure(expected, rng, weights=np.ones(clients))
                off = kvib.estimate(cohort, vectors[cohort.ids]) - total
                squared[k] = off @ off
            exact = metrics.variance(expected, procedure=procedure, gram=gram)
            results.append(Errors(budget, name, squared, exact.value))
    return results


class Outcome(NamedTuple):
    """One possible cohort of Example 2."""

    procedure: str
    counts: tuple[int, ...]
    probability: float
    estimate: Floats


def example_2(budget: int = 2) -> tuple[Floats, list[Outcome]]:
    """Three vectors of length 1, 3 and 6: every outcome of both procedures."""
    root = np.sqrt
    g = np.array([[root(2) / 2, root(2) / 2], [1, -2 * root(2)], [2 * root(7), 2 * root(2)]])
    p = kvib.waterfill([1, 3, 6], budget)
    e = kvib.waterfill([1, 3, 6], budget, cap=np.inf)
    outcomes = []
    for counts in itertools.product((0, 1), repeat=3):
        probability = float(np.prod(np.where(counts, p, 1 - p)))
        if probability > 0:
            estimate = (np.array(counts) / p) @ g
            outcomes.append(Outcome("independent (ISP)", counts, probability, estimate))
    for counts in itertools.product(range(budget + 1), repeat=3):
        if sum(counts) == budget:
            orders = math.factorial(budget) / math.prod(map(math.factorial, counts))
            probability = float(orders * np.prod((e / budget) ** counts))
            outcomes.append(
                Outcome("random (RSP)", counts, probability, (np.array(counts) / e) @ g)
            )
    return g.sum(axis=0), outcomes


def figure_1(results: list[Errors]) -> Figure:
    """A plot of the squared errors, draw by draw."""
    figure = Figure(figsize=(9, 3.6))
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (budget, rows) in zip(
        axes, itertools.groupby(results, key=lambda r: r.budget), strict=True
    ):
        for row in rows:
            colour = COLOURS[row.name]
            index = np.arange(len(row.squared))
            axis.scatter(index, row.squared, s=3, alpha=0.35, color=colour, linewidths=0)
            label = f"{row.name}: mean {row.squared.mean():,.0f}"
            axis.axhline(row.exact, color=colour, linewidth=1.6, label=label)
        axis.set(title=f"K = {budget}, {len(row.squared)} draws", xlabel="draw", yscale="log")
        axis.legend(fontsize=7, loc="lower right")
    axes[0].set_ylim(bottom=0.3 * min(row.squared.min() for row in results))
    axes[0].set_ylabel("‖d − D‖²  (lines: exact variance)")
    figure.tight_layout()
    return figure


def figure_2(full: Floats, outcomes: list[Outcome]) -> Figure:
    """A plot of the estimates in the plane."""
    figure = Figure(figsize=(5.6, 4.2))
    axis = figure.subplots()
    for name, rows in itertools.groupby(outcomes, key=lambda o: o.procedure):
        group = list(rows)
        points = np.array([o.estimate for o in group])
        sizes = [600 * o.probability for o in group]
        axis.scatter(
            points[:, 0], points[:, 1], s=sizes, alpha=0.6, color=COLOURS[name], label=name
        )
        for o in group:
            drawn = "".join(str(i + 1) for i, c in enumerate(o.counts) for _ in range(c))
            axis.annotate(drawn, tuple(o.estimate), fontsize=7, ha="center", va="center")
    axis.scatter(full[0], full[1], marker="*", s=160, color="black", label="all clients", zorder=3)
    axis.set(title="Estimates of every outcome, area ∝ probability", xlabel="x", ylabel="y")
    legend = axis.legend(fontsize=8, loc="upper left")
    for handle in legend.legend_handles:
        handle.set_sizes([50])  # type: ignore[union-attr]
    figure.tight_layout()
    return figure

"""The figures of the pages: the results they need, how they are drawn, and their captions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvib.lab import figures, tables
from paper import origins, plots, straggler_figure, toy, variances


@dataclass(frozen=True)
class Drawing:
    """A figure of a page.

    Args:
        needs: The names of the results that it shows.
        draw: A function that makes the figure from the results.
        caption: The sentences below the figure.
        read: A function that reads one of the results.
        origin: A function that says where one of the results is from.
    """

    needs: tuple[str, ...]
    draw: plots.Draw
    caption: str
    read: Callable[[Path], Any] = tables.load
    origin: Callable[[Any], str] = origins.of_runs


def draw(name: str, results: Path, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Write one figure, and return its files."""
    drawing = FIGURES[name]

    def make() -> Figure:
        return drawing.draw([drawing.read(results / need) for need in drawing.needs])

    return figures.write(make, name, out, formats)


def missing(name: str, results: Path) -> list[str]:
    """The experiments that a figure needs and that have no results."""
    return tables.missing(FIGURES[name].needs, results)


PAPER: dict[str, Drawing] = {
    "example-1": Drawing(
        (),
        lambda _: toy.figure_1(toy.example_1(seed=0)),
        "Squared error of 1,000 estimates of a sum of 100 random vectors. Lines show the exact "
        "variance.",
    ),
    "example-2": Drawing(
        (),
        lambda _: toy.figure_2(*toy.example_2()),
        "Every outcome of both procedures with three vectors, K = 2.",
    ),
    "synthetic-data": Drawing(("synthetic",), plots.sizes, "Samples per client."),
    "synthetic": Drawing(
        ("synthetic",),
        plots.online,
        "All samplers with the same, unbiased estimator. FedAvg's mean is shown for comparison; "
        "its variance has no closed form.",
    ),
    "synthetic-self-normalised": Drawing(
        ("synthetic-self-normalised",),
        plots.losses,
        "The same samplers, with every estimate divided by the sum of its coefficients.",
    ),
    "synthetic-budgets": Drawing(
        ("synthetic-budgets",),
        plots.against_budget,
        "Means over the rounds with exact metrics. The regret of draws with replacement may be "
        "negative, because its comparator is the capped minimum.",
    ),
    "synthetic-gamma": Drawing(
        ("synthetic-gamma",),
        plots.gamma,
        "K-Vib with θ = 0.3 and γ over eight orders of magnitude.",
    ),
    "synthetic-released": Drawing(
        ("synthetic-released",),
        plots.losses,
        "The behaviour of the authors' released scripts beside that of the paper. The scripts pair "
        "weights with the wrong updates and take no square root. The one probability above 1 that "
        "their solver leaves is not copied.",
    ),
    "femnist-data": Drawing(
        ("femnist-v1", "femnist-v2", "femnist-v3"),
        plots.sizes,
        "The three levels of imbalance, rebuilt.",
    ),
    "femnist-v1": Drawing(("femnist-v1",), plots.learning, "Training loss and test accuracy."),
    "femnist-v2": Drawing(("femnist-v2",), plots.learning, "Training loss and test accuracy."),
    "femnist-v3": Drawing(("femnist-v3",), plots.learning, "Training loss and test accuracy."),
    "femnist-self-normalised": Drawing(
        ("femnist-self-normalised",),
        plots.learning,
        "Every estimate is divided by the sum of its coefficients.",
    ),
    "femnist-released": Drawing(
        ("femnist-released",), plots.learning, "The behaviour of the authors' released scripts."
    ),
    "femnist-rates": Drawing(
        ("femnist-rates",),
        plots.best_rates,
        "Every sampler at its own best learning rate, chosen by the accuracy of the last tenth of "
        "the run. A dot is a seed.",
    ),
    "femnist-rates-10": Drawing(
        ("femnist-rates-10",), plots.best_rates, "The same samplers with half the budget."
    ),
    "text-data": Drawing(
        tuple(f"text-{task}-{sigma}" for task in ("agnews", "newswire") for sigma in (1, 2, 3)),
        plots.tails,
        "Samples per client in the three long tails.",
    ),
    **{
        f"text-agnews-{sigma}": Drawing(
            (f"text-agnews-{sigma}",), plots.learning, "Fine-tuning a pretrained encoder."
        )
        for sigma in (1, 2, 3)
    },
    **{
        f"text-newswire-{sigma}": Drawing(
            (f"text-newswire-{sigma}",), plots.losses, "Pre-training: loss of the next token."
        )
        for sigma in (1, 2, 3)
    },
}
"""Figures of the paper's claims."""

BEYOND: dict[str, Drawing] = {
    "beyond-synthetic": Drawing(
        ("beyond-synthetic",),
        plots.online,
        "Forecast follows the oracle. Memory does better than the oracle, which is the best only "
        "among samplers without memory.",
    ),
    "beyond-budgets": Drawing(
        ("beyond-budgets",),
        plots.forecasts_against_budget,
        "From few clients a round to all. If all clients are drawn, regret and variance are 0 and "
        "not shown.",
    ),
    "beyond-femnist": Drawing(
        tuple(f"beyond-femnist-{name}" for name in ("v1", "v2", "v3", "400")),
        plots.federations,
        "The tables above as a figure. A line stops where a run was lost or its variance is not "
        "known.",
    ),
    "beyond-synthetic-1-1": Drawing(
        ("beyond-synthetic-1-1",), plots.every_budget, "Local models and data differ too."
    ),
    "beyond-equal": Drawing(
        ("beyond-equal",), plots.gamma, "Nothing is known in advance, so norms have to be learned."
    ),
    "beyond-flat": Drawing(
        ("beyond-flat",),
        plots.gamma,
        "Weights are equal. Forecast knows the sizes and learns the slope.",
    ),
    "beyond-procedures": Drawing(
        ("procedures-synthetic", "procedures-femnist-400", "procedures-femnist-iid"),
        plots.ways_to_draw,
        "Variances are exact for independent draws, with and without memory. The others come from "
        "a Monte Carlo, and their jitter from round to round is mostly its error. The memory only "
        "watched the run: its β is learned, and the probabilities are those without it. Where "
        "“learning” was measured, its probabilities are those of a policy that learns from what "
        "its memory leaves.",
        variances.load,
        variances.Variances.origin,
    ),
}
"""Figures of kvib's own samplers."""

STRAGGLERS: dict[str, Drawing] = {
    "stragglers": Drawing(
        (straggler_figure.REFERENCE, *straggler_figure.SETTINGS),
        straggler_figure.stragglers,
        "The upper row shows the training loss at the end. The line is full participation without "
        "stragglers, whose step all of these estimate. The lower row shows the error of a step "
        "against the step of all clients.",
    ),
}
"""Figures of clients that do not answer."""

FIGURES = PAPER | BEYOND | STRAGGLERS

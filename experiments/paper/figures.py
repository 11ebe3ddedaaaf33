"""The figures of the pages: from which results, how they are drawn, what to say below them."""

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
        needs: the results it is made from.
        draw: makes the figure of them.
        caption: what to say below it.
        read: reads one of the results.
        origin: says where one of the results is from.
    """

    needs: tuple[str, ...]
    draw: plots.Draw
    caption: str
    read: Callable[[Path], Any] = tables.load
    origin: Callable[[Any], str] = origins.of_runs


def draw(name: str, results: Path, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Write one figure; its files."""
    drawing = FIGURES[name]

    def make() -> Figure:
        return drawing.draw([drawing.read(results / need) for need in drawing.needs])

    return figures.write(make, name, out, formats)


def missing(name: str, results: Path) -> list[str]:
    """Experiments without results that a figure needs."""
    return tables.missing(FIGURES[name].needs, results)


PAPER: dict[str, Drawing] = {
    "example-1": Drawing(
        (),
        lambda _: toy.figure_1(toy.example_1(seed=0)),
        "Squared error of 1,000 estimates of a sum of 100 random vectors; lines: exact variance.",
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
        "Everybody with the same, unbiased estimator; FedAvg's mean for comparison, whose variance "
        "has no closed form.",
    ),
    "synthetic-self-normalised": Drawing(
        ("synthetic-self-normalised",),
        plots.losses,
        "The same samplers, everybody divided by the sum of its coefficients.",
    ),
    "synthetic-budgets": Drawing(
        ("synthetic-budgets",),
        plots.against_budget,
        "Means over the rounds with exact metrics. The regret of draws with replacement may be "
        "negative: its comparator is the capped minimum.",
    ),
    "synthetic-gamma": Drawing(
        ("synthetic-gamma",),
        plots.gamma,
        "K-Vib with θ = 0.3 and γ over eight orders of magnitude.",
    ),
    "synthetic-released": Drawing(
        ("synthetic-released",),
        plots.losses,
        "What the authors' released scripts do (weights paired with the wrong updates, no square "
        "root; not the one probability above 1 that their solver leaves), beside what the paper "
        "says.",
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
        "Everybody divided by the sum of its coefficients.",
    ),
    "femnist-released": Drawing(
        ("femnist-released",), plots.learning, "The authors' released behaviour."
    ),
    "femnist-rates": Drawing(
        ("femnist-rates",),
        plots.best_rates,
        "Every sampler at its own best learning rate, by the accuracy of the last tenth of the "
        "run; a dot is a seed.",
    ),
    "femnist-rates-10": Drawing(
        ("femnist-rates-10",), plots.best_rates, "The same with half the budget."
    ),
    "text-data": Drawing(
        tuple(f"text-{task}-{sigma}" for task in ("agnews", "newswire") for sigma in (1, 2, 3)),
        plots.tails,
        "How many samples the three long tails give to whom.",
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
        "Forecasting follows the oracle; remembering leaves it behind: the oracle is the best only "
        "among those that forget.",
    ),
    "beyond-budgets": Drawing(
        ("beyond-budgets",),
        plots.forecasts_against_budget,
        "From few clients a round to all: with everybody drawn there is neither regret nor "
        "variance to show.",
    ),
    "beyond-femnist": Drawing(
        tuple(f"beyond-femnist-{name}" for name in ("v1", "v2", "v3", "400")),
        plots.federations,
        "The tables above, in short. A line stops where a run was lost, or its variance is not "
        "known.",
    ),
    "beyond-synthetic-1-1": Drawing(
        ("beyond-synthetic-1-1",), plots.every_budget, "Local models and data differ too."
    ),
    "beyond-equal": Drawing(
        ("beyond-equal",), plots.gamma, "Nothing to know in advance: norms have to be learned."
    ),
    "beyond-flat": Drawing(
        ("beyond-flat",),
        plots.gamma,
        "Equal weights; Forecast knows the sizes and learns the slope.",
    ),
    "beyond-procedures": Drawing(
        ("procedures-synthetic", "procedures-femnist-400", "procedures-femnist-iid"),
        plots.ways_to_draw,
        "Exact for independent draws, with and without memory; Monte Carlo for the others, whose "
        "jitter from round to round is mostly its error. The memory only watched the run: its β is "
        "learned, the probabilities are those without it; “learning”, where it was measured, has "
        "the probabilities of a policy that learns from what its memory leaves.",
        variances.load,
        variances.Variances.origin,
    ),
}
"""Figures of kvib's own samplers."""

STRAGGLERS: dict[str, Drawing] = {
    "stragglers": Drawing(
        (straggler_figure.REFERENCE, *straggler_figure.SETTINGS),
        straggler_figure.stragglers,
        "Above: where training ends; the line is full participation without stragglers, the step "
        "that all of these estimate. Below: how far a step is from that of all clients.",
    ),
}
"""Figures of clients that do not answer."""

FIGURES = PAPER | BEYOND | STRAGGLERS

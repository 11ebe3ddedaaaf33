"""The figure of stragglers: the last training loss, and the error of a step."""

from collections.abc import Callable

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvib.lab.seeds import interval, mean, per_seed
from kvib.lab.tables import Results

SETTINGS = {
    "stragglers": "at random",
    "stragglers-large": "the large ones more often",
    "stragglers-small": "the small ones more often",
}
"""Experiments, and the clients that are late in them."""
REFERENCE = "stragglers-none"
POLICIES = ("uniform", "K-Vib", "by size", "Forecast")
WAYS = {
    "": "unbiased, rates known",
    ", estimated": "rates estimated",
    ", average": "average of the answers",
}
"""The end of a label after the policy, and its meaning."""
COLOURS = ("#1b6ca8", "#7fb3d9", "#d95f02")
LARGEST_LOSS = 1.25
"""Larger losses are written, not drawn: they would press the others together."""

Measure = Callable[[Results, str], np.ndarray]


def end(results: Results, label: str) -> np.ndarray:
    """The mean training loss of the last tenth of the run, [seeds]."""
    return mean(results, label, "train_loss", since=results.last_tenth("train_loss"))


def error(results: Results, label: str) -> np.ndarray:
    """The mean of E‖d − D‖² over measured rounds, [seeds]; NaN where it has no closed form."""
    results.check("bias")
    square = pl.col("variance") + pl.col("bias") ** 2
    values = per_seed(results, label, "variance", square.cast(pl.Float64).mean())
    return values.astype(np.float64)


def measured_policies(results: Results, suffix: str) -> list[tuple[int, str]]:
    """Policies that have results, with their rows in the figure."""
    known = set(results.table["label"])
    return [(row, policy) for row, policy in enumerate(POLICIES) if policy + suffix in known]


def stragglers(given: list[Results]) -> Figure:
    """A column for each kind of straggler, with the training loss above the error of a step."""
    reference, *settings = given
    figure = Figure(figsize=(3.6 * len(settings), 4.6), layout="constrained")
    axes = figure.subplots(2, len(settings), sharey=True, sharex="row")
    goal = float(end(reference, "all clients").mean())
    for (losses, errors), results, who in zip(axes.T, settings, SETTINGS.values(), strict=True):
        losses.axvline(goal, color="black", linewidth=0.8, label="all clients, no stragglers")
        _dots(losses, results, end, LARGEST_LOSS)
        _dots(errors, results, error, np.inf)
        losses.set_title(f"30 % stragglers, {who}", fontsize=8)
        losses.set_xlabel("training loss at the end")
        losses.set_xlim(0.72, LARGEST_LOSS)
        errors.set(xlabel="E‖d − D‖², mean over the run", xscale="log")
    for axis in axes[:, 0]:
        axis.set_yticks(range(len(POLICIES)), POLICIES)
    seeds = settings[0].table["seed"].n_unique()
    subtitle = (
        f"mean of {seeds} seeds, interval of 95 %; the error of an average has no closed form"
    )
    figure.suptitle(f"Synthetic(0, 0), K = 10\n{subtitle}", fontsize=9)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _dots(axis: Axes, results: Results, measure: Measure, largest: float) -> None:
    """Draw a dot for each policy and way, and an arrow with the number if it is too large."""
    for k, (suffix, way) in enumerate(WAYS.items()):
        for row, policy in measured_policies(results, suffix):
            values, y = measure(results, policy + suffix), row + 0.22 * (k - 1)
            x, (low, high) = float(values.mean()), interval(values)
            if np.isnan(x):
                continue
            label = way if way not in axis.get_legend_handles_labels()[1] else None
            if x > largest:
                text = f"{x:.3g} →"
                axis.text(largest, y, text, color=COLOURS[k], ha="right", va="center", fontsize=7)
                x, low, high = np.nan, np.nan, np.nan
            low = max(low, 0.3 * x)  # a logarithmic axis shows positive values only
            axis.plot([low, high], [y, y], color=COLOURS[k], linewidth=1.0)
            axis.plot(x, y, "o", color=COLOURS[k], markersize=4, linestyle="none", label=label)

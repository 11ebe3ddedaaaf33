"""Draws figures from results: mean and deviation over seeds, with the number of seeds."""

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvib.lab.seeds import scaled, step
from kvib.lab.summary import measured, settings
from kvib.lab.tables import Results

COLOURS = {
    "uniform": "#9e9e9e",
    "uniform, without replacement": "#616161",
    "FedAvg (self-normalised)": "#000000",
    "Mabs": "#e7a000",
    "Vrb": "#a6761d",
    "Avare": "#7570b3",
    "OSMD": "#e7298a",
    "K-Vib": "#1b6ca8",
    "K-Vib, G = 0.01": "#7fb3d9",
    "by size": "#1b9e77",
    "optimal": "#d95f02",
    "Forecast": "#17becf",
    "Forecast, pivotal": "#41ab5d",
    "recommended": "#d62728",
}
DASHES = {"recommended": (0, (4, 2))}
"""Dashes for a line that often covers another: the covered line shows between the dashes."""


def panels(count: int, width: float = 3.4, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Make axes side by side. Without pyplot there is no global state and nothing to close.

    Args:
        count: The number of axes.
        width: The width of one of them in inches.
        height: Their height in inches.
    """
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, [figure.add_subplot(1, count, k + 1) for k in range(count)]


def colour(label: str, k: int) -> Any:
    """The colour of a sampler in all figures. An unknown label gets the k-th default colour."""
    return COLOURS.get(label, f"C{k}")


def seeds_of(table: pl.DataFrame) -> str:
    """The caption that says what lines and bands show, and of how many seeds."""
    counts = table.group_by("label").agg(pl.col("seed").n_unique())["seed"].to_list()
    low, high = min(counts), max(counts)
    seeds = f"{high} seeds" if low == high else f"{low} to {high} seeds"
    return "one seed" if high == 1 else f"mean ± standard deviation of {seeds}"


def curves(axis: Axes, results: Results, column: str, *, cumulative: bool = False) -> None:
    """Draw a line per sampler: the mean over seeds, ± one standard deviation.

    Args:
        axis: The axis, which must have its scale already.
        results: The results of one budget and one learning rate.
        column: The column to draw.
        cumulative: Whether to draw the sum over rounds. A measured value then also stands for the
            rounds until the next measurement.
    """
    results.check(column)
    table = results.table.filter(pl.col(column).is_not_null()).sort("round")
    if cumulative:
        sums = pl.col(column).cum_sum().over("label", "seed") * step(results, column)
        table = table.with_columns(sums.alias(column))
    for k, label in enumerate(results.labels):
        own = Results(table, results.about).where(label=label)
        own.check_alike()
        rows = own.table.group_by("round", maintain_order=True).agg(
            pl.col(column).mean().alias("mean"), pl.col(column).std().alias("std")
        )
        x, mean = rows["round"].to_numpy(), rows["mean"].to_numpy()
        if len(x) == 0:
            continue
        std = np.nan_to_num(rows["std"].cast(pl.Float64).to_numpy())
        shade = colour(label, k)
        dashes = DASHES.get(label, "-")
        axis.plot(x, mean, color=shade, linewidth=1.2, linestyle=dashes, label=label)
        low = mean - std
        if axis.get_yscale() == "log":  # a logarithmic axis shows positive values only
            low = np.maximum(low, 0.3 * mean)
        axis.fill_between(x, low, mean + std, color=shade, alpha=0.15, linewidth=0)
    axis.set_xlabel("round")


def finish(figure: Figure, results: Results, legend: int = 0) -> Figure:
    """Add the title with the number of seeds, and one legend for all panels.

    Args:
        figure: The figure.
        results: The results that it shows.
        legend: The number of the panel whose legend holds for all.
    """
    title = f"{results.experiment['title']}\n{seeds_of(results.table)}"
    figure.suptitle(title, fontsize=9)
    handles, labels = figure.axes[legend].get_legend_handles_labels()
    columns = min(6, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def everything(results: Results) -> Figure:
    """Draw all measurements: a row per budget and learning rate, a panel per column."""
    found, columns = list(settings(results)), measured(results)
    figure = Figure(figsize=(3.4 * len(columns), 2.7 * len(found)), layout="constrained")
    for row, (budget, rate, some) in enumerate(found):
        for at, measure in enumerate(columns):
            axis = figure.add_subplot(len(found), len(columns), row * len(columns) + at + 1)
            setting = f"K = {budget:g}, learning rate {rate:g}"
            how = f"cumulative {measure.title}{scaled(some, measure.column)}"
            name = how if measure.cumulative else measure.title
            axis.set(yscale=measure.scale, ylabel=name, title=setting)
            curves(axis, some, measure.column, cumulative=measure.cumulative)
    return finish(figure, results)

"""The plots of the pages: mean and deviation over seeds, with the number of seeds in the title."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvib.lab.plots import COLOURS, DASHES, colour, curves, finish, panels, seeds_of
from kvib.lab.seeds import rounds_to, scaled
from kvib.lab.tables import Results
from paper.comparing import late, lost, median
from paper.rates import TARGET, at_best_rates, best_rate
from paper.variances import LEARNING, WAYS, Variances

Draw = Callable[[list[Any]], Figure]


def online(given: list[Results]) -> Figure:
    """Curves of regret, variance and test loss."""
    [results] = given
    figure, (regret, variance, loss) = panels(3)
    regret_and_variance((regret, variance), results)
    loss.set(ylabel="test loss")
    curves(loss, results, "loss")
    return finish(figure, results)


def training(other: str, label: str) -> Draw:
    """Curves of the training loss and of one more column."""

    def drawing(given: list[Results]) -> Figure:
        [results] = given
        figure, (train, beside) = panels(2, width=4.2)
        known = results.table["train_loss"].drop_nulls().to_numpy()
        decades = len(known) > 0 and known.max() > 10 * known.min()
        train.set(ylabel="training loss", yscale="log" if decades else "linear")
        beside.set(ylabel=label)
        curves(train, results, "train_loss")
        curves(beside, results, other)
        return finish(figure, results)

    return drawing


losses = training("loss", "test loss")
learning = training("accuracy", "test accuracy")


def tails(given: list[Results]) -> Figure:
    """Sizes of the clients of both text tasks, largest first."""
    figure, axes = panels(2)
    names = ("documents of AG News", "blocks of newswire")
    for axis, name, results in zip(axes, names, (given[:3], given[3:]), strict=True):
        for sigma, own in enumerate(results, 1):
            samples = np.array(own.about["sizes"])
            tenth = len(samples) // 10
            share = samples[:tenth].sum() / samples.sum()
            label = f"σ = {sigma}: the largest {tenth} have {share:.0%}"
            axis.plot(np.arange(1, len(samples) + 1), samples, label=label, linewidth=1.2)
        axis.set(xscale="log", yscale="log", xlabel="client", ylabel=name)
        axis.legend(frameon=False)
    return figure


def means_of_budgets(results: Results) -> pl.DataFrame:
    """Means and deviations over seeds of the mean regret and variance of a round."""
    results.check("regret", "variance")
    return (
        results.table.filter(pl.col("variance").is_not_null())
        .group_by("label", "budget", "seed")
        .agg(pl.col("regret").mean(), pl.col("variance").mean())
        .group_by("label", "budget")
        .agg(
            pl.col("regret").mean(),
            pl.col("regret").std().alias("regret_std"),
            pl.col("variance").mean(),
            pl.col("variance").std().alias("variance_std"),
        )
        .sort("budget")
    )


def against_budget(given: list[Results]) -> Figure:
    """The regret of K-Vib, then regret and variance of all samplers, against K."""
    [results] = given
    means = means_of_budgets(results)
    figure, (own, regret, variance) = panels(3)
    for k, label in enumerate(results.labels):
        rows = means.filter(pl.col("label") == label)
        for axis, column in ((regret, "regret"), (variance, "variance")):
            _bars(axis, rows, column, label, colour(label, k))
        if label == "K-Vib":
            _bars(own, rows, "regret", label, colour(label, k))
    own.set(ylabel="mean dynamic regret of K-Vib", xlabel="budget K")
    regret.set(ylabel="mean dynamic regret", xlabel="budget K", yscale="symlog")
    regret.set_yscale("symlog", linthresh=1e-5)
    variance.set(ylabel="mean variance", xlabel="budget K", yscale="log")
    return finish(figure, results, legend=1)


def _bars(axis: Axes, rows: pl.DataFrame, column: str, label: str, shade: Any) -> None:
    axis.errorbar(
        rows["budget"].to_numpy(),
        rows[column].to_numpy(),
        rows[f"{column}_std"].fill_null(0).to_numpy(),
        color=shade,
        marker="o",
        markersize=3,
        linewidth=1.2,
        capsize=2,
        label=label,
    )


def forecasts_against_budget(given: list[Results]) -> Figure:
    """Regret and variance of our own samplers against K."""
    [results] = given
    means = means_of_budgets(results)
    figure, axes = panels(2, width=4.2)
    for axis, column in zip(axes, ("regret", "variance"), strict=True):
        shown = means.filter(pl.col(column) > 1e-12)  # if all clients are drawn there is none
        for k, label in enumerate(results.labels):
            rows = shown.filter(pl.col("label") == label)
            _bars(axis, rows, column, label, colour(label, k))
        axis.set(ylabel=f"mean {column} of a round", xlabel="budget K", xscale="log", yscale="log")
        budgets = sorted(set(shown["budget"]))
        axis.set_xticks(budgets, [f"{K:g}" for K in budgets])
        axis.set_xticks([], minor=True)
    return finish(figure, results)


def gamma(given: list[Results]) -> Figure:
    """Curves of regret and variance."""
    [results] = given
    figure, axes = panels(2, width=4.2)
    regret_and_variance(axes, results)
    return finish(figure, results)


def regret_and_variance(axes: Sequence[Axes], results: Results) -> None:
    """Draw regret and variance over the rounds in two panels."""
    regret, variance = axes
    how = scaled(results, "regret").replace(" (", "\n(")
    regret.set(yscale="log", ylabel=f"cumulative dynamic regret{how}")
    variance.set(yscale="log", ylabel="exact variance of the estimate")
    curves(regret, results, "regret", cumulative=True)
    curves(variance, results, "variance")


def every_budget(given: list[Results]) -> Figure:
    """Regret and variance, two panels for every K."""
    [results] = given
    budgets = results.experiment["budgets"]
    figure, axes = panels(2 * len(budgets))
    for k, K in enumerate(budgets):
        pair = axes[2 * k : 2 * k + 2]
        regret_and_variance(pair, results.where(budget=K))
        for axis in pair:
            axis.set_title(f"K = {K:g}", fontsize=8)
    return finish(figure, results)


def sizes(given: list[Results]) -> Figure:
    """Samples of every client, largest first."""
    figure, axes = panels(len(given), width=3.2)
    for axis, results in zip(axes, given, strict=True):
        samples = np.array(results.about["sizes"])
        axis.fill_between(np.arange(len(samples)), samples, step="mid", color=COLOURS["K-Vib"])
        tenth = samples[: max(1, len(samples) // 10)].sum() / samples.sum()
        task = results.experiment["task"]
        title = f"{task}: {len(samples):,} clients, {samples.sum():,} samples\n"
        axis.set_title(f"{title}the largest tenth holds {tenth:.0%}", fontsize=8)
        axis.set(xlabel="client, by size", ylabel="training samples", yscale="log")
    return figure


def best_rates(given: list[Results]) -> Figure:
    """Every sampler at its own best learning rate, and rounds to a target at every rate."""
    [results] = given
    figure, (curve, rounds) = panels(2, width=4.6, height=3.0)
    curve.set(ylabel="test accuracy at the best rate of each", ylim=(0.7, 1))
    curves(curve, at_best_rates(results), "accuracy")
    best, T = best_rate(results), results.experiment["rounds"]
    for k, (label, rate) in enumerate(best.items()):
        shade = colour(label, results.labels.index(label))
        for other in results.experiment["local"]["learning_rates"]:
            first = rounds_to(results.where(learning_rate=other), label, "accuracy", TARGET)
            face = shade if other == rate else "none"
            reached = first[np.isfinite(first)]
            rounds.scatter(reached, np.full(len(reached), k), s=14, color=shade, facecolors=face)
            never = np.full(len(first) - len(reached), T)
            rounds.scatter(never, np.full(len(never), k), marker="x", s=14, color=shade)
    rounds.set_yticks(range(len(best)), list(best))
    rounds.invert_yaxis()
    rounds.set(xlabel=f"rounds to {TARGET:.0%}: filled at the best rate, × never", xlim=(0, None))
    return finish(figure, results)


def federations(given: list[Results]) -> Figure:
    """Variance over uniform's and accuracy against K, two panels for every task."""
    figure = Figure(figsize=(3.0 * len(given), 4.6), layout="constrained")
    axes = figure.subplots(2, len(given), sharex=True)
    for (noise, accuracy), results in zip(axes.T, given, strict=True):
        budgets = results.experiment["budgets"]
        parts = [results.where(budget=K) for K in budgets]
        basis = np.array([median(part, "uniform", "variance") for part in parts])
        for k, label in enumerate(results.labels):
            look: dict[str, Any] = {
                "color": colour(label, k),
                "linestyle": DASHES.get(label, "-"),
                "marker": "o",
                "markersize": 3,
                "linewidth": 1.2,
                "label": label,
            }
            noise.plot(budgets, [median(part, label, "variance") for part in parts] / basis, **look)
            ends = [
                np.nan if lost(part, label) else late(part, label, "accuracy") for part in parts
            ]
            accuracy.plot(budgets, ends, **look)
        noise.set(xscale="log", ylim=(0, None))
        noise.set_title(results.experiment["task"], fontsize=8)
        accuracy.set_xlabel("budget K")
        accuracy.set_xticks(budgets, [f"{K:g}" for K in budgets])
        accuracy.set_xticks([], minor=True)
    figure.suptitle(f"From few clients a round to many\n{seeds_of(given[0].table)}", fontsize=9)
    axes[0, 0].set_ylabel("variance / uniform's")
    axes[1, 0].set_ylabel(f"accuracy after {given[0].experiment['rounds']} rounds")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False
    )
    return figure


def ways_to_draw(given: list[Variances]) -> Figure:
    """Variance of every way to draw over that of independent draws, a panel per task."""
    figure, axes = panels(len(given), width=3.2)
    for axis, variances in zip(axes, given, strict=True):
        for way in variances.ways:  # files may lack ways: a colour belongs to a way, not to a place
            shade, dashes = f"C{WAYS.index(way)}", "--" if way in LEARNING else "-"
            ratio = variances.ratio(way)
            axis.plot(variances.rounds, ratio, color=shade, linestyle=dashes, label=way)
        axis.axhline(1, color="black", linewidth=0.6)
        axis.set_title(f"{variances.task}, K = {variances.about['options']['budget']:g}")
        axis.set(xlabel="round", ylim=(0, None))
    axes[0].set_ylabel("variance /\nthat of independent draws")
    figure.suptitle("The same probabilities and updates, drawn otherwise\none seed", fontsize=9)
    lines = {line.get_label(): line for axis in axes for line in axis.lines[:-1]}
    figure.legend(handles=lines.values(), loc="outside lower center", ncols=5, frameon=False)
    return figure

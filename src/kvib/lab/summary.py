"""Summarises results in one table: a row per sampler, budget and learning rate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from kvib.lab.seeds import cumulative, mean, per_seed, spread
from kvib.lab.tables import Results


def _last(results: Results, label: str, column: str) -> np.ndarray:
    """The last measured value of every seed, [seeds]."""
    return per_seed(results, label, column, pl.col(column).drop_nulls().last().cast(pl.Float64))


@dataclass(frozen=True)
class Measure:
    """A column of the results, and the one number of a run that summarises it."""

    column: str
    """The name of the column."""
    title: str
    """The name of the column in figures and tables."""
    which: str
    """The word that says which number summarises a run: last, mean or total."""
    of_a_run: Callable[[Results, str, str], np.ndarray]
    """The function that computes this number for every seed."""
    scale: str = "linear"
    """The scale of the vertical axis."""
    cumulative: bool = False
    """Whether figures show the sum over rounds."""


MEASURES = (
    Measure("loss", "test loss", "last", _last),
    Measure("accuracy", "test accuracy", "last", _last),
    Measure("train_loss", "training loss", "last", _last),
    Measure("variance", "variance", "mean", mean, scale="log"),
    Measure("regret", "regret", "total", cumulative, scale="log", cumulative=True),
)


def measured(results: Results) -> list[Measure]:
    """The measures that the results hold."""
    present = (m for m in MEASURES if m.column in results.table.columns)
    return [m for m in present if results.table[m.column].is_not_null().any()]


def settings(results: Results) -> Iterator[tuple[float, float, Results]]:
    """Yield every budget and learning rate with its results."""
    pairs = results.table.select("budget", "learning_rate").unique().sort("budget", "learning_rate")
    for budget, rate in pairs.iter_rows():
        yield budget, rate, results.where(budget=budget, learning_rate=rate)


def summary(results: Results) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of a table, each number as mean ± standard deviation over seeds."""
    columns = measured(results)
    rows = [
        [label, f"{budget:g}", f"{rate:g}", *(_cell(own, label, m) for m in columns)]
        for budget, rate, some in settings(results)
        for label in results.labels
        if not (own := some.where(label=label)).table.is_empty()
    ]
    titles = (f"{m.which} {m.title}" for m in columns)
    return ["sampler", "K", "learning rate", *titles], rows


def _cell(own: Results, label: str, measure: Measure) -> str:
    """The text of one cell, a dash if the sampler was not measured."""
    if own.table[measure.column].is_null().all():
        return "–"
    return spread(measure.of_a_run(own, label, measure.column), done="finished")

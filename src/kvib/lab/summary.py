"""What an experiment found, in one table: a row per sampler, budget and learning rate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from kvib.lab.seeds import cumulative, mean, per_seed, spread
from kvib.lab.tables import Results


def _last(results: Results, label: str, column: str) -> np.ndarray:
    return per_seed(results, label, column, pl.col(column).drop_nulls().last().cast(pl.Float64))


@dataclass(frozen=True)
class Measure:
    """A column of the results, and the one number of a run that stands for it."""

    column: str
    title: str
    which: str
    """Which number of its rounds `of_a_run` gives."""
    of_a_run: Callable[[Results, str, str], np.ndarray]
    scale: str = "linear"
    cumulative: bool = False


MEASURES = (
    Measure("loss", "test loss", "last", _last),
    Measure("accuracy", "test accuracy", "last", _last),
    Measure("train_loss", "training loss", "last", _last),
    Measure("variance", "variance", "mean", mean, scale="log"),
    Measure("regret", "regret", "total", cumulative, scale="log", cumulative=True),
)


def measured(results: Results) -> list[Measure]:
    """Those that the experiment has."""
    known = (m for m in MEASURES if m.column in results.table.columns)
    return [m for m in known if results.table[m.column].is_not_null().any()]


def settings(results: Results) -> Iterator[tuple[float, float, Results]]:
    """Every budget and learning rate, with its rounds."""
    pairs = results.table.select("budget", "learning_rate").unique().sort("budget", "learning_rate")
    for budget, rate in pairs.iter_rows():
        yield budget, rate, results.where(budget=budget, learning_rate=rate)


def summary(results: Results) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: the end of runs, or all of their rounds, as mean ± deviation over seeds."""
    columns = measured(results)
    rows = [
        [label, f"{budget:g}", f"{rate:g}", *(_told(own, label, m) for m in columns)]
        for budget, rate, some in settings(results)
        for label in results.labels
        if not (own := some.where(label=label)).table.is_empty()
    ]
    titles = (f"{m.which} {m.title}" for m in columns)
    return ["sampler", "K", "learning rate", *titles], rows


def _told(own: Results, label: str, measure: Measure) -> str:
    if own.table[measure.column].is_null().all():
        return "–"
    return spread(measure.of_a_run(own, label, measure.column), done="finished")

"""Comparisons of samplers: ratios by seed, lost runs, and the words for both."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kvib.lab.seeds import interval, mean, per_seed, spread
from kvib.lab.tables import Results


def late(results: Results, label: str, column: str) -> float:
    """The mean over the last tenth of the run and over all seeds."""
    return float(mean(results, label, column, since=results.last_tenth(column)).mean())


def median(results: Results, label: str, column: str) -> float:
    """The median over measured rounds, averaged over seeds.

    It is NaN if there are none, or if the run was lost: the noise of a model that has forgotten
    everything is no measure.
    """
    if label not in results.labels or lost(results, label):
        return np.nan
    values = per_seed(results, label, column, pl.col(column).median())
    return float(np.mean(values.astype(np.float64)))


def lost(results: Results, label: str) -> int:
    """The number of seeds that ended early, or below half of the best accuracy of all samplers."""
    end, best = results.measured("accuracy")[-1], results.table["accuracy"].max()
    accurate = pl.col("accuracy").drop_nulls().last() >= pl.lit(best) / 2
    runs = results.where(label=label).table.sort("round").group_by("seed")
    kept = runs.agg(kept=(pl.col("round").max() >= end) & accurate)["kept"].sum()
    return results.table["seed"].n_unique() - int(kept)


def over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a/b for every seed; NaN if both are infinite, since neither is better."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient: np.ndarray = a / b
    return quotient


def each(values: np.ndarray, form: str = ".2f") -> str:
    """The values of all seeds in words; – if a value is undecided."""
    shown = ("–" if np.isnan(value) else f"{value:{form}}" for value in values)
    return f"seeds: {', '.join(shown)}"


def within(ratios: list[np.ndarray]) -> str:
    """A remark if the seeds are too few to distinguish any of these ratios from 1."""
    spans = [interval(ratio) for ratio in ratios]
    if all(-np.inf < low <= 1 <= high for low, high in spans):
        return "none differs from 1 by more than its seeds do (95 %)"
    return ""


def listed(values: dict[str, np.ndarray], form: str = ".3g", done: str = "reached") -> str:
    """The mean ± standard deviation of every sampler, in words."""
    return "; ".join(f"{label} {spread(numbers, form, done)}" for label, numbers in values.items())


def count(values: Mapping[Any, np.ndarray]) -> str:
    """The number of seeds, in words."""
    many = max(map(len, values.values()))
    return "one seed" if many == 1 else f"{many} seeds"

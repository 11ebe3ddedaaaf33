"""Samplers beside each other: ratios of seeds, runs that were lost, and words for both."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kvib.lab.seeds import interval, mean, per_seed, spread
from kvib.lab.tables import Results


def late(results: Results, label: str, column: str) -> float:
    """The mean over the last tenth of the run, of all seeds."""
    return float(mean(results, label, column, since=results.last_tenth(column)).mean())


def usual(results: Results, label: str, column: str) -> float:
    """The median over measured rounds, of all seeds; NaN where there are none, or the run was lost:
    the noise of a model that has forgotten everything is no measure."""
    if label not in results.labels or lost(results, label):
        return np.nan
    values = per_seed(results, label, column, pl.col(column).median())
    return float(np.mean(values.astype(np.float64)))


def lost(results: Results, label: str) -> int:
    """How many seeds ended early, or with less than half of the best accuracy of all samplers."""
    end, best = results.measured("accuracy")[-1], results.table["accuracy"].max()
    accurate = pl.col("accuracy").drop_nulls().last() >= pl.lit(best) / 2
    runs = results.where(label=label).table.sort("round").group_by("seed")
    kept = runs.agg(kept=(pl.col("round").max() >= end) & accurate)["kept"].sum()
    return results.table["seed"].n_unique() - int(kept)


def over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a/b of every seed; NaN where both are infinite: neither is better."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient: np.ndarray = a / b
    return quotient


def each(values: np.ndarray, form: str = ".2f") -> str:
    """Every seed's; – where it is undecided."""
    told = ("–" if np.isnan(value) else f"{value:{form}}" for value in values)
    return f"seeds: {', '.join(told)}"


def within(ratios: list[np.ndarray]) -> str:
    """Whether so few seeds can tell any of these from 1."""
    spans = [interval(ratio) for ratio in ratios]
    if all(-np.inf < low <= 1 <= high for low, high in spans):
        return "none differs from 1 by more than its seeds do (95 %)"
    return ""


def listed(values: dict[str, np.ndarray], form: str = ".3g", done: str = "reached") -> str:
    """The mean ± standard deviation of every sampler."""
    return "; ".join(f"{label} {spread(numbers, form, done)}" for label, numbers in values.items())


def count(values: Mapping[Any, np.ndarray]) -> str:
    """How many there were."""
    many = max(map(len, values.values()))
    return "one seed" if many == 1 else f"{many} seeds"

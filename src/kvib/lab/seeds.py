"""Statistics over seeds: one number per seed of a sampler, means, deviations and intervals."""

import numpy as np
import polars as pl

from kvib.lab.tables import EVERY, MissingResultsError, Results

T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5 % with 1 to 30 degrees of freedom.

With more degrees of freedom the last value is used, which makes intervals a little too wide.
"""


def per_seed(results: Results, label: str, column: str, value: pl.Expr) -> np.ndarray:
    """One number for every seed of a sampler, seeds ascending, [seeds].

    Args:
        results: The results of one budget and one learning rate.
        label: The label of the sampler.
        column: The column that the number needs, which must have been measured.
        value: The number as an expression over the rows of a seed.
    """
    results.check(column)
    rows = results.where(label=label)
    if rows.table.is_empty():
        raise MissingResultsError(f"the results hold no rounds of {label}")
    rows.check_alike()
    return rows.table.group_by("seed").agg(value.alias("value")).sort("seed")["value"].to_numpy()


def total(results: Results, label: str, column: str, since: int = 0) -> np.ndarray:
    """The sum over measured rounds from `since` on, [seeds].

    It is infinite for a run that ended early or has gaps, since that run has fewer values to sum.
    """
    due = (results.measured(column) >= since).sum()
    values = pl.col(column).filter(pl.col("round") >= since).drop_nulls().cast(pl.Float64)
    whole = pl.when(values.len() == due).then(values.sum()).otherwise(np.inf)
    return per_seed(results, label, column, whole)


def mean(results: Results, label: str, column: str, since: int = 0) -> np.ndarray:
    """The mean over measured rounds from `since` on, [seeds]. It is infinite where `total` is."""
    return total(results, label, column, since) / (results.measured(column) >= since).sum()


def cumulative(results: Results, label: str, column: str, since: int = 0) -> np.ndarray:
    """The sum over all rounds from `since` on, [seeds].

    It is the sum over the measured rounds, times the rounds from one measurement to the next.
    """
    return total(results, label, column, since) * step(results, column)


def step(results: Results, column: str) -> int:
    """The number of rounds from one measurement of a column to the next."""
    rounds: int = results.experiment[EVERY[column]]
    return rounds


def scaled(results: Results, column: str) -> str:
    """A note for the name of a `cumulative` column, empty if every round was measured."""
    rounds = step(results, column)
    return "" if rounds == 1 else f" (exact every {rounds} rounds, times {rounds})"


def rounds_to(results: Results, label: str, column: str, target: float) -> np.ndarray:
    """The first round of every seed in which the column reached the target, [seeds].

    Accuracy reaches it from below, losses from above. The round is infinite for a seed that did
    not reach the target.
    """
    met = pl.col(column) >= target if column == "accuracy" else pl.col(column) <= target
    first = pl.col("round").filter(met).min().cast(pl.Float64).fill_null(np.inf)
    return per_seed(results, label, column, first)


def spread(values: np.ndarray, form: str = ".3g", done: str = "reached") -> str:
    """Format mean ± standard deviation, or the number of finite values if some are infinite.

    Args:
        values: One number per seed, [seeds].
        form: The format of a number.
        done: The verb for the seeds with a finite number.
    """
    if not np.isfinite(values).all():
        return f"{done} by {np.isfinite(values).sum()} of {len(values)} seeds"
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{values.mean():{form}} ± {values.std(ddof=1):{form}}"


def interval(values: np.ndarray) -> tuple[float, float]:
    """A 95 % interval for the mean, if the values of seeds are normally distributed.

    It is (−∞, ∞) for a single seed and where a value is infinite.
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return -np.inf, np.inf
    freedom = min(len(values) - 1, len(T_95))
    half = T_95[freedom - 1] * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def ranged(values: np.ndarray, form: str = ".2f", done: str = "reached") -> str:
    """Format the mean with its 95 % interval, or as `spread` does where there is no interval."""
    low, high = interval(values)
    if not np.isfinite(low):
        return spread(values, form, done)
    return f"{values.mean():{form}} ({low:{form}} to {high:{form}})"

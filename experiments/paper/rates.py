"""Every sampler at its own best learning rate, as a user would choose it."""

import polars as pl

from kvib.lab.tables import Results
from paper.comparing import lost

TARGET = 0.95
"""Rounds are counted until this test accuracy."""


def final_accuracy(results: Results) -> pl.DataFrame:
    """Mean accuracy over the last tenth of the rounds; a diverged run counts as 0."""
    late = pl.col("round") >= results.last_tenth("accuracy")
    per_run = results.table.group_by("label", "learning_rate", "seed").agg(
        pl.col("accuracy").filter(late).mean().fill_null(0.0)
    )
    return per_run.group_by("label", "learning_rate").agg(pl.col("accuracy").mean())


def best_rate(results: Results) -> dict[str, float]:
    """The learning rate at which each sampler that was run ends most accurate."""
    last = final_accuracy(results).sort("accuracy", "learning_rate")
    best = dict(zip(last["label"].to_list(), last["learning_rate"].to_list(), strict=True))
    return {label: best[label] for label in results.labels if label in best}


def at_best_rates(results: Results) -> Results:
    """The runs of every sampler at its own best learning rate."""
    own = [
        results.where(label=label, learning_rate=rate).table
        for label, rate in best_rate(results).items()
    ]
    return Results(pl.concat(own), results.about)


def lost_at_rates(results: Results) -> dict[str, list[int]]:
    """The number of lost runs of every sampler, rate by rate."""
    parts = [results.where(learning_rate=r) for r in results.experiment["local"]["learning_rates"]]
    return {label: [lost(part, label) for part in parts] for label in results.labels}

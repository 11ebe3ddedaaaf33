"""Collects the finished runs of an experiment into one table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvib.lab.experiment import Experiment, Run
from kvib.lab.folders import FORMAT, read_part, read_rounds, torn_run
from kvib.lab.runs import make_task, outcome
from kvib.lab.tables import Results, file, load
from kvib.sim.records import SCALARS

if TYPE_CHECKING:
    import polars as pl

KEYS = ["label", "budget", "learning_rate", "seed", "round"]
"""Columns that together identify a row."""


def collect(
    experiment: Experiment,
    runs: Sequence[Run],
    out: Path,
    path: Path,
    partial: bool = False,
    tasks: Path | None = None,
) -> Results:
    """Write the finished runs under `out` as path.parquet and path.json, and return them.

    The table has single precision and leaves out the drawn clients. The JSON file holds the
    configuration, environments, seconds, sizes of the clients and the names of missing runs.

    Args:
        experiment: The experiment.
        runs: Its runs, in the order of the rows.
        out: The folder of the experiments' folders.
        path: The path of both files, without their suffixes.
        partial: Whether some runs may be unfinished. Runs that are not under `out` then stay as
            they were collected before.
        tasks: The folder of prepared tasks, from which the sizes of the clients are read. None
            means that the data are read.
    """
    import polars as pl

    parts, origins, missing = [], {}, []
    earlier = _earlier(path, experiment) if partial else None
    for run in runs:
        folder = out / experiment.name / run.name
        ended = outcome(folder, run)
        if ended is None or not ended.finished:
            if earlier is not None and run.name in earlier.about["runs"]:
                parts.append(_rows(earlier, run))
                origins[run.name] = earlier.about["runs"][run.name]
            else:
                missing.append(run.name)
            continue
        parts.append(_part(run, read_rounds(folder)))
        about = read_part(folder / "environment.json")
        if not about:
            raise torn_run(folder, "there is no environment.json")
        times = {"seconds": round(ended.seconds, 1), "diverged": ended.diverged}
        origins[run.name] = {**times, **about}
    if missing and not (partial and parts):
        raise ValueError(
            f"{experiment.name}: {len(missing)} runs are not finished ({missing[0]}, …); run it "
            "again to go on"
        )
    table = pl.concat(parts, how="diagonal")
    kept = [c for c in table.columns if c in KEYS or not table[c].is_null().all()]
    table = table.select(kept)
    sizes = np.sort(make_task(experiment.task, tasks).train.sizes)[::-1].tolist()
    about = {"format": FORMAT, "experiment": asdict(experiment), "runs": origins, "sizes": sizes}
    about["missing"] = missing
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(file(path, "parquet"), compression="zstd", compression_level=19)
    text = json.dumps(about, ensure_ascii=False) + "\n"
    file(path, "json").write_text(text, encoding="utf-8")
    return Results(table, about)


def _earlier(path: Path, experiment: Experiment) -> Results | None:
    """The results that were collected before, None if there are none.

    Samplers, budgets, learning rates and seeds may differ, because they make other runs. Any other
    difference is an error.
    """
    if not file(path, "json").exists():
        return None
    results = load(path)
    then = results.experiment
    differs = [
        field.name
        for field in fields(experiment)
        if field.name not in ("title", "samplers", "budgets", "seeds", "local")
        and then.get(field.name, field.default) != asdict(experiment)[field.name]
    ]
    lines = {line["label"]: line for line in then["samplers"]}
    differs += [
        f"sampler {line.label!r}"
        for line in experiment.samplers
        for name, value in asdict(line).items()
        if name != "seeds" and line.label in lines and lines[line.label].get(name, value) != value
    ]
    rates = {"learning_rates": None}
    if then["local"] | rates != asdict(experiment.local) | rates:
        differs.append("local")
    if differs:
        raise ValueError(
            f"{path} holds results of another configuration ({', '.join(differs)} differ); "
            "play all runs of the experiment, or give another --results"
        )
    return results


def _rows(results: Results, run: Run) -> "pl.DataFrame":
    """The rows of one run in collected results."""
    rows = results.where(label=run.sampler.label, budget=run.budget, seed=run.seed)
    return rows.where(learning_rate=run.learning_rate).table


def _part(run: Run, rounds: "pl.DataFrame") -> "pl.DataFrame":
    """The rounds of one run as rows of its experiment's table."""
    import polars as pl

    keys = [
        pl.lit(run.sampler.label).alias("label"),
        pl.lit(run.budget).alias("budget"),
        pl.lit(run.learning_rate).alias("learning_rate"),
        pl.lit(run.seed, pl.Int64).alias("seed"),
    ]
    numbers = [pl.col(name).fill_nan(None).cast(pl.Float32) for name in SCALARS[2:]]
    regret = (
        (pl.col("sampling_cost") - pl.col("optimal_sampling_cost")).fill_nan(None).cast(pl.Float32)
    )
    counts = pl.col("round", "clients").cast(pl.Int32)
    return rounds.select(*keys, counts, *numbers, regret.alias("regret"))

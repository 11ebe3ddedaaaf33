"""Finished runs → the table of their experiment."""

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
"""Columns that name a row."""


def collect(
    experiment: Experiment,
    runs: Sequence[Run],
    out: Path,
    path: Path,
    partial: bool = False,
    tasks: Path | None = None,
) -> Results:
    """Finished runs under `out` → path.parquet (single precision, without the drawn clients) and
    path.json (configuration, environments, seconds, sizes of the clients, what is missing).

    With `partial`, runs that are not under `out` stay as they were collected before.
    """
    import polars as pl

    parts, told, missing = [], {}, []
    earlier = _earlier(path, experiment) if partial else None
    for run in runs:
        folder = out / experiment.name / run.name
        ended = outcome(folder, run)
        if ended is None or not ended.finished:
            if earlier is not None and run.name in earlier.about["runs"]:
                parts.append(_rows(earlier, run))
                told[run.name] = earlier.about["runs"][run.name]
            else:
                missing.append(run.name)
            continue
        parts.append(_part(run, read_rounds(folder)))
        about = read_part(folder / "environment.json")
        if not about:
            raise torn_run(folder, "there is no environment.json")
        told[run.name] = {"seconds": round(ended.seconds, 1), "diverged": ended.diverged, **about}
    if missing and not (partial and parts):
        raise ValueError(
            f"{experiment.name}: {len(missing)} runs are not finished ({missing[0]}, …); run it "
            "again to go on"
        )
    table = pl.concat(parts, how="diagonal")
    kept = [c for c in table.columns if c in KEYS or not table[c].is_null().all()]
    table = table.select(kept)
    sizes = np.sort(make_task(experiment.task, tasks).train.sizes)[::-1].tolist()
    about = {"format": FORMAT, "experiment": asdict(experiment), "runs": told, "sizes": sizes}
    about["missing"] = missing
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(file(path, "parquet"), compression="zstd", compression_level=19)
    text = json.dumps(about, ensure_ascii=False) + "\n"
    file(path, "json").write_text(text, encoding="utf-8")
    return Results(table, about)


def _earlier(path: Path, experiment: Experiment) -> Results | None:
    """What was collected before, if it was played as this experiment says.

    Other samplers, budgets, rates and seeds make other runs; everything else must agree.
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
    """The rounds of one run in collected results."""
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

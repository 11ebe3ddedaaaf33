"""Rounds as tables: one file per run, one per experiment."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvib import storage
from kvib.lab.experiment import Experiment, Run
from kvib.sim import records
from kvib.sim.records import RAGGED, SCALARS, Record

if TYPE_CHECKING:
    import polars as pl

FORMAT = 1
KEYS = ["label", "budget", "learning_rate", "seed", "round"]


def write_rounds(folder: Path, rows: Sequence[Record]) -> None:
    """`rounds.parquet`; `rounds.npz` on a machine without a table library."""
    if find_spec("polars") is None:
        header = storage.header("rounds", {})
        storage.write(folder / "rounds.npz", {"header": header, **records.packed(rows)}, True)
        return
    temporary = folder / "rounds.tmp"
    _frame(rows).write_parquet(temporary)
    os.replace(temporary, folder / "rounds.parquet")


def read_rounds(folder: Path) -> "pl.DataFrame":
    """The rounds of one run, whoever wrote them."""
    import polars as pl

    if (folder / "rounds.parquet").exists():
        return pl.read_parquet(folder / "rounds.parquet")
    _, arrays = storage.read(folder / "rounds.npz", "rounds")
    return _frame(records.unpacked(arrays))


def _frame(rows: Sequence[Record]) -> "pl.DataFrame":
    import polars as pl

    columns: dict[str, Any] = {name: [getattr(r, name) for r in rows] for name in SCALARS}
    columns |= {name: [getattr(r, name).tolist() for r in rows] for name in RAGGED}
    kinds: dict[str, Any] = {"ids": pl.List(pl.Int64), "norms": pl.List(pl.Float64)}
    return pl.DataFrame(columns, schema_overrides=kinds)


@dataclass(frozen=True)
class Results:
    """All rounds of an experiment, and where they are from."""

    table: "pl.DataFrame"
    about: dict[str, Any]

    @property
    def labels(self) -> list[str]:
        """Samplers in the order of the experiment file."""
        return [line["label"] for line in self.about["experiment"]["samplers"]]

    def paired(self) -> "Results":
        """Only seeds that every sampler has, those with seeds of their own apart."""
        import polars as pl

        own = [s["label"] for s in self.about["experiment"]["samplers"] if s["seeds"] is not None]
        common = self.table.filter(~pl.col("label").is_in(own))
        seeds = common.group_by("seed").agg(pl.col("label").n_unique())
        whole = seeds.filter(pl.col("label") == len(self.labels) - len(own))["seed"]
        return Results(self.table.filter(pl.col("seed").is_in(whole.implode())), self.about)


def collect(
    experiment: Experiment, runs: Sequence[Run], out: Path, path: Path, partial: bool = False
) -> Results:
    """Finished runs under `out` → path.parquet (single precision, without the drawn clients) and
    path.json (configuration, environments, seconds, sizes of the clients, what is missing)."""
    import polars as pl

    from kvib.lab.runs import make_task, outcome

    parts, told, missing = [], {}, []
    for run in runs:
        folder = out / experiment.name / run.name
        ended = outcome(folder, run)
        if ended is None or not ended.finished:
            missing.append(run.name)
            continue
        rounds = read_rounds(folder)
        keys = [
            pl.lit(run.sampler.label).cast(pl.Categorical).alias("label"),
            pl.lit(run.budget).alias("budget"),
            pl.lit(run.learning_rate).alias("learning_rate"),
            pl.lit(run.seed).alias("seed"),
        ]
        numbers = [pl.col(name).fill_nan(None).cast(pl.Float32) for name in SCALARS[2:]]
        regret = (pl.col("cost") - pl.col("optimal_cost")).fill_nan(None).cast(pl.Float32)
        parts.append(
            rounds.select(*keys, "round", "clients", *numbers, regret.alias("regret")).cast(
                {"round": pl.Int32, "clients": pl.Int32, "label": pl.String}
            )
        )
        about = json.loads((folder / "environment.json").read_text())
        told[run.name] = {"seconds": round(ended.seconds, 1), "diverged": ended.diverged, **about}
    if missing and not (partial and parts):
        raise ValueError(
            f"{experiment.name}: {len(missing)} runs are not finished ({missing[0]}, …); run it "
            "again to go on"
        )
    table = pl.concat(parts)
    table = table.select([c for c in table.columns if not table[c].is_null().all()])
    sizes = np.sort(make_task(experiment.task, None).train.sizes)[::-1].tolist()
    about = {"format": FORMAT, "experiment": asdict(experiment), "runs": told, "sizes": sizes}
    about["missing"] = missing
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(path.with_suffix(".parquet"), compression="zstd", compression_level=19)
    path.with_suffix(".json").write_text(json.dumps(about, ensure_ascii=False) + "\n")
    return Results(table, about)


def load(path: Path) -> Results:
    """What `collect` wrote."""
    import polars as pl

    try:
        about = json.loads(path.with_suffix(".json").read_text())
        table = pl.read_parquet(path.with_suffix(".parquet"))
    except FileNotFoundError as error:
        raise ValueError(
            f"there are no results at {path}; make them with: kvib run experiments/{path.name}.toml"
        ) from error
    except (json.JSONDecodeError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path} are not whole results ({error}); make them again") from error
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path}.json is of format {about.get('format')}, this kvib reads {FORMAT}; make the "
            "results again, or install the kvib that wrote them"
        )
    return Results(table, about)

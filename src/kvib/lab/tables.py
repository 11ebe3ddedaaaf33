"""Rounds as tables: one file per run, one per experiment."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
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
EVERY = {
    "loss": "evaluate_every",
    "accuracy": "evaluate_every",
    "train_loss": "train_loss_every",
    "variance": "exact_every",
    "bias": "exact_every",
    "regret": "exact_every",
}
"""The settings of an experiment that decide whether these are measured."""


def write_rounds(folder: Path, rows: Sequence[Record]) -> None:
    """`rounds.parquet`; `rounds.npz` on a machine without a table library."""
    if find_spec("polars") is None:
        arrays = storage.headed("rounds", {}, records.packed(rows))
        storage.write(folder / "rounds.npz", arrays, compressed=True)
        return
    temporary = folder / "rounds.tmp"
    _frame(rows).write_parquet(temporary)
    os.replace(temporary, folder / "rounds.parquet")


def read_rounds(folder: Path) -> "pl.DataFrame":
    """The rounds of one run, whoever wrote them."""
    import polars as pl

    path = folder / "rounds.npz"
    if path.exists():
        _, arrays = storage.read(path, "rounds", (*SCALARS, *RAGGED), compressed=True)
        with storage.whole("rounds", path):
            return _frame(records.unpacked(arrays))
    try:
        frame = pl.read_parquet(folder / "rounds.parquet")
    except (FileNotFoundError, pl.exceptions.PolarsError) as error:
        raise torn_run(folder, f"rounds.parquet: {error}") from error
    blank = Record(round=0, clients=0)
    absent = [name for name in SCALARS if name not in frame.columns]  # an older kvib's
    filled = frame.with_columns(pl.lit(getattr(blank, name)).alias(name) for name in absent)
    return filled.select(*SCALARS, *RAGGED)


def _frame(rows: Sequence[Record]) -> "pl.DataFrame":
    import polars as pl

    columns: dict[str, Any] = {name: [getattr(r, name) for r in rows] for name in SCALARS}
    columns |= {name: [getattr(r, name).tolist() for r in rows] for name in RAGGED}
    kinds: dict[str, Any] = {"ids": pl.List(pl.Int64), "norms": pl.List(pl.Float64)}
    return pl.DataFrame(columns, schema_overrides=kinds)


class AbsentError(ValueError):
    """Results do not hold what was asked for."""


@dataclass(frozen=True)
class Results:
    """All rounds of an experiment, and where they are from."""

    table: "pl.DataFrame"
    about: dict[str, Any]

    @property
    def experiment(self) -> dict[str, Any]:
        """What was played, as its file said."""
        given: dict[str, Any] = self.about["experiment"]
        return given

    @property
    def labels(self) -> list[str]:
        """Samplers in the order of the experiment file."""
        return [line["label"] for line in self.experiment["samplers"]]

    def where(self, **values: Any) -> "Results":
        """Only rows with these values, such as where(budget=10, label="K-Vib")."""
        import polars as pl

        rows = [pl.col(name) == value for name, value in values.items()]
        return Results(self.table.filter(*rows), self.about)

    def of(self, *labels: str) -> "Results":
        """Of these samplers, as if the others had not been asked for."""
        import polars as pl

        kept = [line for line in self.experiment["samplers"] if line["label"] in labels]
        about = {**self.about, "experiment": {**self.experiment, "samplers": kept}}
        return Results(self.table.filter(pl.col("label").is_in(labels)), about)

    def check_alike(self) -> None:
        """That every row is of one budget and one learning rate: others are not to be averaged."""
        for name in ("budget", "learning_rate"):
            found = self.table[name].unique().sort().to_list()
            if len(found) > 1:
                raise ValueError(f"{name} of the rows is {found}; choose one with where({name}=…)")

    def paired(self) -> "Results":
        """Only seeds that every sampler has played whole, those with seeds of their own apart."""
        import polars as pl

        given = self.experiment
        own = [s["label"] for s in given["samplers"] if s["seeds"] is not None]
        wanted = len(given["budgets"]) * len(given["local"]["learning_rates"])
        wanted *= len(self.labels) - len(own)
        common = self.table.filter(~pl.col("label").is_in(own))
        kinds = pl.struct("label", "budget", "learning_rate").n_unique().alias("kinds")
        whole = common.group_by("seed").agg(kinds).filter(pl.col("kinds") == wanted)["seed"]
        return Results(self.table.filter(pl.col("seed").is_in(whole.implode())), self.about)

    def check(self, *columns: str) -> None:
        """That these were measured."""
        for column in columns:
            if column not in self.table.columns or self.table[column].is_null().all():
                setting = EVERY.get(column)
                way_out = "run it again" if setting is None else f"set {setting} and run it again"
                name = self.experiment["name"]
                raise AbsentError(f"the results of {name} hold no {column}; {way_out}")

    def measured(self, column: str) -> "pl.Series":
        """The rounds in which somebody's was, ascending."""
        import polars as pl

        self.check(column)
        return self.table.filter(pl.col(column).is_not_null())["round"].unique().sort()

    def last_tenth(self, column: str) -> int:
        """Where it begins; not after the last measurement."""
        T = int(self.experiment["rounds"])
        return min(T - T // 10, int(self.measured(column)[-1]))

    def origin(self) -> str:
        """Where they are from, in a line; runs that are missing or diverged, by name."""
        runs, given = self.about["runs"], self.experiment
        starts = [start for run in runs.values() for start in (run, *run.get("later", ()))]
        devices, commits = (
            ", ".join(sorted({start[key] or "unknown" for start in starts}))
            for key in ("device", "commit")
        )
        minutes = sum(run["seconds"] for run in runs.values()) / 60
        local, rates = given["local"], [f"{rate:g}" for rate in given["local"]["learning_rates"]]
        line = (
            f"\n`experiments/{given['name']}.toml`: {len(runs)} runs of {given['rounds']} rounds, "
            f"local learning rate {', '.join(rates)}, batch {local['batch_size']}, "
            f"{local['epochs']} epochs; added up {minutes:.0f} minutes, on {devices}, at commit "
            f"{commits}.\n"
        )
        if self.about["missing"]:
            line += f"\nNot finished yet: {', '.join(self.about['missing'])}.\n"
        gone = [name for name, run in runs.items() if run["diverged"]]
        if gone:
            line += f"\nDiverged: {', '.join(gone)}.\n"
        return line + note(self.about)


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

    from kvib.lab.runs import make_task, outcome

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


def read_part(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder; empty if it was not written yet."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
        content = error
    if not isinstance(content, dict):
        raise torn_run(path.parent, f"{path.name}: {content}")
    return content


def torn_run(folder: Path, reason: object) -> ValueError:
    """What to say of a run folder that cannot be read."""
    return ValueError(f"{folder} is not a whole run folder ({reason}); remove it")


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
    regret = (pl.col("cost") - pl.col("optimal_cost")).fill_nan(None).cast(pl.Float32)
    counts = pl.col("round", "clients").cast(pl.Int32)
    return rounds.select(*keys, counts, *numbers, regret.alias("regret"))


def note(about: dict[str, Any]) -> str:
    """What somebody wrote into the file of results: how they differ from what a run would give now.

    Made by hand, so a file made again has none.
    """
    return f"\nNote: {about['note']}\n" if "note" in about else ""


def file(path: Path, suffix: str) -> Path:
    """One of the two files of results; a dot in their name is not that of a suffix."""
    return path.with_name(f"{path.name}.{suffix}")


def missing(needs: Sequence[str], results: Path) -> list[str]:
    """Experiments without results in a folder."""
    return [need for need in needs if not file(results / need, "json").exists()]


def load(path: Path) -> Results:
    """What `collect` wrote."""
    import polars as pl

    about = load_about(path, "experiment", "runs", "sizes")
    try:
        return Results(pl.read_parquet(file(path, "parquet")), about)
    except FileNotFoundError as error:
        raise _absent(path) from error
    except pl.exceptions.PolarsError as error:
        raise torn(path, error) from error


def load_about(path: Path, *keys: str) -> dict[str, Any]:
    """Where results are from, without the results; these keys at least."""
    try:
        about = json.loads(file(path, "json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _absent(path) from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
        raise torn(path, error) from error
    if not isinstance(about, dict):
        raise torn(path, f"{about!r} instead of a table")
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path}.json is of format {about.get('format')}, this kvib reads {FORMAT}; make the "
            "results again, or install the kvib that wrote them"
        )
    for key in keys:
        if key not in about:
            raise torn(path, f"no {key!r}")
    return {"missing": [], **about}


def _absent(path: Path) -> AbsentError:
    return AbsentError(
        f"there are no results at {path}; make them with: kvib run experiments/{path.name}.toml"
    )


def torn(path: Path, reason: object) -> ValueError:
    """What to say of results that cannot be read."""
    return ValueError(f"{path} are not whole results ({reason}); make them again")

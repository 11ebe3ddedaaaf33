"""Reads the collected rounds of an experiment: a table, and a file that says where it is from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvib.lab.folders import FORMAT, of_today

if TYPE_CHECKING:
    import polars as pl

EVERY = {
    "loss": "evaluate_every",
    "accuracy": "evaluate_every",
    "train_loss": "train_loss_every",
    "variance": "exact_every",
    "bias": "exact_every",
    "regret": "exact_every",
}
"""Columns, and the setting of an experiment that decides whether each is measured."""


class MissingResultsError(ValueError):
    """The results do not hold the rounds or columns that were asked for."""


@dataclass(frozen=True)
class Results:
    """All rounds of an experiment, and where they are from."""

    table: "pl.DataFrame"
    """One row per round of every run."""
    about: dict[str, Any]
    """The content of the JSON file: configuration, environments, sizes, missing runs."""

    @property
    def experiment(self) -> dict[str, Any]:
        """The configuration of the experiment."""
        configuration: dict[str, Any] = self.about["experiment"]
        return configuration

    @property
    def labels(self) -> list[str]:
        """The labels of the samplers in the order of the experiment file."""
        return [line["label"] for line in self.experiment["samplers"]]

    def where(self, **values: Any) -> "Results":
        """Keep only rows with these values, such as where(budget=10, label="K-Vib")."""
        import polars as pl

        rows = [pl.col(name) == value for name, value in values.items()]
        return Results(self.table.filter(*rows), self.about)

    def of(self, *labels: str) -> "Results":
        """Keep only these samplers, in the table and in the configuration."""
        import polars as pl

        kept = [line for line in self.experiment["samplers"] if line["label"] in labels]
        about = {**self.about, "experiment": {**self.experiment, "samplers": kept}}
        return Results(self.table.filter(pl.col("label").is_in(labels)), about)

    def check_alike(self) -> None:
        """Raise ValueError unless all rows have one budget and one learning rate.

        Rows of different settings must not be averaged.
        """
        for name in ("budget", "learning_rate"):
            found = self.table[name].unique().sort().to_list()
            if len(found) > 1:
                raise ValueError(f"{name} of the rows is {found}; choose one with where({name}=…)")

    def paired(self) -> "Results":
        """Keep only the seeds for which every sampler has results at all settings.

        Samplers with seeds of their own do not count.
        """
        import polars as pl

        config = self.experiment
        own = [s["label"] for s in config["samplers"] if s["seeds"] is not None]
        wanted = len(config["budgets"]) * len(config["local"]["learning_rates"])
        wanted *= len(self.labels) - len(own)
        common = self.table.filter(~pl.col("label").is_in(own))
        kinds = pl.struct("label", "budget", "learning_rate").n_unique().alias("kinds")
        whole = common.group_by("seed").agg(kinds).filter(pl.col("kinds") == wanted)["seed"]
        return Results(self.table.filter(pl.col("seed").is_in(whole.implode())), self.about)

    def check(self, *columns: str) -> None:
        """Raise MissingResultsError unless these columns were measured."""
        for column in columns:
            if column not in self.table.columns or self.table[column].is_null().all():
                setting = EVERY.get(column)
                way_out = "run it again" if setting is None else f"set {setting} and run it again"
                name = self.experiment["name"]
                raise MissingResultsError(f"the results of {name} hold no {column}; {way_out}")

    def measured(self, column: str) -> "pl.Series":
        """The rounds in which a column was measured for any sampler, ascending."""
        import polars as pl

        self.check(column)
        return self.table.filter(pl.col(column).is_not_null())["round"].unique().sort()

    def last_tenth(self, column: str) -> int:
        """The first round of the last tenth, but not after the last measurement of the column."""
        T = int(self.experiment["rounds"])
        return min(T - T // 10, int(self.measured(column)[-1]))


def file(path: Path, suffix: str) -> Path:
    """The path of one of the two files of results. A dot in the name does not begin a suffix."""
    return path.with_name(f"{path.name}.{suffix}")


def names(results: Path) -> list[str]:
    """The names of the experiments that have results in a folder."""
    found = sorted(path.stem for path in results.glob("*.parquet"))
    return [name for name in found if file(results / name, "json").exists()]


def missing(needs: Sequence[str], results: Path) -> list[str]:
    """The names of the experiments that have no results in a folder."""
    return [need for need in needs if not file(results / need, "json").exists()]


def load(path: Path) -> Results:
    """Read the results that `collect` wrote."""
    import polars as pl

    about = load_about(path, "experiment", "runs", "sizes")
    try:
        return Results(of_today(pl.read_parquet(file(path, "parquet"))), about)
    except FileNotFoundError as error:
        raise no_results(path) from error
    except pl.exceptions.PolarsError as error:
        raise torn(path, error) from error


def load_about(path: Path, *keys: str) -> dict[str, Any]:
    """Read the JSON file of results. Raise ValueError if one of these keys is missing in it."""
    try:
        about = json.loads(file(path, "json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise no_results(path) from error
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


def no_results(path: Path) -> MissingResultsError:
    """The error for a path without results."""
    return MissingResultsError(
        f"there are no results at {path}; make them with kvib run, or give another --results"
    )


def torn(path: Path, reason: object) -> ValueError:
    """The error for results that cannot be read."""
    return ValueError(f"{path} are not whole results ({reason}); make them again")

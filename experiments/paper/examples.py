"""Examples 1 and 2 of the paper on a terminal: two tables, two figures."""

import itertools
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from paper.toy import Errors, Floats, Outcome, example_1, example_2, figure_1, figure_2


def table_1(results: list[Errors]) -> Table:
    """Squared errors of Example 1, beside their exact means."""
    draws = len(results[0].squared)
    table = Table(title=f"Example 1: squared error of the estimate, {draws} draws each")
    for column in ("K", "procedure", "mean ± standard error", "exact variance", "of uniform's"):
        table.add_column(column, justify="left" if column == "procedure" else "right")
    for budget, rows in itertools.groupby(results, key=lambda r: r.budget):
        group = list(rows)
        for row in group:
            error = row.squared.std(ddof=1) / np.sqrt(draws)
            mean = f"{row.squared.mean():,.0f} ± {error:,.0f}"
            share = f"{row.exact / group[0].exact:.2f}"
            table.add_row(str(budget), row.name, mean, f"{row.exact:,.0f}", share)
    return table


def table_2(full: Floats, outcomes: list[Outcome]) -> Table:
    """Every outcome of Example 2, with its probability."""
    title = f"Example 2: every outcome for K = 2; the sum of all is ({full[0]:.2f}, {full[1]:.2f})"
    table = Table(title=title)
    for column in ("procedure", "drawn", "probability", "estimate", "distance"):
        table.add_column(column, justify="left" if column == "procedure" else "right")
    for name, rows in itertools.groupby(outcomes, key=lambda o: o.procedure):
        group = list(rows)
        for o in group:
            drawn = ", ".join(f"g{i + 1}" for i, c in enumerate(o.counts) for _ in range(c))
            point = f"({o.estimate[0]:.2f}, {o.estimate[1]:.2f})"
            distance = f"{np.linalg.norm(o.estimate - full):.2f}"
            table.add_row(name, drawn, f"{o.probability:.4f}", point, distance)
        mean = sum((o.probability * o.estimate for o in group), np.zeros(2))
        noise = sum(o.probability * float(((o.estimate - full) ** 2).sum()) for o in group)
        point = f"({mean[0]:.2f}, {mean[1]:.2f})"
        table.add_row(name, "[bold]mean", "1", point, f"variance {noise:.2f}", end_section=True)
    return table


def show(out: Path, seed: int) -> tuple[Path, Path]:
    """Print a table of each example, draw its figure, and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console(width=110)
    results = example_1(seed)
    console.print(table_1(results))
    full, outcomes = example_2()
    console.print(table_2(full, outcomes))
    paths = out / "example1.png", out / "example2.png"
    for path, figure in zip(paths, (figure_1(results), figure_2(full, outcomes)), strict=True):
        figure.savefig(path, dpi=150)
    return paths

"""Compare samplers on Synthetic(0, 0): uniform, K-Vib, the recommended ones and the oracle.

    python examples/compare_samplers.py --out out/demo

The script prints a table and writes a figure. It needs no torch and no download.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import kvib
from kvib.sim import LinearEngine, LocalSGD, Record, Simulation, synthetic

TARGET = 1.35
"""The training loss to reach. The table shows the first round that reaches it."""


EXACT = 10
"""Rounds between exact metrics."""


def samplers(rounds: int) -> dict[str, Callable[..., kvib.Sampler]]:
    """Functions that make the samplers to compare, by name."""
    return {
        "uniform": partial(kvib.Sampler, kvib.Uniform()),
        "K-Vib": partial(kvib.Sampler, kvib.KVib(rounds=rounds)),
        "recommended": kvib.recommended,
        "recommended, remembering": partial(kvib.recommended, remember=True),
        "oracle": partial(kvib.Sampler, kvib.Optimal()),
    }


def simulate(name: str, rounds: int, budget: int, seed: int) -> list[Record]:
    """The records of one run."""
    task, local = synthetic(), LocalSGD(learning_rate=0.02, batch_size=64)
    sampler = samplers(rounds)[name](task.weights, budget, seed=seed)
    engine = LinearEngine(task, local)
    simulation = Simulation(
        task, engine, sampler, local, exact_every=EXACT, train_loss_every=1, seed=seed
    )
    steps = simulation.run(rounds)
    return list(track(steps, f"{name}, seed {seed}", rounds, disable=not sys.stdout.isatty()))


def column(records: list[Record], name: str) -> np.ndarray:
    """One number of every round, [rounds]."""
    return np.array([getattr(record, name) for record in records])


def rounds_to(records: list[Record], target: float) -> float:
    """The first round whose training loss is at most the target, infinite if there is none."""
    reached = [r.round for r in records if r.train_loss <= target]
    return reached[0] if reached else float("inf")


def summary(runs: dict[str, list[list[Record]]], rounds: int, budget: int) -> Table:
    """A table with a row per sampler, averaged over seeds."""
    seeds = len(next(iter(runs.values())))
    title = f"Synthetic(0, 0), N = 100, K = {budget}, {rounds} rounds, {seeds} seeds"
    table = Table(title=title)
    for name in ("sampler", "mean regret", "mean variance", f"rounds to {TARGET}", "final loss"):
        table.add_column(name, justify="left" if name == "sampler" else "right")
    for name, all_runs in runs.items():
        regret = [
            np.nanmean(column(r, "sampling_cost") - column(r, "optimal_sampling_cost"))
            for r in all_runs
        ]
        variance = [np.nanmean(column(r, "variance")) for r in all_runs]
        reached = [rounds_to(r, TARGET) for r in all_runs]
        final = [column(r, "train_loss")[-1] for r in all_runs]
        table.add_row(
            name,
            f"{np.mean(regret):.2e}",
            f"{np.mean(variance):.2e}",
            "–" if np.isinf(reached).any() else f"{np.mean(reached):.0f} ± {np.std(reached):.0f}",
            f"{np.mean(final):.3f} ± {np.std(final):.3f}",
        )
    return table


def figure(runs: dict[str, list[list[Record]]], budget: int, path: Path) -> None:
    """Draw training loss and variance against rounds, and write the figure."""
    colours = dict(zip(runs, ("#888888", "#1b6ca8", "#1b9e77", "#7570b3", "#d95f02"), strict=True))
    seeds = len(next(iter(runs.values())))
    panels = {"train_loss": "training loss", "variance": "variance of the step (exact)"}
    sheet, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, (measure, label) in zip(axes, panels.items(), strict=True):
        for name, all_runs in runs.items():
            values = np.array([column(r, measure) for r in all_runs])
            measured = ~np.isnan(values[0])
            x, values = np.flatnonzero(measured), values[:, measured]
            mean, spread = values.mean(axis=0), values.std(axis=0)
            axis.plot(x, mean, color=colours[name], label=name, linewidth=1.3)
            low = np.maximum(mean - spread, mean.min() / 10)
            axis.fill_between(x, low, mean + spread, color=colours[name], alpha=0.2, linewidth=0)
        axis.set(xlabel="round", ylabel=label)
    axes[1].set_yscale("log")
    axes[0].legend(title=f"mean ± deviation, {seeds} seeds, K = {budget}", fontsize=8)
    sheet.tight_layout()
    sheet.savefig(path, dpi=150)
    plt.close(sheet)


def main() -> None:
    """Run all samplers with all seeds, print the table and write the figure."""
    parser = argparse.ArgumentParser(description="Compare samplers on Synthetic(0, 0).")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="Folder of the figure.")
    parser.add_argument("--rounds", type=int, default=150, help="Rounds of a run.")
    parser.add_argument("--budget", type=int, default=10, help="Clients per round.")
    parser.add_argument("--seeds", type=int, default=3, help="Number of seeds.")
    options = parser.parse_args()
    runs = {
        name: [
            simulate(name, options.rounds, options.budget, seed) for seed in range(options.seeds)
        ]
        for name in samplers(options.rounds)
    }
    console = Console(width=100)
    console.print(summary(runs, options.rounds, options.budget))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "samplers.png"
    figure(runs, options.budget, path)
    console.print(f"figure: {path}")


if __name__ == "__main__":
    main()

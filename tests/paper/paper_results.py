"""Result files as the commands write them, with numbers made here."""

import json
from dataclasses import asdict

import numpy as np
import polars as pl

from kvib.lab.folders import FORMAT
from paper.variances import MEMORY


def made(folder, given, table, diverged=()):
    """Result files as `collect` writes them; runs of these labels diverged."""
    folder.mkdir(parents=True, exist_ok=True)

    def told(run):
        gone = "client 3 diverged in round 7" if run.sampler.label in diverged else None
        return {"device": "cpu", "seconds": 60.0, "diverged": gone, "commit": "abc1234"}

    about = {
        "format": FORMAT,
        "experiment": asdict(given),
        "runs": {run.name: told(run) for run in given.runs()},
        "sizes": [500, 50, 5, *[1] * 97],
        "missing": [],
    }
    table.write_parquet(folder / f"{given.name}.parquet")
    (folder / f"{given.name}.json").write_text(json.dumps(about))


def plausible(given, best=0.9):
    """Rounds of every run: everything falls, accuracy rises; no two samplers the same."""
    t = np.arange(0, given.rounds, 5)
    fall = np.exp(-t / (0.4 * given.rounds))
    parts = []
    for run in given.runs():
        own = 1 + 0.1 * given.samplers.index(run.sampler) + 0.01 * run.seed
        falling = (own * fall / run.budget).astype(np.float32)
        parts.append(
            pl.DataFrame({"round": t.astype(np.int32)}).select(
                pl.lit(run.sampler.label).alias("label"),
                pl.lit(run.budget).alias("budget"),
                pl.lit(run.learning_rate).alias("learning_rate"),
                pl.lit(run.seed).alias("seed"),
                "round",
                *(pl.Series(name, falling) for name in ("regret", "variance", "bias")),
                *(pl.lit(n).alias(name) for name, n in (("clients", 10), ("answered", 7))),
                *(pl.Series(name, 1 + falling) for name in ("loss", "train_loss")),
                pl.Series("accuracy", (best * (1 - fall**own)).astype(np.float32)),
            )
        )
    return pl.concat(parts)


def drawn_otherwise(folder, task, rounds=40, learning=True, more=None, **factors):
    """A file as `experiments/procedures.py` writes it; factors of the variance of each way."""
    ways = {"pivotal": 0.9, "neighbours": 0.7, "balanced": 0.7, "difference": 0.8}
    ways |= {"difference, neighbours": 0.5, "difference, balanced": 0.5}
    ways |= {"independent": 1.0, "full step": 2.0} | factors
    if learning:
        ways |= {f"{way}, learning": 0.9 * ways[way] for way in MEMORY}
    options = {"task": task, "seed": 0, "budget": 20.0, "draws": 800, "learning_rate": 0.1}
    options |= {"batch_size": 20, "epochs": 1, "learning": learning}
    about = {
        **(more or {}),
        "format": FORMAT,
        "options": options,
        "environment": {"device": "cpu", "commit": "abc1234"},
        "rows": [
            {"round": t, **{way: factor * np.exp(-t / 9) for way, factor in ways.items()}}
            for t in range(rounds)
        ],
    }
    (folder / f"procedures-{task}.json").write_text(json.dumps(about))

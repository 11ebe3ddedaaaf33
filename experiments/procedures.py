"""How much noise each way to draw leaves, with the same probabilities and the same updates.

    python experiments/procedures.py synthetic --budget 10 --rounds 100
    python experiments/procedures.py femnist-400 --budget 20 --rounds 31 --device cuda   # one GPU

Every few rounds all clients train, and the variance of the step is computed from the Gram matrix
of their updates: exactly for independent draws, by Monte Carlo for the others. Written to
results/procedures-TASK.json, one row per measured round. Needs NumPy, and torch for a CNN.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import numpy as np

import kvib
from kvib import metrics
from kvib.lab.runs import ENGINES, FORMAT, Machine, environment, make_task
from kvib.randomness import generator
from kvib.sim import LocalSGD, SoftmaxRegression
from kvib.sim.local import plan


def updates_of(engine: Any, model: Any, task: Any, ids: Any, seed: int, t: int) -> Any:
    """Updates of some clients, [m, d]."""
    return engine.updates(model, plan(task.train, ids, engine.local, seed, t))


def everybody(engine: Any, model: Any, task: Any, seed: int, t: int) -> Any:
    """Updates of all clients, chunk by chunk, joined."""
    N = len(task)
    parts = [
        updates_of(engine, model, task, np.arange(low, min(low + engine.chunk, N)), seed, t)
        for low in range(0, N, engine.chunk)
    ]
    if len(parts) == 1:
        return parts[0]
    import torch

    return torch.cat(parts)


def measure(
    sampler: kvib.Sampler, memory: Any, U: Any, engine: Any, t: int, draws: int
) -> dict[str, float]:
    """Variances with the probabilities that the sampler has for the coming round."""
    ids, weights = np.arange(len(sampler)), sampler.weights
    p, outer = sampler.probabilities(), np.outer(weights, weights)
    gram = engine.gram(U) * outer
    rest = engine.gram(memory.residuals(ids, U)) * outer
    variables = sampler.balanced_on(ids)

    def variance(procedure: kvib.Procedure, A: Any) -> float:
        rng = generator(0, t, f"procedures {procedure!r}")
        given = {"draws": draws, "rng": rng, "variables": variables}
        return metrics.variance(p, procedure=procedure, gram=A, **given).value

    own = variance(kvib.independent, gram)
    rows = {
        "independent": own,
        "pivotal": variance(kvib.pivotal, gram),
        "balanced": variance(kvib.balanced, gram),
        "difference": variance(kvib.independent, rest),
        "difference, balanced": variance(kvib.balanced, rest),
    }
    return {**rows, "beta": memory.beta, "full step": float(gram.sum())}


def play(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Recommended sampling, with a memory beside it that only watches."""
    task = make_task(options.task, options.tasks)
    local = LocalSGD(options.learning_rate, options.batch_size, options.epochs)
    machine = Machine(options.device, None, options.tasks)
    kind = "linear" if isinstance(task.model, SoftmaxRegression) else "torch"
    engine: Any = ENGINES[kind](task, local, machine, options.precision)
    model = engine.initial(options.seed)
    sampler = kvib.recommended(task.weights, options.budget, seed=options.seed)
    memory = kvib.Difference().start(sampler.weights)
    for t in range(options.rounds):
        if t % options.every == 0:
            U = everybody(engine, model, task, options.seed, t)
            yield {"round": t, **measure(sampler, memory, U, engine, t, options.draws)}
            del U
        cohort = sampler.draw()
        updates = updates_of(engine, model, task, cohort.ids, options.seed, t)
        memory.keep(cohort, updates)
        memory.end_round()
        model = model - sampler.step(cohort, updates)


def main() -> None:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description="Noise left by each procedure")
    parser.add_argument("task")
    parser.add_argument("--budget", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=2000, help="of the Monte Carlo")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    given = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    where = environment(Machine(options.device))
    about = {"format": FORMAT, "options": given, "environment": where}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"procedures-{options.task}.json"
    rows = []
    for row in play(options):  # what is measured is kept, also where the time ends before the run
        rows.append(row)
        print(json.dumps(row), flush=True)
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

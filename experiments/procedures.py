"""How much noise each way to draw leaves, with the same probabilities and the same updates.

    python experiments/procedures.py synthetic --budget 10 --rounds 100
    python experiments/procedures.py femnist-400 --budget 20 --rounds 31 --device cuda   # one GPU

Every few rounds all clients train, and the variance of the step is computed from the Gram matrix
of their updates: exactly for independent draws, by Monte Carlo for the others. Written to
results/procedures-TASK.json, one row per measured round. Needs NumPy, and torch for a CNN.

The run is of the recommended combination. A memory beside it only watches, so that all ways share
one policy's probabilities. With --learning a second sampler remembers and learns from ‖g − βh‖, as
`recommended(remember=True)` does: it draws and trains clients of its own, and moves nothing.
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
from kvib.analysis import metrics
from kvib.lab.folders import FORMAT
from kvib.lab.runs import Machine, environment, make_task
from kvib.randomness import generator
from kvib.sim import LocalSGD
from kvib.sim.engines.make import AUTO, make_engine
from kvib.sim.engines.place import Place
from kvib.sim.local import local_batches
from paper.variances import DRAWS, LEARNING, MEMORY

EXACT_SIZE = (kvib.pivotal, kvib.neighbours, kvib.balanced)
ALONE = {"independent": kvib.independent, **dict(zip(DRAWS, EXACT_SIZE, strict=True))}
BESIDE_MEMORY = (kvib.independent, kvib.neighbours, kvib.balanced)
WITH_MEMORY = dict(zip(MEMORY, BESIDE_MEMORY, strict=True))


def updates_of(engine: Any, model: Any, task: Any, ids: Any, seed: int, t: int) -> Any:
    """Updates of some clients, [m, d]."""
    return engine.updates(model, local_batches(task.train, ids, engine.local, seed, t))


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
    gram, rest = gram_of(sampler, U, engine), left(sampler, memory, U, engine)

    def variance(procedure: kvib.Procedure, A: Any) -> float:
        return noise(sampler, procedure, A, t, draws)

    alone = {way: variance(procedure, gram) for way, procedure in ALONE.items()}
    both = {way: variance(procedure, rest) for way, procedure in WITH_MEMORY.items()}
    return {**alone, **both, "beta": memory.beta, "full step": float(gram.sum())}


def gram_of(sampler: kvib.Sampler, U: Any, engine: Any) -> Any:
    """⟨λg, λg⟩ of all pairs of clients, [N, N]."""
    return engine.gram(U) * np.outer(sampler.weights, sampler.weights)


def left(sampler: kvib.Sampler, memory: Any, U: Any, engine: Any) -> Any:
    """The same of what a memory leaves to be sampled."""
    return gram_of(sampler, memory.residuals(np.arange(len(sampler)), U), engine)


def noise(sampler: kvib.Sampler, procedure: kvib.Procedure, A: Any, t: int, draws: int) -> float:
    """The variance of a draw with this sampler's probabilities, given a Gram matrix."""
    rng = generator(0, t, f"procedures {procedure!r}")
    on = sampler.state.eligible.balanced_on(np.arange(len(sampler)))
    given = {"gram": A, "draws": draws, "rng": rng, "variables": on}
    return metrics.variance(sampler.probabilities(), procedure=procedure, **given).value


def play(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Recommended sampling, with a memory beside it that only watches, or also one that is used."""
    task = make_task(options.task, options.tasks)
    local = LocalSGD(options.learning_rate, options.batch_size, options.epochs)
    place = Place(options.device, options.precision)
    engine: Any = make_engine(AUTO, task, local, place)
    model = engine.initial(options.seed)
    sampler = kvib.recommended(task.weights, options.budget, seed=options.seed)
    memory = kvib.Difference().start(sampler.weights)
    given = {"remember": True, "seed": options.seed}
    learner = kvib.recommended(task.weights, options.budget, **given) if options.learning else None
    for t in range(options.rounds):
        if t % options.every == 0:
            U = everybody(engine, model, task, options.seed, t)
            row = {"round": t, **measure(sampler, memory, U, engine, t, options.draws)}
            if learner is not None:
                rest = left(learner, learner.state.memory, U, engine)
                for way, procedure in zip(LEARNING, BESIDE_MEMORY, strict=True):
                    row[way] = noise(learner, procedure, rest, t, options.draws)
            yield row
            del U
        if learner is not None:
            drawn = learner.draw()
            learner.step(drawn, updates_of(engine, model, task, drawn.ids, options.seed, t))
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
    parser.add_argument("--learning", action="store_true", help="a policy that remembers, too")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    given = {k: v for k, v in vars(options).items() if k not in ("tasks", "out")}  # no folders
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

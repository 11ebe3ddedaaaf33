"""Measure the noise of each way to draw, with the same probabilities and the same updates.

    python experiments/procedures.py synthetic --budget 10 --rounds 100
    python experiments/procedures.py femnist-400 --budget 20 --rounds 31 --device cuda   # one GPU

Every few rounds all clients train, and the variance of the step is computed from the Gram matrix
of their updates: exactly for independent draws, by Monte Carlo for the others. The file
results/procedures-TASK.json gets one row per measured round. The script needs NumPy, and torch for
a CNN.

The run uses the recommended combination. A memory beside it sees the updates but does not change
the draws, so that all ways share the probabilities of one policy. With --learning, a second sampler
remembers and learns from ‖g − βh‖, as `recommended(remember=True)` does. It draws and trains
clients of its own, and does not move the model.
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
    """The updates of these clients, [m, d]."""
    return engine.updates(model, local_batches(task.train, ids, engine.local, seed, t))


def all_updates(engine: Any, model: Any, task: Any, seed: int, t: int) -> Any:
    """The updates of all clients, computed chunk by chunk, [N, d]."""
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
    """The variance of each way to draw, with the sampler's probabilities for the coming round."""
    gram, rest = gram_of(sampler, U, engine), left(sampler, memory, U, engine)

    def variance(procedure: kvib.Procedure, A: Any) -> float:
        return noise(sampler, procedure, A, t, draws)

    alone = {way: variance(procedure, gram) for way, procedure in ALONE.items()}
    both = {way: variance(procedure, rest) for way, procedure in WITH_MEMORY.items()}
    return {**alone, **both, "beta": memory.beta, "full step": float(gram.sum())}


def gram_of(sampler: kvib.Sampler, U: Any, engine: Any) -> Any:
    """The inner products ⟨λg, λg⟩ of all pairs of clients, [N, N]."""
    return engine.gram(U) * np.outer(sampler.weights, sampler.weights)


def left(sampler: kvib.Sampler, memory: Any, U: Any, engine: Any) -> Any:
    """The inner products of the differences that a memory leaves to be sampled, [N, N]."""
    return gram_of(sampler, memory.residuals(np.arange(len(sampler)), U), engine)


def noise(sampler: kvib.Sampler, procedure: kvib.Procedure, A: Any, t: int, draws: int) -> float:
    """The variance of a draw with this sampler's probabilities, given a Gram matrix."""
    rng = generator(0, t, f"procedures {procedure!r}")
    on = sampler.state.eligible.balanced_on(np.arange(len(sampler)))
    options = {"gram": A, "draws": draws, "rng": rng, "variables": on}
    return metrics.variance(sampler.probabilities(), procedure=procedure, **options).value


def play(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Run the rounds, and yield a row for each measured round."""
    task = make_task(options.task, options.tasks)
    local = LocalSGD(options.learning_rate, options.batch_size, options.epochs)
    place = Place(options.device, options.precision)
    engine: Any = make_engine(AUTO, task, local, place)
    model = engine.initial(options.seed)
    sampler = kvib.recommended(task.weights, options.budget, seed=options.seed)
    memory = kvib.Difference().start(sampler.weights)
    learner = None
    if options.learning:
        settings = {"remember": True, "seed": options.seed}
        learner = kvib.recommended(task.weights, options.budget, **settings)
    for t in range(options.rounds):
        if t % options.every == 0:
            U = all_updates(engine, model, task, options.seed, t)
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
    """Run, and print and write each row as soon as it is measured."""
    options = _parser().parse_args()
    folders = ("tasks", "out")  # they do not change the numbers
    settings = {k: v for k, v in vars(options).items() if k not in folders}
    where = environment(Machine(options.device))
    about = {"format": FORMAT, "options": settings, "environment": where}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"procedures-{options.task}.json"
    rows = []
    for row in play(options):  # written row by row, since the time may end before the run
        rows.append(row)
        print(json.dumps(row), flush=True)
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(description="Measure the noise of each procedure.")
    add = parser.add_argument
    add("task", help="Name of a task.")
    add("--budget", type=float, default=10, help="Clients per round.")
    add("--rounds", type=int, default=100, help="Rounds in all.")
    add("--every", type=int, default=5, help="Rounds between measurements.")
    add("--learning-rate", type=float, default=0.02, help="Learning rate of local SGD.")
    add("--batch-size", type=int, default=64, help="Batch size of local SGD.")
    add("--epochs", type=int, default=1, help="Epochs of local SGD in a round.")
    add("--seed", type=int, default=0, help="Seed of draws, batches and the first model.")
    add("--draws", type=int, default=2000, help="Number of Monte Carlo draws.")
    add("--learning", action="store_true", help="Measure a policy that remembers, too.")
    add("--device", help="Device of torch (default: compiled code if possible).")
    add("--precision", default="float32", help="Precision on a GPU.")
    add("--tasks", type=Path, help="Folder of prepared tasks.")
    add("--out", type=Path, default=Path("results"), help="Folder of the file to write.")
    return parser


if __name__ == "__main__":
    main()

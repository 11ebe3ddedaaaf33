"""Measure the training of a round on one GPU: clients together, and one after another.

kvib prepare femnist-v1 --out task.npz           # where the data are
python benchmarks/gpu.py task.npz --out results  # where the GPU is; needs NumPy and torch only
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kvib
from kvib.sim import prepared
from kvib.sim.engines.flat import FlatModule
from kvib.sim.engines.flat import prepared as as_input
from kvib.sim.engines.torch_engine import TorchEngine
from kvib.sim.local import Batches, LocalSGD, local_batches
from kvib.sim.models import make
from tables import head, markdown


class PlainLoop:
    """The plain loop of PyTorch: one client after another, `torch.optim.SGD`."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self.flat = FlatModule(make(engine.task, 0), engine.device)

    def updates(self, model: torch.Tensor, batches: Batches) -> torch.Tensor:
        """The updates of the clients, [m, d]."""
        rows = []
        for c in range(len(batches.steps)):
            self.flat.vector.copy_(model)
            optimiser = torch.optim.SGD(self.flat.parameters, lr=self.engine.local.learning_rate)
            for s in range(batches.first[c], batches.first[c + 1]):
                end = batches.starts[s] + batches.lengths[s]
                at = torch.from_numpy(batches.samples[batches.starts[s] : end]).to(model.device)
                outputs = self.flat.module(as_input(self.engine.x[at]))
                loss = self.engine.loss(outputs, self.engine.y[at]).mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            rows.append(model - self.flat.vector)
        return torch.stack(rows)


def seconds(function: Callable[[], object], repeat: int) -> float:
    """The seconds of the fastest of several calls, with the work of the device."""
    synchronise: Any = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    times = []
    for _ in range(repeat):
        synchronise()
        start = time.perf_counter()
        function()
        synchronise()
        times.append(time.perf_counter() - start)
    return min(times)


def all_norms(engine: TorchEngine, trainer: Any, model: Any, local: LocalSGD, N: int) -> Any:
    """The norms of the updates of N clients, chunk by chunk, [N]."""
    norms = []
    for low in range(0, N, engine.chunk):
        ids = np.arange(low, min(low + engine.chunk, N))
        updates = trainer.updates(model, local_batches(engine.task.train, ids, local, 0, 0))
        norms.append(engine.norms(updates))
    return np.concatenate(norms)


def main() -> None:
    """Measure, and write gpu.json and gpu.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="File made by kvib prepare.")
    parser.add_argument("--out", type=Path, default=Path("results"), help="Folder of the results.")
    parser.add_argument("--budget", type=int, default=111, help="Clients per round.")
    parser.add_argument("--clients", type=int, help="Use only this many clients, the first ones.")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = prepared.read(options.task)
    N = options.clients or len(task)
    local = LocalSGD(learning_rate=0.01, batch_size=20, epochs=3)
    rng = np.random.default_rng(0)
    budget = min(options.budget, N)
    cohorts = [np.sort(rng.choice(N, budget, replace=False)) for _ in range(5)]
    work = [local_batches(task.train, ids, local, 0, t) for t, ids in enumerate(cohorts)]

    sequential = TorchEngine(task, local, device, batched=False)
    model = sequential.initial(0)
    plain = PlainLoop(sequential)
    loops: dict[str, Any] = {"plain loop": plain, "kvib, sequential": sequential}
    rows: list[dict[str, Any]] = []
    exact = sequential.updates(model, work[0])
    for name, trainer in loops.items():
        trainer.updates(model, work[0])
        taken = seconds(lambda: [trainer.updates(model, w) for w in work], 2) / len(work)  # noqa: B023
        norms_time = seconds(lambda: all_norms(sequential, trainer, model, local, N), 1)  # noqa: B023
        rows.append({"engine": name, "round s": taken, "all norms s": norms_time, "error": 0.0})
        print(rows[-1], flush=True)

    for precision in ("float32", "tf32", "bf16"):
        engine = TorchEngine(task, local, device, precision, batched=True)
        if engine.slow:
            raise SystemExit(engine.slow)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = engine.updates(model, work[0])
        error = float((found - exact).norm() / exact.norm())
        for w in work:
            engine.updates(model, w)
        trainer = engine
        taken = seconds(lambda: [trainer.updates(model, w) for w in work], 3) / len(work)  # noqa: B023
        all_norms(engine, engine, model, local, N)
        norms_time = seconds(lambda: all_norms(trainer, trainer, model, local, N), 2)  # noqa: B023
        memory = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
        rows.append(
            {
                "engine": f"kvib, batched, {precision}",
                "round s": taken,
                "all norms s": norms_time,
                "error": error,
                "peak GB": memory,
            }
        )
        print(rows[-1], flush=True)
    for row in rows:
        for column in ("round s", "all norms s"):
            row[f"plain loop / this, {column}"] = rows[0][column] / row[column]
    about = {
        "command": "python benchmarks/gpu.py task.npz",
        "task": task.name,
        "clients": N,
        "budget": budget,
        "local": repr(local),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "kvib": kvib.__version__,
        "reference": "the plain loop, same device, same run",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "gpu.json"
    path.write_text(json.dumps({"environment": about, "results": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text(head(about) + markdown(rows))
    print(f"written to {path} and .md")


if __name__ == "__main__":
    main()

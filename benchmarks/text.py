"""Measure local training of language models: tokens per second, and the share of the device's rate.

python benchmarks/text.py --out results          # on a GPU: NumPy, torch, transformers; no data
python benchmarks/text.py --batch 16 64 --length 128 512
python benchmarks/text.py --tiny --out results   # everything in seconds, on any machine

Tokens are random, since speed does not depend on their content. Counted operations are those of the
model: 6 for each token and each weight that multiplies, and those of attention. An operation that
is computed twice is counted once. The rate is that of a product of two large random matrices on the
same device.
"""

import argparse
import itertools
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import kvib
from kvib.sim import ClientData, LocalSGD, Task
from kvib.sim.engines.flat import FlatModule
from kvib.sim.engines.torch_engine import TorchEngine
from kvib.sim.local import Batches, local_batches
from kvib.sim.models import make
from kvib.sim.text import Classifier, NextToken, tail_sizes
from kvib.sim.text.models import PYTHIA_70M
from kvib.sim.text.tasks import next_token_task
from tables import write

MINILM = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
SMALL = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 128, "max_position_embeddings": 64}


def synchronise() -> None:
    """Wait for the work of the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(function: Callable[[], object], repeat: int = 3) -> float:
    """The median seconds of several calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeat):
        synchronise()
        begin = time.perf_counter()
        function()
        synchronise()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def matrix_rate(device: str, n: int) -> float:
    """The operations per second of a bf16 product of two random matrices."""
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    repeats = 10
    return 2 * n**3 * repeats / seconds(lambda: [a @ b for _ in range(repeats)])


def language(config: dict[str, Any], length: int, sizes: Any) -> Task:
    """A next-token task with random tokens."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, config["vocab_size"], (sizes.sum() + 8, length + 1)).astype(np.uint16)
    return next_token_task("random tokens", rows[:-8], sizes, rows[-8:], NextToken(config))


def classes(config: dict[str, Any], length: int, sizes: Any) -> Task:
    """A classification task with random documents."""
    rng = np.random.default_rng(0)
    n = int(sizes.sum()) + 8
    x = rng.integers(1, config["vocab_size"], (n, length)).astype(np.uint16)
    x[np.arange(length) >= rng.integers(length // 2, length + 1, n)[:, None]] = 0
    y = rng.integers(0, 4, n)
    train = ClientData(x[:-8], y[:-8], sizes)
    return Task("random documents", train, (x[-8:], y[-8:]), Classifier(config, 4), 4)


def operations(config: dict[str, Any], length: int, head: bool) -> float:
    """The operations of one token, forward and backward."""
    width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    weights: float = layers * (4 * width**2 + 2 * width * config["intermediate_size"])
    if head:
        weights += width * config["vocab_size"]
    causal = 0.5 if head else 1.0  # half of the attention matrix
    return 6.0 * float(weights) + causal * 12 * layers * width * length


class PlainLoop:
    """The plain loop of PyTorch: one client after another, `torch.optim.SGD`, autocast."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self.flat = FlatModule(make(engine.task, 0), engine.device)

    def updates(self, model: torch.Tensor, batches: Batches) -> None:
        """Train the clients. Their updates are not kept."""
        engine, flat = self.engine, self.flat
        kind, bf16 = engine.device.type, engine.precision == "bf16"
        for c in range(len(batches.steps)):
            flat.vector.copy_(model)
            optimiser = torch.optim.SGD(flat.parameters, lr=engine.local.learning_rate)
            for s in range(batches.first[c], batches.first[c + 1]):
                end = batches.starts[s] + batches.lengths[s]
                at = torch.from_numpy(batches.samples[batches.starts[s] : end]).to(model.device)
                with torch.autocast(kind, torch.bfloat16, enabled=bf16):
                    loss = engine.loss(flat.module(engine.x[at]), engine.y[at]).mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()


def measured(
    task: Task, local: LocalSGD, ids: Any, device: str, ways: dict[str, Any], repeat: int
) -> list[dict[str, Any]]:
    """A row for each way to train these clients."""
    batches = local_batches(task.train, ids, local, 0, 0)
    tokens = int(batches.lengths.sum()) * task.train.x.shape[1]
    rows, factors = [], np.ones(len(ids))
    exact: torch.Tensor | None = None
    for name, options in ways.items():
        given = {k: v for k, v in options.items() if k != "plain"}
        engine = TorchEngine(task, local, device, **given)
        model = engine.initial(0)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        row: dict[str, Any] = {"way": name}
        if options.get("plain", False):
            taken = seconds(partial(PlainLoop(engine).updates, model, batches), repeat)
        else:
            total = engine.summed(model, batches, factors).total
            exact = total if exact is None else exact
            row["error"] = float((total - exact).norm() / exact.norm())
            row["graphs"] = engine.slow or engine.graphs
            taken = seconds(partial(engine.summed, model, batches, factors), repeat)
        row |= {
            "s": taken,
            "tokens/s": tokens / taken,
            "ms/step": 1e3 * taken / int(batches.first[-1]),
        }
        if device == "cuda":
            row["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
        rows.append(row)
        print(task.name, row, flush=True)
        del engine
        if device == "cuda":
            torch.cuda.empty_cache()
    return rows


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Measure, and write text.json and text.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("results"), help="Folder of the results.")
    add("--tiny", action="store_true", help="Use models with two layers that are 64 wide.")
    add(
        "--batch", type=int, nargs="+", default=[16, 64], help="Batch sizes of the next-token task."
    )
    add("--length", type=int, nargs="+", default=[128], help="Tokens of a block.")
    chunk = ("--chunk-bytes", "--memory")
    add(*chunk, type=float, default=60e9, help="Bytes for clients trained together.")
    options = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny, repeat = options.tiny, 1 if options.tiny else 3
    rate = matrix_rate(device, 256 if tiny else 8192)
    print(f"bf16 products: {rate / 1e12:.3g} TFLOP/s", flush=True)

    neox: dict[str, Any] = dict(SMALL if tiny else PYTHIA_70M)
    lengths, batches = ([12], [4]) if tiny else (options.length, options.batch)
    in_turn = {"batched": False, "precision": "bf16"}
    ways: dict[str, dict[str, Any]] = {
        "kvib, float32": {"batched": False},
        "plain loop, bf16": {"plain": True, "precision": "bf16"},
        "kvib, bf16, without graphs": {**in_turn, "graphs": False},
        "kvib, bf16": in_turn,
    }
    results: dict[str, list[dict[str, Any]]] = {"next token": []}
    for length, batch in itertools.product(lengths, batches):
        task = language(neox, length, np.full(4, batch if tiny else 12 * batch))
        local = LocalSGD(0.1, batch_size=batch)
        per_token = operations(neox, length, head=True)
        for row in measured(task, local, np.arange(4), device, ways, repeat):
            share = row["tokens/s"] * per_token / rate
            row |= {"batch": batch, "length": length, "share of the bf16 rate": share}
            results["next token"].append(row)

    bert: dict[str, Any] = {**SMALL, "model_type": "bert"} if tiny else MINILM
    clients, budget = (20, 5) if tiny else (1000, 25)
    sizes = tail_sizes(20 * clients if not tiny else 80, clients, 1.0)
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(clients, budget, replace=False))
    together = {"batched": True, "chunk_bytes": options.chunk_bytes}
    ways = {
        "kvib, one after another, float32": {"batched": False, "graphs": False},
        "plain loop, float32": {"plain": True},
        "plain loop, bf16": {"plain": True, "precision": "bf16"},
        "kvib, one after another, bf16": in_turn,
        "kvib, batched, float32": together,
        "kvib, batched, tf32": {**together, "precision": "tf32"},
        "kvib, batched, bf16": {**together, "precision": "bf16"},
    }
    documents = classes(bert, 12 if tiny else 64, sizes)
    local = LocalSGD(0.05, batch_size=4 if tiny else 16)
    rows = measured(documents, local, ids, device, ways, repeat)
    slow = {r["way"].split(", ")[-1]: r["s"] for r in rows if r["way"].startswith("plain")}
    for row in rows:
        row["plain loop in float32 / this"] = slow["float32"] / row["s"]
        row["plain loop in bf16 / this"] = slow["bf16"] / row["s"]
    results["classifier"] = rows
    about = {
        "command": "python benchmarks/text.py",
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "bf16 TFLOP/s": rate / 1e12,
        "next token": f"{sum(np.prod(p.shape) for p in shapes(neox)):,} parameters, batch and "
        "length by row",
        "classifier": f"{budget} clients of σ = 1, 64 tokens, batches of 16",
        "torch": torch.__version__,
        "kvib": kvib.__version__,
    }
    for row in results["next token"]:
        way = f"{row['way']}: {row['batch']} blocks of {row['length']} tokens a step"
        print(f"{way}: {row['share of the bf16 rate']:.1%} of the bf16 rate")
    write(options.out / "text", about, results)
    return {"environment": about, "results": results}


def shapes(config: dict[str, Any]) -> list[Any]:
    """The trained parameters of a model, without their values."""
    with torch.device("meta"):
        return [p for p in NextToken(config)().parameters() if p.requires_grad]


if __name__ == "__main__":
    main()

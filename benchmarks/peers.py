"""kvib and its peers on the same work: data, model, cohorts, batches. Prints rounds per second.

python benchmarks/peers.py --out benchmarks/results        # writes peers.json and peers.md

Each peer is installed once into a virtual environment of its own. A peer that does not install,
run or agree on the final loss stands in the table with the reason.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from core import Row, environment, markdown, shown

WORKERS = Path(__file__).parent / "peers"
TORCH = ("torch==2.13.0", "numpy")
LIMIT = 600  # seconds per worker
TOLERANCE = 1e-5  # of the loss: float32 sums in another order; a few CNN rounds change it by 1e-3
TITLES = {
    "synthetic": "Synthetic: softmax regression, N = 100, K = 10, batch 64",
    "femnist": "FEMNIST CNN: N = 462, K = 23, batch 20",
}


@dataclass(frozen=True)
class Peer:
    """A worker script, what its environment needs, and its work file for each problem."""

    name: str
    script: str
    installs: tuple[tuple[str, ...], ...]  # arguments of `pip install`, one call each
    works: dict[str, str]


BOTH = {"synthetic": "synthetic", "femnist": "femnist"}
REFERENCE = Peer("plain PyTorch loop", "plain_worker.py", (TORCH,), BOTH)
FEDLAB = (
    TORCH,
    ("pynvml", "pandas", "tqdm", "munch", "scikit-learn", "pillow"),
    ("--no-deps", "fedlab==1.3.0"),  # it asks for torchvision, used for data sets only
)
KVIB = Peer("kvib", "kvib_worker.py", (), BOTH)
PEERS = (
    REFERENCE,
    Peer("FedLab", "fedlab_worker.py", FEDLAB, BOTH),
    Peer("pfl", "pfl_worker.py", (("pfl==0.6.0", *TORCH),), BOTH),
    Peer("FedJAX", "fedjax_worker.py", (("fedjax==0.0.17",),), BOTH),
    Peer(
        "Flower simulation",
        "flower_worker.py",
        (("flwr[simulation]>=1.41,<2", *TORCH),),
        {"synthetic": "synthetic-short"},
    ),
)


# The work


def synthetic_clients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [n, 60], y [n], sizes [100]: made up, in the shape of Synthetic(1, 1)."""
    rng = np.random.default_rng(4399)
    sizes = rng.lognormal(4, 2, 100).astype(np.int64) + 50
    scale = np.arange(1, 61) ** -0.6
    x, y = [], []
    for n in sizes:
        centre, W = rng.normal(rng.normal(), 1, 60), rng.normal(rng.normal(), 1, (60, 10))
        x.append(centre + scale * rng.normal(size=(n, 60)))
        y.append((x[-1] @ W).argmax(1))
    return np.concatenate(x).astype(np.float32), np.concatenate(y), sizes


def femnist_clients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [n, 1, 28, 28], y [n], sizes [462]: made up, one noisy picture per class."""
    rng = np.random.default_rng(62)
    sizes = rng.integers(20, 81, 462)
    y = rng.integers(0, 10, sizes.sum())
    x = rng.random((10, 1, 28, 28), np.float32)[y] + rng.random((len(y), 1, 28, 28), np.float32)
    return x / 2, y, sizes


def linear_weights(features: int, classes: int) -> list[np.ndarray]:
    return [np.zeros((features, classes), np.float32), np.zeros(classes, np.float32)]


def cnn_weights(classes: int) -> list[np.ndarray]:
    """PyTorch's default initialisation, uniform within ±1/√fan-in, in its layout."""
    rng, weights = np.random.default_rng(7), []
    for shape in ((32, 1, 5, 5), (64, 32, 5, 5), (512, 64 * 7 * 7), (classes, 512)):
        bound = np.prod(shape[1:]) ** -0.5
        weights += [rng.uniform(-bound, bound, s).astype(np.float32) for s in (shape, shape[:1])]
    return weights


def write_work(
    path: Path,
    clients: tuple[np.ndarray, np.ndarray, np.ndarray],
    weights: list[np.ndarray],
    rounds: int,
    warmup: int,
    drawn: int,
    **settings: Any,
) -> Path:
    """Cohorts and orders are drawn here, so that every peer trains on identical batches."""
    x, y, sizes = clients
    rng = np.random.default_rng(1)
    cohorts = np.array(
        [rng.choice(len(sizes), drawn, replace=False) for _ in range(warmup + rounds)]
    )
    orders = np.concatenate([rng.permutation(sizes[client]) for client in cohorts.ravel()])
    initial: dict[str, Any] = {f"w{i}": w for i, w in enumerate(weights)}
    np.savez(
        path,
        x=x,
        y=y.astype(np.int64),
        sizes=sizes.astype(np.int64),
        cohorts=cohorts,
        orders=orders,
        epochs=1,
        warmup=warmup,
        **initial,
        **settings,
    )
    return path


def work_files(folder: Path) -> list[Path]:
    """Synthetic, the same with fewer rounds for the slow, and FEMNIST."""
    synthetic, femnist = synthetic_clients(), femnist_clients()
    linear = {"model": "linear", "classes": 10, "learning_rate": 0.02, "batch_size": 64}
    cnn = {"model": "cnn", "classes": 10, "learning_rate": 0.01, "batch_size": 20}
    zeros = linear_weights(synthetic[0].shape[1], 10)
    return [
        write_work(folder / "synthetic.npz", synthetic, zeros, 300, 5, 10, **linear),
        write_work(folder / "synthetic-short.npz", synthetic, zeros, 40, 3, 10, **linear),
        write_work(folder / "femnist.npz", femnist, cnn_weights(10), 5, 2, 23, **cnn),
    ]


# The peers


class PeerError(Exception):
    """Why a peer has no number."""


def call(command: list[str], variables: dict[str, str], limit: float) -> None:
    """Run to the end, or raise with the last line it said; whatever it started ends with it."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env=variables, stdout=said, stderr=said, text=True, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise PeerError(f"not done after {limit:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        lines = [line.strip() for line in said if line.strip() and "WARNING" not in line]
    if status != 0:
        raise PeerError(f"exit status {status}: {lines[-1] if lines else 'no output'}")


def interpreter(peer: Peer, environments: Path) -> str:
    """The Python of the peer's environment, made if it is not there or was made otherwise."""
    if not peer.installs:
        return sys.executable
    place = environments / Path(peer.script).stem.removesuffix("_worker")
    python, recipe = str(place / "bin" / "python"), json.dumps(peer.installs)
    marker = place / "kvib-recipe.json"  # written last: a half-made environment has none
    if not marker.exists() or marker.read_text() != recipe:
        shutil.rmtree(place, ignore_errors=True)
        call(["python3", "-m", "venv", str(place)], dict(os.environ), LIMIT)
        for arguments in peer.installs:
            command = [python, "-m", "pip", "install", "--quiet", *arguments]
            call(command, dict(os.environ), 2 * LIMIT)
        marker.write_text(recipe)
    return python


def measure(peer: Peer, work: Path, environments: Path, repeat: int) -> Row:
    """The worker's own result, the fastest of its runs: noise only ever adds."""
    script = WORKERS / peer.script
    if not script.exists():
        raise PeerError(f"{script.name} does not exist")
    python, results = interpreter(peer, environments), []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            variables = {
                **os.environ,
                "OMP_NUM_THREADS": "2",
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "FLWR_HOME": folder,
                "RAY_USAGE_STATS_ENABLED": "0",
                "PYTHONPATH": str(WORKERS),  # Ray's processes find the modules too
            }
            result = Path(folder) / "result.json"
            call([python, str(script), str(work), str(result)], variables, LIMIT)
            results.append(json.loads(result.read_text()))
    best: Row = min(results, key=lambda result: float(result["seconds"]))
    return best


# The table


def row(peer: Peer, result: Row, reference: Row) -> Row:
    """One line; `result` is a worker's result, or holds the reason why there is none."""
    if "seconds" not in result:
        blank = dict.fromkeys(("rounds", "rounds/s", "× fastest peer", "loss", "loss agrees"), "–")
        return {"peer": peer.name, "version": "–", **blank, "note": result["reason"]}
    agrees = "no reference"
    if "loss" in reference:
        error = abs(result["loss"] / reference["loss"] - 1)
        agrees = f"to {error:.0e}" if error <= TOLERANCE else f"NO, off by {error:.0e}"
    return {
        "peer": peer.name,
        "version": result["version"],
        "rounds": result["rounds"],
        "rounds/s": result["rounds"] / result["seconds"],
        "× fastest peer": 0.0,  # known once all have run
        "loss": f"{result['loss']:.5f}",
        "loss agrees": agrees,
        "note": result["note"],
    }


def compare(
    problem: str, works: dict[str, Path], environments: Path, repeat: int, console: Console
) -> list[Row]:
    results: dict[tuple[str, str], Row] = {}

    def result(peer: Peer, work: str) -> Row:
        if (peer.name, work) not in results:
            console.print(f"{problem}: {peer.name} on {work}", style="dim")
            try:
                results[peer.name, work] = measure(peer, works[work], environments, repeat)
            except PeerError as error:
                results[peer.name, work] = {"reason": str(error)}
                console.print(f"{peer.name}: {error}", markup=False)
        return results[peer.name, work]

    rows = []
    for peer in (*PEERS, KVIB):
        work = peer.works.get(problem)
        if work is None:
            rows.append(row(peer, {"reason": "not given this work"}, {}))
        else:
            rows.append(row(peer, result(peer, work), result(REFERENCE, work)))
    timed = [r for r in rows if isinstance(r["rounds/s"], float)]
    fastest = max((r["rounds/s"] for r in timed if r["peer"] != KVIB.name), default=float("nan"))
    for r in timed:
        r["× fastest peer"] = r["rounds/s"] / fastest
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--environments", type=Path, default=Path("~/.cache/kvib-peers"))
    parser.add_argument("--repeat", type=int, default=1, help="runs per peer; the fastest counts")
    options = parser.parse_args()
    environments, console = options.environments.expanduser(), Console(width=160)
    with tempfile.TemporaryDirectory() as folder:
        works = {path.stem: path for path in work_files(Path(folder))}
        results = {
            title: compare(problem, works, environments, options.repeat, console)
            for problem, title in TITLES.items()
        }
    for title, rows in results.items():
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            table.add_column(name, justify="left" if name in ("peer", "note") else "right")
        for line in rows:
            table.add_row(*map(shown, line.values()))
        console.print(table)
    about = {**environment(), "command": "python benchmarks/peers.py", "runs": options.repeat}
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    whole = {"environment": about, "results": results}
    (out / "peers.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    tables = "\n".join(markdown(title, rows) for title, rows in results.items())
    (out / "peers.md").write_text(f"{head}.\n\n{tables}")
    console.print(f"written to {out}/peers.json and peers.md")
    return int(any("NO" in r["loss agrees"] for rows in results.values() for r in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Compare the speed of kvib and its peers on the same data, model, cohorts and batches.

KVIB_DATA=… python benchmarks/peers.py --repeat 3          # all, to benchmarks/results/peers.*
python benchmarks/peers.py --problem synthetic --rounds 20 --out /tmp/peers  # a quick look

The script prints rounds per second. Each peer is installed once into a virtual environment of its
own. A peer that does not install, run or agree on the final loss stands in the table with the
reason, and is not counted.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from kvib.sim import ClientData, LocalSGD, femnist, synthetic
from kvib.sim.local import local_batches
from tables import Row, environment, publish

WORKERS = Path(__file__).parent / "peers"
TORCH = ("torch==2.13.0", "numpy")
LIMIT = 600  # seconds per worker
TOLERANCE = 1e-5  # of the loss: float32 sums in another order; a few CNN rounds change it by 1e-3
BUSY = 0.5  # load average before the start
# The same for every worker. Waiting threads spin unless OMP_WAIT_POLICY=PASSIVE is given to this
# command; spinning loses most when others use the cores, so run it on an idle machine.
THREADS = {
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", ""),
}


@dataclass(frozen=True)
class Peer:
    """A worker script, the packages of its environment, and its work file for each problem."""

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
        {"synthetic": "synthetic-short", "femnist": "femnist"},
    ),
)


# The work


def digits() -> ClientData:
    """FEMNIST v3 for every peer: float32 images [n, 1, 28, 28] in 0 … 1."""
    data = femnist.digits("v3").train
    return ClientData(data.x[:, None].astype(np.float32) / 255, data.y, data.sizes)


def linear_weights() -> list[np.ndarray]:
    """The first model of softmax regression: zeros."""
    return [np.zeros((60, 10), np.float32), np.zeros(10, np.float32)]


def cnn_weights() -> list[np.ndarray]:
    """The first CNN: PyTorch's default initialisation, uniform within ±1/√fan-in, in its layout."""
    rng, weights = np.random.default_rng(7), []
    for shape in ((32, 1, 5, 5), (64, 32, 5, 5), (512, 64 * 7 * 7), (10, 512)):
        bound = np.prod(shape[1:]) ** -0.5
        weights += [rng.uniform(-bound, bound, s).astype(np.float32) for s in (shape, shape[:1])]
    return weights


def cnn_flop() -> int:
    """The floating-point operations of one image, forward and backward, two per multiply-add."""
    first, others = 28 * 28 * 25 * 32, 14 * 14 * 800 * 64 + 3136 * 512 + 512 * 10
    return 2 * (2 * first + 3 * others)  # the gradient of the first layer's input is not needed


@dataclass(frozen=True)
class Problem:
    """The same work for all peers."""

    title: str
    clients: Callable[[], ClientData]
    weights: Callable[[], list[np.ndarray]]
    model: str
    drawn: int  # K
    local: LocalSGD
    rounds: dict[str, int]  # timed rounds of each work file
    warmup: int
    flop: int = 0  # per image, where the rate of matrix products is the limit


PROBLEMS = {
    "synthetic": Problem(
        title="Synthetic(0, 0): softmax regression, N = 100, K = 10, batch 64",
        clients=lambda: synthetic().train,
        weights=linear_weights,
        model="linear",
        drawn=10,
        local=LocalSGD(learning_rate=0.02, batch_size=64),
        rounds={"synthetic": 300, "synthetic-short": 40},  # the short one for the slow
        warmup=5,
    ),
    "femnist": Problem(
        title="FEMNIST v3 CNN: N = 462, K = 23, batch 20",
        clients=digits,
        weights=cnn_weights,
        model="cnn",
        drawn=23,
        local=LocalSGD(learning_rate=0.01, batch_size=20),
        rounds={"femnist": 8},
        warmup=2,
        flop=cnn_flop(),
    ),
}


@dataclass(frozen=True)
class Work:
    """A work file, and the floating-point operations of its timed rounds."""

    path: Path
    flop: float


def write_work(path: Path, problem: Problem, data: ClientData, rounds: int) -> Work:
    """Write the work file. It holds cohorts and orders, so that all peers train on the same
    batches."""
    rng, orders = np.random.default_rng(1), []
    T, K = problem.warmup + rounds, problem.drawn
    cohorts = np.array([rng.choice(len(data), K, replace=False) for _ in range(T)])
    for t, ids in enumerate(cohorts):
        batches = local_batches(data, ids, problem.local, seed=0, round=t)
        orders.append(batches.samples - np.repeat(data.starts[ids], data.sizes[ids]))
    initial: dict[str, Any] = {f"w{i}": w for i, w in enumerate(problem.weights())}
    np.savez(
        path,
        x=data.x,
        y=data.y,
        sizes=data.sizes,
        cohorts=cohorts,
        orders=np.concatenate(orders),
        model=problem.model,
        classes=10,
        learning_rate=problem.local.learning_rate,
        batch_size=problem.local.batch_size,
        epochs=problem.local.epochs,
        warmup=problem.warmup,
        seed=0,
        **initial,
    )
    return Work(path, float(problem.flop * data.sizes[cohorts[problem.warmup :]].sum()))


def work_files(problem: Problem, folder: Path, most: int | None) -> dict[str, Work]:
    """The work files of a problem by name, with at most this many rounds."""
    data = problem.clients()
    return {
        name: write_work(folder / f"{name}.npz", problem, data, min(rounds, most or rounds))
        for name, rounds in problem.rounds.items()
    }


# The peers


class PeerError(Exception):
    """A peer could not be installed or run. The message is the reason in the table."""


def call(command: list[str], variables: dict[str, str], limit: float) -> None:
    """Run a command to its end. Raise PeerError with its last line if it fails.

    Processes that the command has started end with it.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=output, text=True, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise PeerError(f"not done after {limit:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        lines = [line.strip() for line in output if line.strip() and "WARNING" not in line]
    if status != 0:
        raise PeerError(f"exit status {status}: {lines[-1] if lines else 'no output'}")


def interpreter(peer: Peer, environments: Path) -> str:
    """The Python of the peer's environment. It is made if it is missing or has another recipe."""
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


def variables(folder: str) -> dict[str, str]:
    """The environment variables of every worker."""
    return {
        **os.environ,
        **{name: value for name, value in THREADS.items() if value},
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(WORKERS),  # Ray's processes find the modules too
    }


def measure(peer: Peer, work: Path, environments: Path, repeat: int) -> Row:
    """The result of the worker's fastest run, since noise only adds time."""
    script = WORKERS / peer.script
    python, results = interpreter(peer, environments), []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            call([python, str(script), str(work), str(result)], variables(folder), LIMIT)
            results.append(json.loads(result.read_text()))
    best: Row = min(results, key=lambda result: float(result["seconds"]))
    return best


@dataclass(frozen=True)
class Rates:
    """The rates of float32 matrix products on this machine, flop/s."""

    square: float
    """The rate of a large square product."""
    layers: float
    """The rate of the CNN's products at their own shapes."""

    @classmethod
    def measured(cls) -> "Rates":
        """Measure both rates."""
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "rates"
            call([sys.executable, str(WORKERS / "gemm.py"), str(result)], variables(folder), LIMIT)
            return cls(**json.loads(result.read_text()))

    def best(self, other: "Rates") -> "Rates":
        """The larger one of each rate."""
        return Rates(max(self.square, other.square), max(self.layers, other.layers))


# The table


def row(name: str, result: Row, reference: Row, flop: float) -> Row:
    """One row of the table.

    Args:
        name: The name of the peer.
        result: The result of its worker, or the reason why there is none.
        reference: The result of the plain loop, whose loss must agree.
        flop: The floating-point operations of the timed rounds, 0 if they are not counted.
    """
    columns = (
        "version",
        "rounds",
        "rounds/s",
        "× fastest peer",
        "GFLOP/s",
        "of GEMM rate",
        "of layers' rate",
    )
    blank = dict.fromkeys((*columns, "loss", "loss agrees"), "–")
    if "seconds" not in result:
        return {"peer": name, **blank, "note": result["reason"]}
    agrees = "no reference"
    if "loss" in reference:
        error = abs(result["loss"] / reference["loss"] - 1)
        agrees = f"to {error:.0e}" if error <= TOLERANCE else f"NO, off by {error:.0e}"
    return {
        "peer": name,
        **blank,
        "version": result["version"],
        "rounds": result["rounds"],
        "rounds/s": result["rounds"] / result["seconds"],
        **({"GFLOP/s": flop / result["seconds"] / 1e9} if flop else {}),
        "loss": f"{result['loss']:.5f}",
        "loss agrees": agrees,
        "note": result["note"],
    }


def compare(
    name: str, works: dict[str, Work], environments: Path, repeat: int, console: Console
) -> list[Row]:
    """The rows of all peers and of kvib for one problem."""
    results: dict[tuple[str, str], Row] = {}

    def result(peer: Peer, work: str) -> Row:
        if (peer.name, work) not in results:
            console.print(f"{name}: {peer.name} on {work}", style="dim")
            try:
                results[peer.name, work] = measure(peer, works[work].path, environments, repeat)
            except PeerError as error:
                results[peer.name, work] = {"reason": str(error)}
                console.print(f"{peer.name}: {error}", markup=False)
        return results[peer.name, work]

    rows = []
    for peer in (*PEERS, KVIB):
        work = peer.works[name]
        rows.append(row(peer.name, result(peer, work), result(REFERENCE, work), works[work].flop))
    return rows


def ratio(title: str, rows: list[Row], rates: Rates | None) -> Row:
    """The row of kvib against the fastest peer whose loss agrees. Fills in the ratios of all
    rows."""
    valid = [r for r in rows if isinstance(r["rounds/s"], float) and "NO" not in r["loss agrees"]]
    peers = [r for r in valid if r["peer"] != KVIB.name]
    best = max(peers, key=lambda r: float(r["rounds/s"]), default=None)
    for r in valid:
        if best is not None:
            r["× fastest peer"] = r["rounds/s"] / best["rounds/s"]
        if rates is not None and isinstance(r["GFLOP/s"], float):
            r["of GEMM rate"] = r["GFLOP/s"] * 1e9 / rates.square
            r["of layers' rate"] = r["GFLOP/s"] * 1e9 / rates.layers
    ours: Row = next((r for r in valid if r["peer"] == KVIB.name), {})
    return {
        "problem": title,
        "fastest peer": "–" if best is None else best["peer"],
        "its rounds/s": "–" if best is None else best["rounds/s"],
        "kvib rounds/s": ours.get("rounds/s", "–"),
        "kvib / fastest peer": ours.get("× fastest peer", "–"),
        "kvib / GEMM rate": ours.get("of GEMM rate", "–"),
        "kvib / layers' rate": ours.get("of layers' rate", "–"),
    }


def main() -> int:
    """Measure, and write peers.json and peers.md. Returns 1 if the loss of a peer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add, environments = parser.add_argument, Path("~/.cache/kvib-peers")
    add("--out", type=Path, default=Path("benchmarks/results"), help="Folder of the results.")
    add("--environments", type=Path, default=environments, help="Folder of the peers' packages.")
    add("--repeat", type=int, default=1, help="Runs per peer, of which the fastest counts.")
    add("--rounds", type=int, help="Largest number of timed rounds.")
    add("--problem", choices=PROBLEMS, action="append", help="Problem to measure (default: all).")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end with this
    environments, console = options.environments.expanduser(), Console(width=170)
    load = os.getloadavg()[0]
    if load > BUSY:
        console.print(f"load average {load:.1f}: others use the cores, the ratios mean little")
    results: dict[str, list[Row]] = {}
    ratios, rates = [], Rates.measured()
    for name in options.problem or PROBLEMS:
        problem = PROBLEMS[name]
        with tempfile.TemporaryDirectory() as folder:
            try:
                works = work_files(problem, Path(folder), options.rounds)
            except ValueError as error:  # no data
                rows = [row("all", {"reason": str(error)}, {}, 0)]
            else:
                rows = compare(name, works, environments, options.repeat, console)
        rates = rates.best(Rates.measured())
        ratios.append(ratio(problem.title, rows, rates if problem.flop else None))
        results[problem.title] = rows
    results["kvib and the fastest peer"] = ratios
    about = {**environment(), "runs": options.repeat, **THREADS}
    about["OMP_WAIT_POLICY"] = about["OMP_WAIT_POLICY"] or "default"
    about["load before"] = round(load, 2)
    about["GEMM GFLOP/s"] = round(rates.square / 1e9, 1)
    about["GFLOP/s of the CNN's products at their own shapes"] = round(rates.layers / 1e9, 1)
    publish(options.out / "peers", about, results)
    return int(any("NO" in r.get("loss agrees", "") for rows in results.values() for r in rows))


if __name__ == "__main__":
    sys.exit(main())

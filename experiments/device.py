"""Carry out experiments with NumPy and torch alone: no tables, no command line.

numba is used if it is installed. Only text tasks need transformers. A run that finds too little
memory says so and stays unfinished, and the other runs are carried out.

    kvib prepare femnist-v3 --out out/tasks/femnist-v3.npz       # where the data are
    python experiments/device.py femnist-v3 --runs out/runs --tasks out/tasks \\
        --device cuda --processes 4 --stop-after 3600            # where the GPU is
    kvib run femnist-v3 --out out/runs                           # where kvib is: collects the runs

Repeat the command to continue, on the same machine or on another one with the run folders.
"""

import argparse
import math
import os
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from kvib.lab.experiment import Run
from kvib.lab.files import choose
from kvib.lab.pool import play_all
from kvib.lab.runs import Machine, RunOutcome, check
from kvib.sim.engines.engine import SLOWLY
from kvib.sim.engines.make import EngineShelf


def main() -> None:
    """Carry out all unfinished runs."""
    parser = _parser()
    options = parser.parse_args()
    if options.require_graphs:
        warnings.filterwarnings("error", SLOWLY)
        os.environ["PYTHONWARNINGS"] = f"error:{SLOWLY}"  # worker processes inherit it
    machine = Machine(
        options.device, options.threads, options.tasks, chunk_bytes=options.chunk_bytes
    )
    try:
        here = Path(__file__).parent
        chosen = [choose(word, (), options.set, here) for word in options.experiments]
        experiments = [experiment for several in chosen for experiment in several]
        for experiment in experiments:
            check(experiment, machine)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    runs = [run for experiment in experiments for run in experiment.runs()]
    # One seed of all samplers comes before the next seed. Samplers with seeds of their own cost
    # most, so they come last.
    runs.sort(key=lambda run: (run.sampler.seeds is not None, run.seed))
    begin, last = time.monotonic(), 0.0
    done: dict[str, int] = {}
    shelf = EngineShelf()

    def report(run: Run, rounds: int) -> None:
        nonlocal last
        done[f"{run.experiment.name}/{run.name}"] = rounds
        if time.monotonic() - last > 20:
            last = time.monotonic()
            print(
                f"{last - begin:.0f} s: {sum(done.values())} rounds of {len(done)} runs", flush=True
            )

    def outcomes(some: list[Run]) -> list[RunOutcome]:
        left = options.stop_after - (time.monotonic() - begin)
        settings = {"processes": options.processes, "shelf": shelf, "stop_after": left}
        return play_all(some, options.runs, machine, report=report, **settings)

    try:
        if options.processes == 1:  # one at a time, so that each outcome is printed at once
            ends = [print_outcome(run, *outcomes([run])) for run in runs]
        else:
            ends = [print_outcome(run, end) for run, end in zip(runs, outcomes(runs), strict=True)]
    except UserWarning as error:  # --require-graphs
        sys.exit(str(error))
    finished = sum(end.finished for end in ends)
    print(f"{time.monotonic() - begin:.0f} s: {finished} of {len(runs)} runs are finished")


def _parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "experiments",
        type=Path,
        nargs="+",
        help="Experiment files, or names of experiments beside this script.",
    )
    add = parser.add_argument
    add("--runs", type=Path, default=Path("out/runs"), help="Folder of the run folders.")
    add("--tasks", type=Path, default=Path("out/tasks"), help="Folder of prepared tasks.")
    add("--device", default="cuda", help="Device of torch.")
    add("--processes", type=int, default=1, help="Number of runs at the same time.")
    add("--threads", type=int, help="CPU threads per process (default: all).")
    add("--stop-after", type=float, default=math.inf, help="Seconds after which to save and stop.")
    chunk = ("--chunk-bytes", "--memory")
    add(*chunk, type=float, default=16e9, help="Bytes for clients trained together.")
    add("--require-graphs", action="store_true", help="Stop if clients cannot train fast.")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="Change of a key.")
    return parser


def print_outcome(run: Run, end: RunOutcome) -> RunOutcome:
    """Print the outcome of a run, and return it."""
    why = next((f", {why}" for why in (end.diverged, end.short) if why), "")
    how_far = f"{end.rounds} rounds, {end.seconds:.0f} s{why}"
    print(f"{run.experiment.name}/{run.name}: {how_far}", flush=True)
    return end


if __name__ == "__main__":
    main()

"""Play experiments with NumPy and torch alone: no tables, no command line.

numba is used if it is installed, transformers by text tasks only. A run that needs more memory than
there is says so and is left; the others are played.

    kvib prepare femnist-v3 --out out/tasks/femnist-v3.npz       # where the data are
    python experiments/device.py femnist-v3 --runs out/runs --tasks out/tasks \\
        --device cuda --processes 4 --stop-after 3600            # where the GPU is
    kvib run femnist-v3 --out out/runs                           # where kvib is: collects

Run folders go on where they were, on the same machine or on another.
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
    """Play everything that is not finished yet."""
    parser = _parser()
    options = parser.parse_args()
    if options.require_graphs:
        warnings.filterwarnings("error", SLOWLY)
        os.environ["PYTHONWARNINGS"] = f"error:{SLOWLY}"  # for the processes that it starts
    machine = Machine(
        options.device, options.threads, options.tasks, chunk_bytes=options.chunk_bytes
    )
    try:
        here = Path(__file__).parent
        chosen = [choose(word, (), options.set, here) for word in options.experiments]
        given = [experiment for several in chosen for experiment in several]
        for experiment in given:
            check(experiment, machine)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    runs = [run for experiment in given for run in experiment.runs()]
    # One seed of everything before the next; samplers with seeds of their own cost most: last.
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

    def played(some: list[Run]) -> list[RunOutcome]:
        left = options.stop_after - (time.monotonic() - begin)
        given = {"processes": options.processes, "shelf": shelf, "stop_after": left}
        return play_all(some, options.runs, machine, report=report, **given)

    try:
        if options.processes == 1:  # every end is reported at once
            ends = [tell(run, *played([run])) for run in runs]
        else:
            ends = [tell(run, end) for run, end in zip(runs, played(runs), strict=True)]
    except UserWarning as error:  # --require-graphs
        sys.exit(str(error))
    finished = sum(end.finished for end in ends)
    print(f"{time.monotonic() - begin:.0f} s: {finished} of {len(runs)} runs are finished")


def _parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "experiments", type=Path, nargs="+", help="files, or names of experiments beside this one"
    )
    parser.add_argument("--runs", type=Path, default=Path("out/runs"))
    parser.add_argument("--tasks", type=Path, default=Path("out/tasks"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, help="per process")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds")
    parser.add_argument(
        "--chunk-bytes", type=float, default=16e9, help="bytes for clients together"
    )
    parser.add_argument(
        "--require-graphs", action="store_true", help="stop where clients cannot train fast"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


def tell(run: Run, end: RunOutcome) -> RunOutcome:
    """Print how a run went."""
    why = next((f", {why}" for why in (end.diverged, end.short) if why), "")
    said = f"{end.rounds} rounds, {end.seconds:.0f} s{why}"
    print(f"{run.experiment.name}/{run.name}: {said}", flush=True)
    return end


if __name__ == "__main__":
    main()

"""Print the files that a draw, a step and the recovery of a journal pass through.

python benchmarks/walks.py

A jump is a pair of successive calls in different files.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import kvib

ROOT = f"{Path(kvib.__file__).parent}/"
WEIGHTS = np.arange(1, 101)


def walk(title: str, call: Callable[[], Any]) -> Any:
    """Call a function, and print the files that the call passes through, in order."""
    passed: list[str] = []

    def see(frame: FrameType, event: str, _: Any) -> None:
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and name.startswith(ROOT) and not function.startswith("<"):
            passed.append(name.removeprefix(ROOT))

    sys.setprofile(see)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    files = dict.fromkeys(passed)
    jumps = sum(file != after for file, after in pairwise(passed))
    print(f"{title}: {len(files)} files, {jumps} jumps, {len(passed)} calls")
    print("   " + " → ".join(files))
    return result


def main() -> None:
    """Print the walks of four calls."""
    warnings.simplefilter("ignore")
    sampler = kvib.recommended(WEIGHTS, 10, seed=0)
    for _ in range(2):
        cohort = sampler.draw()
        sampler.step(cohort, np.ones((len(cohort), 8)))
    cohort = walk("draw", sampler.draw)
    walk("step", lambda: sampler.step(cohort, np.ones((len(cohort), 8))))
    indexed = kvib.Sampler(kvib.KVib(), WEIGHTS, 10)
    indexed.draw()
    walk("draw by index", indexed.draw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvib"
        with kvib.journalled(path, kvib.KVib(), WEIGHTS, 10) as journal:
            for _ in range(3):
                cohort = journal.draw()
                journal.update(cohort, np.ones(len(cohort)))
        walk("journal recovery", lambda: kvib.journalled(path)).close()


if __name__ == "__main__":
    main()

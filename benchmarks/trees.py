"""Measure two clones of kvib in turns, and print medians of times and the ratio new / old.

python benchmarks/trees.py OLD NEW --times 7 --task out/tasks/femnist-v3.npz

Every turn runs benchmarks/core.py and benchmarks/scale.py --largest 6, 300 rounds of Synthetic, and
with --task four rounds of that prepared task on the CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

UNITS = ("ms", "s", "µs")
BENCHMARKS = {"core": (), "scale": ("--largest", "6")}
Times = dict[str, dict[str, list[float]]]
"""Times by measurement and by tree."""


def seconds(tree: Path, *words: str) -> float:
    """The seconds of a Python command with the code of a tree."""
    paths = os.pathsep.join(map(str, (tree / "src", tree / "benchmarks")))
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, *words], cwd=tree, env=environment, check=True)
    return time.perf_counter() - started


def measured(results: Path) -> dict[str, float]:
    """All times in a result file, by table, row and column."""
    found = {}
    for title, rows in json.loads(results.read_text())["results"].items():
        for row in rows:
            label = " ".join(str(value) for value in row.values() if isinstance(value, str | int))
            for column, value in row.items():
                if column.split()[-1] in UNITS or column.startswith("ms at"):
                    found[f"{title} | {label} | {column}"] = float(value)
    return found


def turn(tree: Path, task: Path | None) -> dict[str, float]:
    """The times of one turn with one tree."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, float] = {}
        for name, options in BENCHMARKS.items():
            seconds(tree, f"benchmarks/{name}.py", "--out", folder, *options)
            found |= measured(Path(folder) / f"{name}.json")
        simulate = ("-m", "kvib.cli", "simulate")
        long = (*simulate, "synthetic", "--rounds", "300", "--out", f"{folder}/synthetic")
        found["300 rounds of Synthetic | s"] = seconds(tree, *long)
        if task is not None:
            how = ("--device", "cpu", "--rounds", "4", "--batch-size", "20", "--out")
            found["4 rounds of a task | s"] = seconds(
                tree, *simulate, str(task.resolve()), *how, f"{folder}/task"
            )
        return found


def main() -> None:
    """Measure both trees in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="Folder of the old clone.")
    parser.add_argument("new", type=Path, help="Folder of the new clone.")
    parser.add_argument("--times", type=int, default=7, help="Number of turns.")
    parser.add_argument("--task", type=Path, help="File made by kvib prepare.")
    given = parser.parse_args()
    trees = {"old": given.old.resolve(), "new": given.new.resolve()}
    times: Times = {}
    for k in range(given.times):
        for name in sorted(trees, reverse=bool(k % 2)):  # they take turns in being first
            for what, value in turn(trees[name], given.task).items():
                times.setdefault(what, {"old": [], "new": []})[name].append(value)
    for what, by in times.items():
        if by["old"] and by["new"]:
            old, new = median(by["old"]), median(by["new"])
            print(f"{new / old:6.2f}  {old:10.4g}  {new:10.4g}  {what}")


if __name__ == "__main__":
    main()

"""`docs/beyond.md`: the goals for kvib's own samplers, generated from result files."""

from pathlib import Path

import numpy as np

from kvib.lab import tables
from kvib.lab.tables import Results
from paper import figures
from paper.comparing import late, lost, median
from paper.goals import CLAIMS
from paper.origins import of_runs
from paper.report import drawn

HEAD = """# Beyond the paper: goals, and what was reached

`python experiments/paper report` generates this page from the files in `results/`. Each row has a
goal for kvib's own samplers, the measurement, and the verdict. A goal is reached if every seed
reaches it. K-Vib takes G from its first round.

Rows on Synthetic are ratios of sums over the run, seed by seed, with each sampler on its own
trajectory. They have run seeds 0 to 4 unless the row says otherwise, and nothing was tuned on these
seeds. Rows on FEMNIST have three seeds for rounds to a target, and one run where the row says so.

| goal | measured | verdict | remark | command |
|---|---|---|---|---|
"""

FEDERATIONS = ("beyond-femnist-400", "beyond-femnist-v1", "beyond-femnist-v2", "beyond-femnist-v3")
COLUMNS = (
    "| K | sampler | variance / uniform's | regret / K-Vib's | accuracy | training loss |\n"
    "|---|---|---|---|---|---|\n"
)


def federation(results: Results) -> str:
    """A table of medians over the run, with means of accuracy and loss over its last tenth.

    It has the samplers that were run. The line below the table names the missing runs.
    """
    rows = []
    for K in results.table["budget"].unique().sort():
        part = results.where(budget=K)
        part = part.of(*part.table["label"].unique())
        noise, regret = median(part, "uniform", "variance"), median(part, "K-Vib", "regret")
        for label in part.labels:
            cells = (
                _cell(median(part, label, "variance") / noise, ".2f"),
                _cell(median(part, label, "regret") / regret, ".2f"),
                _cell(late(part, label, "accuracy"), ".3f") + ", lost" * (lost(part, label) > 0),
                _cell(late(part, label, "train_loss"), ".3f"),
            )
            rows.append(f"| {K:g} | {label} | {' | '.join(cells)} |\n")
    return COLUMNS + "".join(rows)


def _cell(value: float, form: str) -> str:
    return "–" if np.isnan(value) else f"{value:{form}}"


def federations(results: Path) -> str:
    """Sections on FEMNIST, a table for each task, from few clients a round to many."""
    parts = []
    for name in FEDERATIONS:
        if tables.missing((name,), results):
            parts.append(f"\nNo results yet of `{name}`.\n")
            continue
        found = tables.load(results / name)
        parts.append(f"\n## {name}\n\n{federation(found)}{LEGEND}{of_runs(found)}")
    return "".join(parts)


LEGEND = """
There is one seed. Variance and regret are medians over exact metrics of every tenth round, with
each sampler on its own trajectory. Accuracy and loss are means over the last tenth of the run. A
lost run ended early, or with less than half of the best accuracy of all. A dash (–) means that the
value is not known because not all clients trained in one chunk (this is mended since), or that the
run, or the run it is relative to, was lost.
"""


def page(results: Path) -> str:
    """The whole page."""
    rows = [claim.row(results) for claim in CLAIMS]
    parts = (HEAD, *rows, notes(results), federations(results), *drawn(figures.BEYOND, results))
    return "".join(parts)


def notes(results: Path) -> str:
    """The notes in the files of results, each with the names of its files."""
    files: dict[str, list[str]] = {}
    for need in dict.fromkeys(need for claim in CLAIMS for need in claim.needs):
        if not tables.missing((need,), results):
            note = tables.load_about(results / need).get("note", "")
            files.setdefault(note, []).append(need)
    files.pop("", None)
    return "".join(f"\nNote on {', '.join(names)}: {note}\n" for note, names in files.items())

"""Write the tables of docs/selectors.md from results/selectors-*.

    python experiments/selector_tables.py          # writes the tables into the page

Each sampler has a row: what a round costs clients, and means over the last tenth of the rounds,
with intervals of 95 % over seeds.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from kvib.lab.seeds import mean, ranged
from kvib.lab.tables import Results, file, load
from paper.origins import of_runs

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs/selectors.md"
EXPERIMENTS = ("selectors-synthetic", "selectors-femnist-v3")
COLUMNS = {"train_loss": "training loss", "loss": "test loss", "accuracy": "test accuracy"}


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| sampler | model sent to | evaluate it | {' | '.join(COLUMNS.values())} |"
    yield "|---" * (3 + len(COLUMNS)) + "|"
    for label in results.labels:
        own = results.where(label=label).table
        asked, drawn = own["asked"].mean(), own["clients"].mean()
        numbers = (
            ranged(mean(results, label, column, since=results.last_tenth(column)), ".3f")
            for column in COLUMNS
        )
        yield f"| {label} | {max(asked, drawn):.0f} | {asked:.0f} | {' | '.join(numbers)} |"
    seeds = results.table["seed"].n_unique()
    yield ""
    yield (
        f"{seeds} seed{'' if seeds == 1 else 's'}, means over the last tenth of "
        f"{results.experiment['rounds']} rounds"
        f"{', with intervals of 95 % over seeds' if seeds > 1 else ''}."
    )
    yield of_runs(results).strip()


def page(results: Path) -> str:
    """The text of the page, with a new table for each experiment that has results."""
    text = PAGE.read_text(encoding="utf-8")
    for name in EXPERIMENTS:
        if not file(results / name, "json").exists():
            continue
        begin, end = (f"<!-- {word} {name} -->" for word in ("begin", "end"))
        head, _, rest = text.partition(begin)
        tail = rest.partition(end)[2]
        lines = "\n".join(table(load(results / name)))
        text = f"{head}{begin}\n{lines}\n{end}{tail}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(HOME / "results"), encoding="utf-8")

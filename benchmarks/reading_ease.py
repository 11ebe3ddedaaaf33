"""How easily pages and docstrings read: the Flesch reading ease, here and in an earlier tree.

The index is 206.8 − 1.015·(words per sentence) − 84.6·(syllables per word): higher is easier. It
counts words and knows no sense, so it is a figure to look at and not a goal. `--draw` lists ten
pages and ten modules, drawn with a seed, to be read side by side.

python benchmarks/reading_ease.py --before 72aa53d --out benchmarks/results
python benchmarks/reading_ease.py --before 72aa53d --draw 19       # and the commands that show them
"""

import argparse
import math
import random
import statistics
import subprocess
from pathlib import Path
from typing import Any

import prose
import tables
from tables import Row

HOME = Path(__file__).parents[1]
FEWEST = 30
"""Words that a text needs before its index means anything."""
LETTERS = str.maketrans(dict.fromkeys("«»\"'()[]{},:*_#|", " "))


def tree(commit: str | None) -> dict[str, str]:
    """Pages and modules by path, of a commit or of the files here."""
    if commit is None:
        paths = [*HOME.glob("docs/**/*.md"), HOME / "README.md", *HOME.glob("src/**/*.py")]
        return {str(p.relative_to(HOME)): p.read_text(encoding="utf-8") for p in sorted(paths)}
    listed = _git("ls-tree", "-r", "--name-only", commit).splitlines()
    wanted = [p for p in listed if p == "README.md" or p.startswith(("docs/", "src/"))]
    return {p: _git("show", f"{commit}:{p}") for p in wanted if p.endswith((".md", ".py"))}


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HOME, capture_output=True, text=True, check=True)
    return done.stdout


def ease(text: str) -> float:
    """The Flesch reading ease of some prose; NaN for a text that is too short."""
    import readability

    lines = [" ".join(one.translate(LETTERS).split()) for one in prose.sentences(text)]
    lines = [line for line in lines if len(line.split()) > 2]
    if sum(len(line.split()) for line in lines) < FEWEST:
        return math.nan
    grades: dict[str, Any] = readability.getmeasures("\n".join(lines), lang="en")
    return float(grades["readability grades"]["FleschReadingEase"])


def measured(files: dict[str, str]) -> dict[str, dict[str, float]]:
    """The index of every page and of the docstrings of every module, by kind and path."""
    kinds: dict[str, dict[str, float]] = {"pages": {}, "docstrings": {}}
    for path, text in files.items():
        is_page = path.endswith(".md")
        words = prose.page(text) if is_page else "\n\n".join(prose.docstrings(text))
        value = ease(words)
        if not math.isnan(value):
            kinds["pages" if is_page else "docstrings"][path] = value
    return kinds


def rows_of(trees: dict[str, dict[str, dict[str, float]]]) -> list[Row]:
    """The quartiles of every kind in every tree."""
    rows = []
    for name, kinds in trees.items():
        for kind, values in kinds.items():
            low, middle, high = statistics.quantiles(values.values(), n=4)
            quartiles = {"lower quartile": low, "median": middle, "upper quartile": high}
            rows.append({"tree": name, "prose": kind, "texts": len(values), **quartiles})
    return rows


def figure(trees: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Boxes of the index of every text, tree beside tree."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for axis, kind in zip(axes, ("pages", "docstrings"), strict=True):
        axis.boxplot([list(kinds[kind].values()) for kinds in trees.values()], showfliers=False)
        axis.set_xticks(range(1, len(trees) + 1), list(trees))
        axis.set_title(kind)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("Flesch reading ease")
    fig.suptitle("Texts by how easily they read: higher is easier")
    fig.savefig(path, dpi=120)


def drawn(files: dict[str, str], seed: int) -> list[str]:
    """Ten pages and ten modules of the tree, at random."""
    rng = random.Random(seed)
    pages = sorted(path for path in files if path.endswith(".md"))
    modules = sorted(path for path in files if path.endswith(".py") and len(files[path]) > 1_000)
    return [*rng.sample(pages, 10), *rng.sample(modules, 10)]


def main() -> None:
    """Measure, and write reading_ease.json, reading_ease.md and a figure, or list texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="Commit to compare with (default: none).")
    parser.add_argument("--draw", type=int, metavar="SEED", help="List ten pages and ten modules.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="Folder of the results.")
    options = parser.parse_args()
    now = tree(None)
    if options.draw is not None:
        for path in drawn(now, options.draw):
            print(f"git diff {options.before or 'COMMIT'} --find-renames -- {path}")
        return
    trees = {"now": measured(now)}
    if options.before:
        trees = {f"before ({options.before[:7]})": measured(tree(options.before)), **trees}
    out = options.out / "reading_ease"
    tables.publish(out, tables.environment(), {"Flesch reading ease": rows_of(trees)})
    figure(trees, out.with_suffix(".png"))


if __name__ == "__main__":
    main()

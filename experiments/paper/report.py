"""`docs/reproduction.md`: the page is generated from result files, so it agrees with them."""

from pathlib import Path

from paper import figures, text_claims
from paper.claims import CLAIMS

HEAD = """# The paper, claim by claim

`python experiments/paper report` generates this page from the files in `results/`, and a test fails
if the two differ. Numbers are mean ± standard deviation over run seeds. Brackets hold an interval
of 95 % for the mean. Every sampler has the unbiased estimator unless stated otherwise. `python
experiments/paper figure NAME` draws a figure from the same files, and `kvib run NAME` runs an
experiment.

The verdict “not tested as published” means that models, data, learning rates and rounds differ from
the paper's. The column “why” then says what was seen, and the list below the table says what
differs.

| the paper | what we measured | verdict | why | command |
|---|---|---|---|---|
"""


def page(results: Path) -> str:
    """The whole page."""
    rows = [claim.row(results) for claim in CLAIMS]
    other = [f"\n- {line}.\n" for line in text_claims.settings(results)]
    return "".join([HEAD, *rows, *other, *drawn(figures.PAPER, results)])


def drawn(drawings: dict[str, figures.Drawing], results: Path) -> list[str]:
    """A section for every figure that has results, then the names of the other figures."""
    parts, absent = [], [name for name in drawings if figures.missing(name, results)]
    for name, drawing in drawings.items():
        if name in absent:
            continue
        parts.append(f"\n## {name}\n\n![{name}](figures/{name}.png)\n\n{drawing.caption}\n")
        for need in drawing.needs:
            parts.append(drawing.origin(drawing.read(results / need)))
    if absent:
        parts.append(f"\nNo results yet for the figures: {', '.join(absent)}.\n")
    return parts

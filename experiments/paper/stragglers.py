"""`docs/stragglers.md`: unbiased estimates against an average of the clients that answered."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from kvib.lab import tables
from kvib.lab.seeds import interval, per_seed, ranged, spread, total
from kvib.lab.tables import MissingResultsError, Results
from paper import figures
from paper.claim import Claim, Finding, reproduce
from paper.comparing import over
from paper.report import drawn
from paper.straggler_figure import (
    POLICIES,
    REFERENCE,
    SETTINGS,
    WAYS,
    end,
    error,
    measured_policies,
)

CLOSE = 0.03
"""A loss within this share of the loss with all clients counts as the same end."""

HEAD = """# Stragglers: divide by the answer probability, or average the answers?

`python experiments/paper report` generates this page from the files in `results/`.

The task is Synthetic(0, 0) with K = 10, independent draws and local training as in the paper. There
are five run seeds, and nothing was tuned on them. Brackets hold an interval of 95 % for the mean.

A drawn client stays silent with a probability that is 0.3 on average over clients. There are three
cases. In the first case it is the same for all clients, as in the paper's appendix but after the
draw. In the second case it rises from 0 for the client with the least data to 0.6 for the client
with the most data. In the third case it falls from 0.6 to 0 in the same order.

An unbiased estimate divides by the answer probability. The sampler knows this probability, or
learns it during the run (`EstimatedRate()`). An average is that of FedAvg, over the clients that
answered. The goal of every estimate is the step of all 100 clients. [The
simulator](simulator.md#stragglers) tosses the coins, and all samplers of a seed get the same coins.

## In words

The unbiased estimate trains the model of all clients, whichever clients are late, if its noise is
small. Its noise is small with draws by size or by Forecast. With uniform draws or K-Vib the noise
is not small where the clients with most of the data answer least.

An average trains the model of the clients that answered. If silence has nothing to do with the
data, this is the model of all clients up to a few percent. Uniform draws are an exception, because
their average gives small clients more weight in any case. If the large clients are late, the
average trains another model. If the small clients are late, it trains a third model.

The unbiased estimate does not promise a lower loss. The model of all clients is not the model with
the lowest training loss here. Averages end below it with uniform draws, and with all other samplers
where the large clients are late. Averages of the other samplers end above it where the small
clients are late. To train the objective that the weights define, divide by the answer probability,
and draw at least by size. If you average, find out which clients are late.

| question | measured | answer | remark | command |
|---|---|---|---|---|
"""


def _ratios(
    given: list[Results], suffix: str, other: Callable[[Results, str], np.ndarray]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """(late clients, policy, last loss over another loss, [seeds]) for every setting and policy."""
    for who, results in zip(SETTINGS.values(), given, strict=True):
        for policy in POLICIES:
            yield who, policy, over(end(results, policy + suffix), other(results, policy))


def _listed(found: list[tuple[str, str, np.ndarray]]) -> str:
    """The ratios in words, setting by setting."""
    lines = []
    for who in SETTINGS.values():
        own = (f"{policy} {ranged(ratio)}" for at, policy, ratio in found if at == who)
        lines.append(f"{who}: {', '.join(own)}")
    return "; ".join(lines)


def _close(found: list[tuple[str, str, np.ndarray]]) -> list[str]:
    """Policies whose ratios are near 1 in all settings."""
    off = {p: [abs(float(x.mean()) - 1) for _, q, x in found if q == p] for p in POLICIES}
    return [policy for policy, each in off.items() if max(each) <= CLOSE]


def whole_model(suffix: str) -> Callable[[list[Results]], Finding]:
    """Judge whether training ends at the loss with all clients in all settings."""

    def judge(given: list[Results]) -> Finding:
        reference, *settings = given
        goal = end(reference, "all clients")
        found = list(_ratios(settings, suffix, lambda *_: goal.mean()))
        means = {p: [float(x.mean()) for _, q, x in found if q == p] for p in POLICIES}
        moved = ", ".join(f"{p} {max(x) / min(x):.2f}" for p, x in means.items())
        close = " and ".join(_close(found))
        return Finding(
            f"loss over that of all clients, {goal.mean():.3f}: {_listed(found)}",
            f"with {close}" if close else "no",
            f"a sampler counts if it is within {CLOSE:.0%} in all three cases; the largest of the "
            f"three over the smallest: {moved}",
        )

    return judge


def which_is_lower(given: list[Results]) -> Finding:
    """Compare the loss of the average with that of the unbiased estimate."""
    found = list(_ratios(given, ", average", end))
    spans = [interval(ratio) for _, _, ratio in found]
    lower, higher = sum(high < 1 for _, high in spans), sum(low > 1 for low, _ in spans)
    return Finding(
        f"loss of the average over that of the unbiased estimate: {_listed(found)}",
        f"lower in {lower} of {len(spans)}, higher in {higher}",
        "counted where the interval is on one side of 1",
    )


def learned_rates(given: list[Results]) -> Finding:
    """Compare the loss with estimated rates with that with known rates."""
    found = list(_ratios(given, ", estimated", end))
    spans, close = [interval(ratio) for _, _, ratio in found], " and ".join(_close(found))
    apart = sum(not low <= 1 <= high for low, high in spans)
    return Finding(
        f"loss with estimated rates over that with known rates: {_listed(found)}",
        f"at most {CLOSE:.0%} with {close}" if close else f"more than {CLOSE:.0%}",
        f"{apart} of {len(found)} differ from 1 by more than their seeds do (95 %)",
    )


def least_error(given: list[Results]) -> Finding:
    """Compare the error of a step and the straggler regret with uniform's."""
    lines, orders = [], []
    for who, results in zip(SETTINGS.values(), given, strict=True):
        errors = {p: error(results, p).mean() for p in POLICIES}
        regrets = {p: total(results, p, "regret").mean() for p in POLICIES}
        orders.append(min(errors, key=lambda p: float(errors[p])))
        parts = (
            f"{p} {errors[p] / errors['uniform']:.2g} and {regrets[p] / regrets['uniform']:.2g}"
            for p in POLICIES[1:]
        )
        lines.append(f"{who}: {', '.join(parts)}")
    best = set(orders)
    return Finding(
        f"E‖d − D‖² and regret Σπ²/(q·p) − min of all rounds, over uniform's: {'; '.join(lines)}",
        best.pop() if len(best) == 1 else "it depends",
        f"exact, rates known, {len(given[0].table['seed'].unique())} seeds",
    )


ALL = tuple(SETTINGS)
COMMAND = reproduce("stragglers")
CLAIMS = (
    Claim("Divided by known rates: does training end at the loss with all clients, whichever "
          "clients are late?", "", (REFERENCE, *ALL), whole_model(""), COMMAND, tables.load),
    Claim("An average of the answers: does training end there?", "", (REFERENCE, *ALL),
          whole_model(", average"), COMMAND, tables.load),
    Claim("Which of the two has the lower training loss?", "", ALL, which_is_lower, COMMAND,
          tables.load),
    Claim("How much loss do learned rates cost?", "", ALL, learned_rates, COMMAND, tables.load),
    Claim("Which sampler has the smallest error of a step?", "", ALL, least_error, COMMAND,
          tables.load),
)  # fmt: skip


def table(results: Results) -> str:
    """A table of all measurements, mean ± standard deviation over seeds."""
    rows = [COLUMNS]
    answered = pl.col("answered").sum() / pl.col("clients").sum()
    for suffix, way in WAYS.items():
        for _, policy in measured_policies(results, suffix):
            label = policy + suffix
            off, cells = error(results, label), ["–", "–"]
            if not np.isnan(off).any():
                cells = [spread(off), spread(total(results, label, "regret"), done="finished")]
            loss = spread(end(results, label), done="finished")
            share = f"{per_seed(results, label, 'answered', answered).mean():.0%}"
            rows.append(f"| {' | '.join((way, policy, share, loss, *cells))} |\n")
    return "".join(rows)


COLUMNS = (
    "| estimate | sampler | answers | training loss | E‖d − D‖² | regret |\n"
    "|---|---|---|---|---|---|\n"
)
NOTES = """
Answers are the share of the drawn clients that answered. Training loss is the mean of the last
tenth of the run. E‖d − D‖² = variance + bias² is exact and is the mean over every twentieth round.
It has no closed form for an average. Regret is the sum of Σπ²/(q·p) − min Σπ²/(q·p) over the same
rounds. Each sampler is on its own trajectory.
"""


def page(results: Path) -> str:
    """The whole page."""
    parts = [HEAD, *(claim.row(results) for claim in CLAIMS)]
    for name, who in SETTINGS.items():
        try:
            parts.append(f"\n## 30 % stragglers, {who}\n\n{table(tables.load(results / name))}")
        except MissingResultsError:
            parts.append(f"\nNo results yet of `{name}`.\n")
    return "".join([*parts, NOTES, *drawn(figures.STRAGGLERS, results)])

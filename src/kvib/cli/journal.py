"""`kvib journal`, `kvib replay` and `kvib plan`: commands that read a journal."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from kvib import names
from kvib.cli.places import check_file
from kvib.cli.screen import console, counted, say
from kvib.journal import History, read
from kvib.names import PROCEDURES
from kvib.policies import Forecast
from kvib.replay import Terms, grid
from kvib.replay import replay as replayed
from kvib.replay.plan import plan as planned
from kvib.types import FloatArray

File = Annotated[Path, typer.Argument(help="Journal to read. It may be in use.")]
Last = Annotated[
    int | None,
    typer.Option(
        help="Number of last rounds to measure (default: all). "
        "Policies learn from earlier rounds, which are not measured."
    ),
]
Level = Annotated[float, typer.Option(help="Probability that an interval holds the true value.")]


def journal(
    file: File,
    rounds: Annotated[int, typer.Option(help="Number of last rounds to show.")] = 10,
    clients: Annotated[
        int, typer.Option(help="Number of clients to show, beginning with the most drawn.")
    ] = 5,
) -> None:
    """Show a journal: rounds, cohort sizes, estimated variances and participation."""
    for option, number in {"--rounds": rounds, "--clients": clients}.items():
        if number < 0:
            raise ValueError(f"{option} {number}: give 0 or more")
    history = read(file)
    about, table = history.about, history.table()
    say(
        f"{file}: {about.policy}, {about.procedure}, budget {about.budget:g}, seed {about.seed}; "
        f"{about.clients} clients, {about.rounds} rounds"
    )
    if about.removed:
        say(f"details of rounds 0 to {about.removed - 1} were removed (keep={about.keep})")
    for event in (*history.switches(), *history.upgrades()):
        say(str(event))
    shown = Table("round", "drawn", "budget", "answered", "Σ coefficient", "estimated variance")
    for k in range(max(0, len(table.round) - rounds), len(table.round)):
        numbers = (table.budget, table.answered, table.coefficients, table.variance)
        cells = ["–" if np.isnan(column[k]) else f"{column[k]:.4g}" for column in numbers]
        shown.add_row(str(table.round[k]), str(table.size[k]), *cells)
    console.print(shown)
    last = table.round >= len(table.round) - rounds
    if (last & np.isnan(table.variance) & ~np.isnan(table.answered)).any():
        say(_unknown(about.procedure))
    taken = history.participation()
    say(
        f"a client took part in {taken.mean():.3g} rounds on average and in "
        f"{taken.max(initial=0)} at most; {np.count_nonzero(taken == 0)} clients never did"
    )
    most = np.argsort(-taken, kind="stable")[:clients]
    keys = history.keys()
    say("most often: " + ", ".join(f"client {keys[i]} {taken[i]} times" for i in most))


def _unknown(procedure: str) -> str:
    """The reason why the variance of an answered round may be unknown."""
    found, lost = PROCEDURES.get(procedure), "an answer is missing that was certain"
    if found is not None and found.uncorrelated:
        return f"–: {lost}, so the variance of the round is unknown"
    return (
        f"–: the variance of {procedure} draws does not follow from the norms alone; end rounds "
        "with sampler.step(cohort, updates), which sees the updates, and the journal keeps the "
        f"variance (unless {lost})"
    )


def replay(
    file: File,
    policy: Annotated[
        list[str],
        typer.Option(
            help='Policy to compare, such as Forecast or "KVib(rounds=500)". May be repeated.'
        ),
    ],
    last: Last = None,
    budget: Annotated[
        float | None, typer.Option(help="Budget per round (default: as logged).")
    ] = None,
    level: Level = 0.9,
) -> None:
    """Estimate how much lower the variance of another policy would have been."""
    rivals = {words: names.policy(words) for words in policy}
    history = read(file)
    terms, since = history.terms(), _since(history, last)
    with counted("replay", history.about.rounds) as progress:
        found = replayed(
            history, rivals, terms, budget=budget, since=since, level=level, progress=progress
        )
    say(str(found))


def plan(
    file: File,
    policy: Annotated[str, typer.Option(help="Policy to plan with.")] = repr(Forecast()),
    last: Last = None,
    level: Level = 0.9,
    out: Annotated[
        Path | None, typer.Option(help="Picture of the curves to write (default: none).")
    ] = None,
) -> None:
    """Show variance against budget, and the budget with today's variance under a better policy."""
    other = names.policy(policy)
    _check_picture(out)
    history = read(file)
    terms, since = history.terms(), _since(history, last)
    budgets = _budgets(history, terms, since)
    with counted("plan", history.about.rounds) as progress:
        found = planned(
            history, other, terms, budgets=budgets, since=since, level=level, progress=progress
        )
    say(str(found))
    if out is not None:
        from kvib.lab.plan_figure import draw_plan

        draw_plan(found).savefig(out, dpi=150)
        say(f"written to {out}")


def _check_picture(out: Path | None) -> None:
    """Raise an error unless matplotlib is installed and can write the picture."""
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    check_file(out, "--out")
    kinds = FigureCanvasBase.filetypes
    if out.suffix[1:].lower() not in kinds:
        raise ValueError(f"--out {out}: give a name that ends with one of .{', .'.join(kinds)}")


def _since(history: History, last: int | None) -> int:
    """The first round to measure. It and all later rounds were drawn with today's procedure."""
    if last is not None and last < 1:
        raise ValueError(f"--last {last} is not a number of rounds; give 1 or more")
    others = (s.round for s in history.switches() if s.procedure != s.procedure_before)
    first = max(others, default=0)
    if first:
        say(
            f"rounds 0 to {first - 1} were drawn with another procedure: policies learn from them, "
            "but they are not measured"
        )
    return first if last is None else max(first, history.about.rounds - last)


def _budgets(history: History, terms: Terms, since: int) -> FloatArray | None:
    """Budgets to plan with. None means the budgets that `plan` tries by default.

    Where budgets count clients, they lie around the budgets of the measured rounds: a sampler
    whose clients joined later was made for fewer of them.
    """
    drawn = history.table().budget[since:]
    if terms.prices is not None or not (drawn > 0).any():
        return None
    return grid(float(np.median(drawn[drawn > 0])), terms.most)

"""`kvib journal`, `replay`, `plan`: what the rounds of a journal say."""

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

File = Annotated[Path, typer.Argument(help="A journal; also one in use.")]
Last = Annotated[
    int | None, typer.Option(help="Measure this many rounds; earlier ones only teach.")
]
Level = Annotated[float, typer.Option(help="Probability that an interval holds the truth.")]


def journal(
    file: File,
    rounds: Annotated[int, typer.Option(help="How many of the last rounds to show.")] = 10,
    clients: Annotated[int, typer.Option(help="How many clients to show, most drawn first.")] = 5,
) -> None:
    """What a journal holds: its rounds, cohort sizes, estimated variance, who took part."""
    for option, given in {"--rounds": rounds, "--clients": clients}.items():
        if given < 0:
            raise ValueError(f"{option} {given}: give 0 or more")
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
        f"a client took part in {taken.mean():.3g} rounds on average, at most in "
        f"{taken.max(initial=0)}; {np.count_nonzero(taken == 0)} never did"
    )
    most = np.argsort(-taken, kind="stable")[:clients]
    names = history.keys()
    say("most often: " + ", ".join(f"client {names[i]} {taken[i]} times" for i in most))


def _unknown(procedure: str) -> str:
    """Why a round that was heard may not show its variance."""
    known, lost = PROCEDURES.get(procedure), "an answer is missing that was certain"
    if known is not None and known.uncorrelated:
        return f"–: {lost}, and the round does not show its variance"
    return (
        f"–: the norms alone do not tell the variance of {procedure} draws; end rounds with "
        "sampler.step(cohort, updates), which sees the updates, and the journal keeps it (but "
        f"where {lost})"
    )


def replay(
    file: File,
    policy: Annotated[list[str], typer.Option(help='Forecast, "KVib(rounds=500)", …')],
    last: Last = None,
    budget: Annotated[float | None, typer.Option(help="Of a round; as logged.")] = None,
    level: Level = 0.9,
) -> None:
    """How much lower another policy's variance would have been in these rounds."""
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
    policy: Annotated[str, typer.Option(help="The policy to plan with.")] = repr(Forecast()),
    last: Last = None,
    level: Level = 0.9,
    out: Annotated[Path | None, typer.Option(help="Write the curves as a picture.")] = None,
) -> None:
    """Variance against budget, and how much of it keeps today's under a better policy."""
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
    """That matplotlib is here and can write it."""
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    check_file(out, "--out")
    kinds = FigureCanvasBase.filetypes
    if out.suffix[1:].lower() not in kinds:
        raise ValueError(f"--out {out}: give a name that ends with one of .{', .'.join(kinds)}")


def _since(history: History, last: int | None) -> int:
    """The first round to measure: of the last ones, and drawn with the procedure of today."""
    if last is not None and last < 1:
        raise ValueError(f"--last {last} is not a number of rounds; give 1 or more")
    others = (s.round for s in history.switches() if s.procedure != s.procedure_before)
    first = max(others, default=0)
    if first:
        say(f"rounds 0 to {first - 1} were drawn with another procedure: they only teach")
    return first if last is None else max(first, history.about.rounds - last)


def _budgets(history: History, terms: Terms, since: int) -> FloatArray | None:
    """Budgets to plan with, around those of the measured rounds where they count clients: a sampler
    whose clients came later was made for fewer. None means those that `plan` tries by default."""
    drawn = history.table().budget[since:]
    if terms.prices is not None or not (drawn > 0).any():
        return None
    return grid(float(np.median(drawn[drawn > 0])), terms.most)

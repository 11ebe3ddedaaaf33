"""The paper's claims about its two text experiments, each judged from result files.

Models, data, learning rates and rounds differ from the paper's, so its claims are not tested as
published. The verdict says so, the reason says what was seen, and `settings` lists what differs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvib.lab import tables
from kvib.lab.seeds import mean, ranged, spread, total
from kvib.lab.tables import MissingResultsError, Results
from paper.claim import BASELINES, NOT, PARTLY, REPRODUCED, UNTESTED, Claim, Finding, reproduce
from paper.comparing import count, listed, over

THEIRS = (*BASELINES, "FedAvg (self-normalised)")
OURS = ("by size", "Forecast", "recommended")
"""Samplers that the paper does not have: its simplest rival, and our own."""
TAILS = (1, 2, 3)
FASTER = 1.2
"""A sampler counts as faster from this factor on, since one seed may differ by chance."""
LATE = 3
"""Last measurements that are averaged: in a long tail the very last one may be a spike."""


def compared(path: Path) -> Results:
    """Results of the samplers in the claims; our own samplers may be missing."""
    return tables.load(path).of(*THEIRS, "K-Vib").paired()


def ends(results: Results, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """The last measured training loss, [seeds]; infinite for a run that ended early."""
    last = int(results.measured("train_loss")[-1])
    return {label: total(results, label, "train_loss", since=last) for label in labels}


def late(results: Results, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Mean of the last training losses, [seeds]; infinite for a run that ended early."""
    since = int(results.measured("train_loss")[-LATE:][0])
    return {label: mean(results, label, "train_loss", since=since) for label in labels}


def at_chance(given: Sequence[Results]) -> dict[int, str]:
    """The tails in which uniform does not end below its first loss, and on how many seeds."""
    found = {}
    for tail, results in zip(TAILS, given, strict=True):
        first = results.where(round=int(results.measured("train_loss")[0]))
        begins = total(first, "uniform", "train_loss")
        lost = ~(late(results, ["uniform"])["uniform"] < begins)
        if lost.any():
            found[tail] = "" if lost.all() else f" on {lost.sum()} of {len(lost)} seeds"
    return found


def conditions(given: Sequence[Results]) -> str:
    """The conditions of a comparison: learning rate, seeds, runs that learned nothing."""
    rates = sorted({r for results in given for r in results.experiment["local"]["learning_rates"]})
    text = (
        f"one learning rate for all, {', '.join(f'{rate:g}' for rate in rates)}, uniform's best "
        f"with σ = 2; {seeds_of(given)}"
    )
    for tail, seeds in at_chance(given).items():
        text += f"; with σ = {tail} uniform stays at chance{seeds}, no lower than it began"
    return text


def seeds_of(given: Sequence[Results]) -> str:
    """The number of seeds for each tail."""
    many = [len(late(results, ["uniform"])["uniform"]) for results in given]
    if len(set(many)) == 1:
        return count({"": late(given[0], ["uniform"])["uniform"]})
    return "seeds: " + ", ".join(
        f"{n} with σ = {tail}" for tail, n in zip(TAILS, many, strict=True)
    )


def reached(
    results: Results, label: str, targets: np.ndarray, column: str = "train_loss"
) -> np.ndarray:
    """Rounds until a loss is at the target of each seed, [seeds]; infinite if it never is.

    The loss is interpolated linearly between measurements.
    """
    rows = results.where(label=label).table.drop_nulls(column).sort("seed", "round")
    found = []
    for target, (_, run) in zip(targets, rows.group_by("seed", maintain_order=True), strict=True):
        rounds, losses = (run[name].to_numpy().astype(float) for name in ("round", column))
        below = np.flatnonzero(losses <= target)
        if not len(below):
            found.append(np.inf)
            continue
        at = int(below[0])
        if at == 0:
            raise MissingResultsError("the target is where training begins: nobody learned")
        found.append(np.interp(-target, -losses[at - 1 : at + 1], rounds[at - 1 : at + 1]))
    return np.array(found)


def judged(faster: np.ndarray) -> str:
    """The verdict on a factor: about twice as fast, a little faster, or not faster."""
    return REPRODUCED if faster.mean() >= 1.8 else PARTLY if faster.mean() >= FASTER else NOT


def sooner(first: np.ndarray, T: float) -> str:
    """The round in which K-Vib has the last loss of the others, in words."""
    if not np.isfinite(first).all():
        return f"K-Vib gets there with {np.isfinite(first).sum()} of {len(first)} seeds"
    return f"K-Vib is there after {spread(first, '.0f')}, {spread(T / first, '.2f')} times as fast"


def lowest(losses: dict[str, np.ndarray]) -> str:
    """The sampler whose mean loss over seeds is the smallest."""
    best = min(losses, key=lambda label: float(losses[label].mean()))
    if not np.isfinite(losses[best]).all():
        raise MissingResultsError("none of the others finished")
    return best


def twice(given: list[Results]) -> Finding:
    """Judge how much sooner K-Vib has the last loss of the best other sampler."""
    [results] = given
    theirs, ours = ends(results, THEIRS), ends(results, ["K-Vib"])
    best = lowest(theirs)
    T = int(results.measured("train_loss")[-1])
    first = reached(results, "K-Vib", theirs[best])
    return Finding(
        f"training loss after {T} rounds: {listed(theirs | ours, '.3f', 'finished')} "
        f"({count(ours)})",
        judged(T / first),
        f"the best of the others is {best}; {sooner(first, T)}",
    )


def sooner_than_all(given: list[Results]) -> Finding:
    """Judge when by size and our own samplers have the last loss of the paper's best sampler."""
    measured, faster = [], []
    for tail, results in zip(TAILS, given, strict=True):
        T = int(results.measured("train_loss")[-1])
        theirs = ends(results, (*THEIRS, "K-Vib"))
        best = lowest(theirs)
        first = {label: reached(results, label, theirs[best]) for label in OURS}
        measured.append(f"σ = {tail}, {best} after {T}: {listed(first, '.0f')}")
        if all(T / rounds.mean() >= FASTER for rounds in first.values()):
            faster.append(str(tail))
    return Finding(
        f"rounds to the last loss of the best of the others, {'; '.join(measured)}",
        f"faster with σ = {', '.join(faster)}" if faster else "not faster",
        f"faster means that all three are faster by a factor of {FASTER:g}. Rounds are "
        f"interpolated between measurements every {given[0].experiment['train_loss_every']}; one "
        f"learning rate for all, uniform's best with σ = 2; {seeds_of(given)}. All three draw "
        "larger clients, so a round takes longer",
    )


def marginal(given: list[Results]) -> Finding:
    """Judge whether the paper's baselines end below uniform."""
    measured, better = [], []
    for results in given:
        all_ends = late(results, BASELINES)
        ratios = {label: over(all_ends[label], all_ends["uniform"]) for label in BASELINES[1:]}
        measured.append(f"{results.experiment['name']}: {listed(ratios, '.2f', 'finished')}")
        better += [float(ratio.mean()) < 0.9 for ratio in ratios.values()]
    return Finding(
        f"mean of the last {LATE} training losses over uniform's, {'; '.join(measured)}",
        NOT if all(better) else PARTLY if any(better) else REPRODUCED,
        conditions(given),
    )


def grows(given: list[Results]) -> Finding:
    """Judge K-Vib's last training losses over uniform's, σ = 1, 2, 3.

    The verdict is `PARTLY` at most where uniform learned nothing: the ratio then shows its learning
    rate, not differences between clients.
    """
    ratios = []
    for results in given:
        last = late(results, ("K-Vib", "uniform"))
        ratios.append(over(last["K-Vib"], last["uniform"]))
    first, second, third = (float(ratio.mean()) for ratio in ratios)
    measured = "; ".join(
        f"σ = {tail}: {ranged(ratio)}" for tail, ratio in zip(TAILS, ratios, strict=True)
    )
    better = third < 0.9
    falls = first > second > third and not at_chance(given)
    return Finding(
        f"mean of the last {LATE} training losses over uniform's: {measured}",
        REPRODUCED if better and falls else PARTLY if better else NOT,
        conditions(given),
    )


def own_rates(given: list[Results]) -> Finding:
    """Judge when K-Vib has uniform's last loss, each at its own best learning rate."""
    [results] = given
    last = int(results.measured("loss")[-1])
    labels = ("uniform", "K-Vib")
    known = {label: by_rate(results, label, last) for label in labels}
    best = {label: min(known[label], key=lambda r: known[label][r].mean()) for label in labels}
    target = known["uniform"][best["uniform"]]
    first = reached(results.where(learning_rate=best["K-Vib"]), "K-Vib", target, "loss")
    measured = []
    for label in labels:
        each = (spread(losses, ".3f", "finished") for losses in known[label].values())
        measured.append(f"{label} {', '.join(each)}")
    rates = ", ".join(f"{rate:g}" for rate in known["uniform"])
    return Finding(
        f"test loss after {last} rounds with η = {rates}: {'; '.join(measured)} "
        f"({count(known['uniform'])})",
        judged(last / first),
        f"uniform is best with η = {best['uniform']:g}; with η = {best['K-Vib']:g} "
        f"{sooner(first, last)}",
    )


def by_rate(results: Results, label: str, last: int) -> dict[float, np.ndarray]:
    """The last test loss with every learning rate, [seeds]."""
    rates = sorted(results.experiment["local"]["learning_rates"])
    return {
        rate: total(results.where(learning_rate=rate), label, "loss", since=last) for rate in rates
    }


@dataclass(frozen=True)
class Task:
    """A text experiment: its name, the paper's corpus, and model and data here and in the paper."""

    name: str
    corpus: str
    model: str
    samples: str
    published: str
    where: str
    """The place in the paper, and the corpus that stands in for the paper's."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The experiments, one for every tail."""
        return tuple(f"text-{self.name}-{tail}" for tail in TAILS)

    def settings(self, results: Results) -> str:
        """The settings of our runs, and those that were published."""
        local, T = results.experiment["local"], int(results.measured("train_loss")[-1])
        rates = ", ".join(f"{rate:g}" for rate in local["learning_rates"])
        return (
            f"{self.corpus} as run here: {self.model}, {sum(results.about['sizes']):,} "
            f"{self.samples}, η = {rates}, batch {local['batch_size']}, {T} rounds. As published: "
            f"{self.published}, η = 1e-4, batch 16, 300 rounds"
        )


def settings(results: Path) -> list[str]:
    """The settings of every text experiment that has results, here and as published."""
    known = [task for task in TASKS if not tables.missing(task.needs, results)]
    return [task.settings(compared(results / task.needs[0])) for task in known]


def seen(judge: Callable[[list[Results]], Finding]) -> Callable[[list[Results]], Finding]:
    """A judge whose findings are about another experiment than the paper's."""

    def other(given: list[Results]) -> Finding:
        found = judge(given)
        return Finding(found.measured, UNTESTED, f"seen here: {found.verdict}; {found.reason}")

    return other


def of_task(task: Task) -> tuple[Claim, ...]:
    """The claims about one task."""
    needs, every = task.needs, reproduce(f"text-{task.name}", gpu=True)
    return (
        *(
            Claim(f"2× faster than the baselines with σ = {tail}", task.where, (need,),
                  seen(twice), reproduce(need, gpu=True), compared)
            for tail, need in zip(TAILS, needs, strict=True)
        ),
        Claim("(K-Vib twice as fast with σ = 2, both at their own best learning rate, few rounds)",
              f"{task.where}; not in the paper", (f"text-rates-{task.name}",),
              seen(own_rates),
              f"kvib run experiments/pilots/text-rates-{task.name}.toml --device cuda"),
        Claim("(when by size and our own samplers have the last loss of the best of all these)",
              f"{task.where}; not in the paper", needs, sooner_than_all, every),
        Claim("baselines improve on uniform a little at most, and some are worse", task.where,
              needs, seen(marginal), every, compared),
        Claim("K-Vib's gain grows with the differences between clients", task.where, needs,
              seen(grows), every, compared),
    )  # fmt: skip


TASKS = (
    Task(
        name="agnews",
        corpus="AG News",
        model="MiniLM of 22.6 M parameters",
        samples="documents",
        published="DistilBERT of 67 M parameters, 119,999 documents",
        where="AG News",
    ),
    Task(
        name="newswire",
        corpus="CC-News",
        model="Pythia-70M",
        samples="blocks of Reuters-21578 and AG News",
        published="Pythia-70M, 708,241 articles",
        where="CC-News; here a newswire of Reuters-21578 and AG News",
    ),
)
CLAIMS = tuple(claim for task in TASKS for claim in of_task(task))

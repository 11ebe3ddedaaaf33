"""What the paper claims of its two text experiments, and what the result files say about it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvib.lab import tables
from kvib.lab.claim import BASELINES, NOT, PARTLY, REPRODUCED, Claim, Finding
from kvib.lab.seeds import count, listed, over, ranged, spread, total
from kvib.lab.tables import AbsentError, Results

THEIRS = (*BASELINES, "FedAvg (self-normalised)")
TAILS = (1, 2, 3)


def compared(path: Path) -> Results:
    """What the claims are about; our own samplers may be missing."""
    return tables.load(path).of(*THEIRS, "K-Vib").paired()


def ends(results: Results, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Training loss when it was last measured, [seeds]; infinite for a run that ended early."""
    last = int(results.measured("train_loss")[-1])
    return {label: total(results, label, "train_loss", since=last) for label in labels}


def reached(results: Results, label: str, targets: np.ndarray) -> np.ndarray:
    """Rounds until the training loss, straight between measurements, is at the target of each
    seed, [seeds]; infinite where it never is."""
    rows = results.where(label=label).table.drop_nulls("train_loss").sort("round")
    found = []
    for target, (_, run) in zip(targets, rows.group_by("seed", maintain_order=True), strict=True):
        rounds, losses = (run[name].to_numpy().astype(float) for name in ("round", "train_loss"))
        below = np.flatnonzero(losses <= target)
        if not len(below):
            found.append(np.inf)
            continue
        at = max(int(below[0]), 1)
        found.append(np.interp(-target, -losses[at - 1 : at + 1], rounds[at - 1 : at + 1]))
    return np.array(found)


def twice(given: list[Results]) -> Finding:
    """How much sooner K-Vib is where the best of the others ends."""
    [results] = given
    theirs = ends(results, THEIRS)
    ours = ends(results, ["K-Vib"])
    best = min(theirs, key=lambda label: float(theirs[label].mean()))
    if not np.isfinite(theirs[best]).all():
        raise AbsentError("none of the others finished")
    T = float(results.measured("train_loss")[-1])
    first = reached(results, "K-Vib", theirs[best])
    faster = float((T / first).mean())
    return Finding(
        f"training loss after {T:.0f} rounds: {listed(theirs | ours, '.3f', 'finished')}; K-Vib is "
        f"where the best of the others, {best}, ends after {spread(first, '.0f')} rounds "
        f"({count(ours)})",
        REPRODUCED if faster >= 1.8 else PARTLY if faster >= 1.2 else NOT,
        f"{spread(T / first, '.2f')} times as fast; between measurements the loss is taken to fall "
        "in a straight line",
    )


def marginal(given: list[Results]) -> Finding:
    """Whether the paper's baselines end below uniform."""
    told, better = [], []
    for results in given:
        all_ends = ends(results, BASELINES)
        ratios = {label: over(all_ends[label], all_ends["uniform"]) for label in BASELINES[1:]}
        told.append(f"{results.experiment['name']}: {listed(ratios, '.2f', 'finished')}")
        better += [float(ratio.mean()) < 0.9 for ratio in ratios.values()]
    return Finding(
        f"last training loss over uniform's, {'; '.join(told)}",
        NOT if all(better) else PARTLY if any(better) else REPRODUCED,
    )


def grows(given: list[Results]) -> Finding:
    """K-Vib's last training loss over uniform's, σ = 1, 2, 3."""
    ratios = []
    for results in given:
        last = ends(results, ("K-Vib", "uniform"))
        ratios.append(over(last["K-Vib"], last["uniform"]))
    first, second, third = (float(ratio.mean()) for ratio in ratios)
    told = "; ".join(
        f"σ = {tail}: {ranged(ratio)}" for tail, ratio in zip(TAILS, ratios, strict=True)
    )
    better = third < 0.9
    return Finding(
        f"last training loss over uniform's: {told}",
        REPRODUCED if better and first > second > third else PARTLY if better else NOT,
    )


def of_task(task: str, name: str) -> tuple[Claim, ...]:
    """The same claims of both tasks."""
    needs = tuple(f"text-{task}-{tail}" for tail in TAILS)
    command = "kvib reproduce {} --device cuda"
    every = command.format(f"text-{task}")
    return (
        *(
            Claim(f"2× faster than the baselines with σ = {tail}", name, (need,), twice,
                  command.format(need), compared)
            for tail, need in zip(TAILS, needs, strict=True)
        ),
        Claim("baselines improve on uniform a little at most, some are worse", name, needs,
              marginal, every, compared),
        Claim("K-Vib's gain goes with the differences between clients", name, needs, grows,
              every, compared),
    )  # fmt: skip


CLAIMS = (*of_task("agnews", "AG News"), *of_task("newswire", "CC-News"))

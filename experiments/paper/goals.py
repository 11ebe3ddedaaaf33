"""The goals for kvib's own samplers, each judged from result files."""

from collections.abc import Callable

import numpy as np
import polars as pl

from kvib.lab.seeds import ranged, rounds_to, spread, total
from kvib.lab.tables import MissingResultsError, Results
from paper import variances
from paper.claim import Claim, Finding
from paper.claims import edge, every
from paper.comparing import each, over
from paper.rates import TARGET, at_best_rates, lost_at_rates
from paper.variances import EXACT, LEARNING, Variances

REACHED, ON_AVERAGE, NOT_REACHED = "reached", "on average, not on every seed", "not reached"


def judged(seeds: np.ndarray, average: bool) -> str:
    """The verdict on a goal: reached on every seed, on average, or not."""
    return REACHED if seeds.all() else ON_AVERAGE if average else NOT_REACHED


def at_most(
    limit: float, column: str, ours: str, theirs: str, budget: float | None = None
) -> Callable[[list[Results]], Finding]:
    """Judge whether a sum over the run is at most `limit` times another sampler's, by seed."""

    def judge(given: list[Results]) -> Finding:
        [results] = given
        if budget is not None:
            results = results.where(budget=budget)
        ratios = over(total(results, ours, column), total(results, theirs, column))
        return Finding(
            f"{spread(ratios)} (largest of {len(ratios)} seeds {ratios.max():.3g})",
            judged(ratios <= limit, ratios.mean() <= limit),
        )

    return judge


def at_every_budget(column: str, ours: str, theirs: str) -> Callable[[list[Results]], Finding]:
    """Judge whether a sum over the run is not above another sampler's at any K, by seed."""

    def judge(given: list[Results]) -> Finding:
        [results] = given
        clients, ratios, words = len(results.about["sizes"]), [], []
        for K in results.experiment["budgets"]:
            own, other = (total(results.where(budget=K), label, column) for label in (ours, theirs))
            if clients > K:
                ratios.append(over(own, other))
                words.append(f"K = {K:g}: {spread(ratios[-1])}")
            else:
                words.append(
                    f"K = {K:g}, all clients: {own.max():.1g} and {other.max():.1g} in all"
                )
        if not ratios:
            raise MissingResultsError("every budget draws everybody")
        return Finding(
            "; ".join(words),
            judged(np.concatenate(ratios) <= 1, max(r.mean() for r in ratios) <= 1),
            f"{len(ratios[0])} seeds; the largest ratio is {np.concatenate(ratios).max():.3g}",
        )

    return judge


def half_the_rounds(given: list[Results]) -> Finding:
    """Judge the rounds to training loss 1.35, by seed."""
    [results] = given
    ours = rounds_to(results, "recommended", "train_loss", 1.35)
    theirs = rounds_to(results, "K-Vib", "train_loss", 1.35)
    ratios = over(ours, theirs)
    oracle = rounds_to(results, "optimal", "train_loss", 1.35)
    return Finding(
        f"{spread(ours, '.0f')} rounds against {spread(theirs, '.0f')}: {ranged(ratios)} "
        f"({each(ratios)})",
        judged(ratios <= 0.5, ratios.mean() <= 0.5),
        f"in brackets an interval of 95 %; the loss was measured {every(results, 'train_loss')}. "
        f"The verdict depends on K-Vib's luck: its seeds need {theirs.min():.0f} to "
        f"{theirs.max():.0f} rounds, the oracle's {spread(oracle, '.0f')}",
    )


def calm(given: list[Results]) -> Finding:
    """Judge whether the guard cut off nothing."""
    [results] = given
    cuts = [float(np.sum(total(results, label, "cut"))) for label in GUARDED]
    return Finding(
        f"cut off over all runs: {sum(cuts):g}", REACHED if sum(cuts) == 0 else NOT_REACHED
    )


def nothing(_: Variances) -> str:
    """No remark."""
    return ""


def less_noise(
    way: str, limit: float, why: Callable[[Variances], str] = nothing
) -> Callable[[list[Variances]], Finding]:
    """Judge the mean ratio of a variance to that of independent draws over rounds 5 to 30."""

    def judge(given: list[Variances]) -> Finding:
        [measured] = given
        part = measured.between(5, 30)
        ratio = part.ratio(way)
        words, precision = f"{ratio.mean():.3f}", "exact"
        if way not in EXACT:
            jitter = np.diff(ratio).std() / np.sqrt(2)  # neighbouring rounds hardly differ
            words += f" ± {jitter / np.sqrt(len(ratio)):.3f}"
            draws = measured.about["options"]["draws"]
            precision = f"± is the error of {draws} Monte Carlo draws; one round has ± {jitter:.3f}"
        return Finding(
            words,
            REACHED if ratio.mean() <= limit else NOT_REACHED,
            "; ".join(filter(None, (f"{len(ratio)} rounds of one run", precision, why(part)))),
        )

    return judge


def little_to_save(part: Variances) -> str:
    """The share of the variance that a fixed size removes, in the first order of p."""
    share = part.values["full step"] / part.about["options"]["budget"] / part.values["independent"]
    return f"a fixed size saves about ‖D‖²/K, which is {share.mean():.0%} of the variance here"


WATCHING = "the memory only watches: the policy learns from ‖g‖, not from what the memory leaves"
"""A remark on results whose probabilities were made without the memory."""


def watching(_: Variances) -> str:
    """A remark on what the policy learned from."""
    return WATCHING


def both_alone(draws: str) -> Callable[[Variances], str]:
    """A remark on what two options would do together if neither weakened the other."""

    def why(part: Variances) -> str:
        alone = part.ratio(draws).mean() * part.ratio("difference").mean()
        return f"{draws} alone times difference alone is {alone:.2f}; {WATCHING}"

    return why


def never_worse(given: list[Variances]) -> Finding:
    """Judge whether no way to draw is above 1.05 of independent draws in any measured round."""
    [measured] = given
    worst = {way: float(measured.ratio(way).max()) for way in measured.ways}
    words = "; ".join(f"{way} {ratio:.3f}" for way, ratio in worst.items())
    return Finding(
        f"largest of {len(measured.rounds)} measured rounds: {words}",
        REACHED if max(worst.values()) <= 1.05 else NOT_REACHED,
        f"one run; includes the Monte Carlo error of one round; {WATCHING}"
        + (", except for “learning”" if set(LEARNING) & set(measured.ways) else ""),
    )


def never_worse_in_ten(way: str, why: str = "") -> Callable[[list[Variances]], Finding]:
    """Judge whether a memory is above 1.05 in no window of ten rounds."""

    def judge(given: list[Variances]) -> Finding:
        [measured] = given
        if (np.diff(measured.rounds) != 1).any():
            raise MissingResultsError("windows of ten rounds need every round")
        windows = measured.window(way, 10)
        return Finding(
            f"largest of {len(windows)} windows {windows.max():.3f}",
            REACHED if windows.max() <= 1.05 else NOT_REACHED,
            "; ".join(filter(None, ("one run; exact", why))),
        )

    return judge


OTHERS = (
    *("uniform", "uniform, without replacement", "FedAvg (self-normalised)"),
    *("Mabs", "Vrb", "Avare", "OSMD", "K-Vib"),
)


def fewer_rounds(ours: str, times: float) -> Callable[[list[Results]], Finding]:
    """Judge the rounds to 95 %, each sampler at its best rate, against the best other sampler."""

    def judge(given: list[Results]) -> Finding:
        [results] = given
        best = at_best_rates(results)
        first = {label: rounds_to(best, label, "accuracy", TARGET) for label in (ours, *OTHERS)}
        rival = min(OTHERS, key=lambda label: float(first[label].mean()))
        ratios = over(first[rival], first[ours])
        return Finding(
            f"{spread(first[ours], '.0f')} rounds; the best of the others, {rival}, "
            f"{spread(first[rival], '.0f')}: {ranged(ratios)} times ({each(ratios)})",
            judged(ratios >= times, ratios.mean() >= times),
            f"mean of {len(ratios)} seeds, in brackets its interval of 95 %; {edge(results, best)}",
        )

    return judge


def near_by_size(ours: str) -> Callable[[list[Results]], Finding]:
    """Judge whether a sampler needs at most 5 % more rounds than drawing by size."""

    def judge(given: list[Results]) -> Finding:
        [results] = given
        best = at_best_rates(results)
        mine, sized = (rounds_to(best, label, "accuracy", TARGET) for label in (ours, "by size"))
        ratios = over(mine, sized)
        return Finding(
            f"{spread(mine, '.0f')} rounds against {spread(sized, '.0f')}: {ranged(ratios)} "
            f"({each(ratios)})",
            judged(ratios <= 1.05, ratios.mean() <= 1.05),
            f"accuracy was measured {every(results, 'accuracy')}",
        )

    return judge


def no_divergence(ours: str) -> Callable[[list[Results]], Finding]:
    """Judge whether no run is lost at learning rates at which uniform loses none."""

    def judge(given: list[Results]) -> Finding:
        [results] = given
        lost = lost_at_rates(results)
        asked = [own for own, other in zip(lost[ours], lost["uniform"], strict=True) if other == 0]
        rates = ", ".join(f"{rate:g}" for rate in results.experiment["local"]["learning_rates"])
        listed = {label: ", ".join(map(str, many)) for label, many in lost.items()}
        others = [f"{label} {listed[label]}" for label in lost if label not in (ours, "uniform")]
        fired = results.table.filter(pl.col("label") == ours, pl.col("cut") > 0)
        return Finding(
            f"runs lost at rates {rates}: {ours} {listed[ours]}; uniform {listed['uniform']}",
            REACHED if sum(asked) == 0 else NOT_REACHED,
            f"{results.table['seed'].n_unique()} seeds each. A lost run ended early, or with less "
            f"than half of the best accuracy of all at that rate. {'; '.join(others)}. A guard "
            f"fired in {len(fired)} rounds of {ours}",
        )

    return judge


GUARDED = ("recommended", "recommended, remembering")


def _claim(says: str, experiment: str, judge: Callable[[list[Results]], Finding]) -> Claim:
    device = " --device cuda" if experiment.startswith("femnist") else ""
    command = f"kvib run {experiment}{device}"
    return Claim(says, "", (experiment,), judge, command)


def _drawn(says: str, task: str, judge: Callable[[list[Variances]], Finding]) -> Claim:
    command = f"python experiments/procedures.py {task} {OPTIONS[task]}"
    return Claim(says, "", (f"procedures-{task}",), judge, command, variances.load)


CNN = "--learning --learning-rate 0.05 --batch-size 20"
OPTIONS = {
    "synthetic": "--budget 10 --rounds 100 --draws 1000 --every 1 --learning",
    "femnist-400": f"--budget 20 --rounds 31 --draws 800 --every 2 {CNN}",
    "femnist-iid": f"--budget 10 --rounds 100 --draws 200 --every 1 {CNN}",
}

ALL = "Forecast, difference and"
LEARNS = "with a policy that learns from what the memory leaves"

CLAIMS = (
    _claim(
        "dynamic regret of Forecast at most 1/50 of K-Vib's, T = 500",
        "beyond-synthetic-500",
        at_most(1 / 50, "regret", "Forecast", "K-Vib"),
    ),
    _claim(
        "variance of Forecast at most 1.10 of the oracle's",
        "beyond-synthetic-500",
        at_most(1.10, "variance", "Forecast", "optimal"),
    ),
    *(
        _claim(
            f"Synthetic(1, 1), K = {K}: regret at most 1/20 of K-Vib's",
            "beyond-synthetic-1-1",
            at_most(1 / 20, "regret", "Forecast", "K-Vib", K),
        )
        for K in (10, 20)
    ),
    *(
        _claim(
            f"Synthetic(0, 0), K from 5 to all 100: {column} of {ours} not above K-Vib's at any K",
            "beyond-budgets",
            at_every_budget(column, ours, "K-Vib"),
        )
        for column, ours in (("regret", "Forecast"), ("variance", "recommended"))
    ),
    _claim(
        "equal weights, sizes known: regret at most 1/5 of K-Vib's",
        "beyond-flat",
        at_most(1 / 5, "regret", "Forecast", "K-Vib"),
    ),
    _claim(
        "nothing is known in advance: regret at most K-Vib's on every seed",
        "beyond-equal",
        at_most(1.0, "regret", "Forecast", "K-Vib"),
    ),
    _claim(
        "difference with Forecast: variance at most 1/4 of the memoryless oracle's",
        "beyond-synthetic",
        at_most(1 / 4, "variance", "difference", "optimal"),
    ),
    _claim(
        "pivotal draws: variance at most 1.05 of independent ones' on Synthetic",
        "beyond-synthetic",
        at_most(1.05, "variance", "Forecast, pivotal", "Forecast"),
    ),
    _claim(
        "balanced draws: variance at most 1.05 of independent ones' on Synthetic",
        "beyond-synthetic",
        at_most(1.05, "variance", "recommended", "Forecast"),
    ),
    _claim(
        "rounds to training loss 1.35 with the recommended combination: at most half of K-Vib's",
        "beyond-synthetic",
        half_the_rounds,
    ),
    _claim("the guard does nothing in these runs on Synthetic", "beyond-synthetic", calm),
    _drawn(
        "pivotal, balanced, with memory or both: never above 1.05 of independent draws, Synthetic",
        "synthetic",
        never_worse,
    ),
    *(
        _drawn(
            f"FEMNIST by writer, 400 writers, K = 20: {what} at most {limit:g} of independent "
            "draws, mean over rounds 5 to 30",
            "femnist-400",
            less_noise(way, limit, why),
        )
        for what, way, limit, why in (
            ("pivotal", "pivotal", 0.92, little_to_save),
            ("pivotal between neighbours on sketches", "neighbours", 0.75, nothing),
            ("balanced on sketches", "balanced", 0.75, nothing),
            ("difference with its β", "difference", 0.9, watching),
            *(
                row
                for draws in ("balanced", "neighbours")
                for row in (
                    (f"{ALL} {draws}", f"difference, {draws}", 0.6, both_alone(draws)),
                    (f"{ALL} {draws}, {LEARNS},", f"difference, {draws}, learning", 0.6, nothing),
                )
            ),
        )
    ),
    _drawn("same task: none of these above 1.05 in any round", "femnist-400", never_worse),
    *(
        _drawn(
            f"IID digits: {what} at most 1.05 of unbiased in any window of ten rounds",
            "femnist-iid",
            never_worse_in_ten(way, why),
        )
        for what, way, why in (
            ("difference", "difference", WATCHING),
            (f"difference, {LEARNS},", "difference, learning", ""),
        )
    ),
    *(
        _claim(
            f"FEMNIST v1, K = 20, each sampler at its own best learning rate: {label} at least 1.3 "
            "times fewer rounds to 95 % than the best of uniform (three forms), Mabs, Vrb, Avare, "
            "OSMD, K-Vib",
            "femnist-rates",
            fewer_rounds(label, 1.3),
        )
        for label in ("recommended", "Forecast")
    ),
    *(
        _claim(
            f"same runs: {label} within 5 % of by size or better",
            "femnist-rates",
            near_by_size(label),
        )
        for label in ("recommended", "Forecast")
    ),
    *(
        _claim(
            f"same runs: no divergence of {label} at learning rates where uniform converges",
            "femnist-rates",
            no_divergence(label),
        )
        for label in ("recommended", "Forecast")
    ),
)

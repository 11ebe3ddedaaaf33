"""What was asked of kvib's own samplers, judged from result files made here."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from kvib.lab.experiment import read

pl = pytest.importorskip("polars")
pytest.importorskip("matplotlib")

from kvib.lab import beyond, claims, goals, rates, tables, variances  # noqa: E402
from kvib.lab.goals import NOT_REACHED, REACHED  # noqa: E402
from kvib.lab.tables import AbsentError, Results  # noqa: E402
from test_lab_report import drawn_otherwise, made, plausible  # noqa: E402

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def loaded(folder, task="femnist-400", **given):
    drawn_otherwise(folder, task, **given)
    return variances.load(folder / f"procedures-{task}")


# Variances of every way to draw


def test_ratios_of_variances(tmp_path):
    found = loaded(tmp_path, pivotal=0.9)
    assert found.task == "femnist-400"
    assert found.ratio("pivotal") == pytest.approx(np.full(40, 0.9))
    assert found.window("pivotal", 10) == pytest.approx(np.full(31, 0.9))
    assert found.between(5, 30).rounds.tolist() == list(range(5, 31))
    with pytest.raises(AbsentError, match="no round of femnist-400 between 50 and 60"):
        found.between(50, 60)
    with pytest.raises(AbsentError, match="fewer than 41 rounds"):
        found.window("pivotal", 41)


def test_files_of_variances_that_cannot_be_read(tmp_path):
    path = tmp_path / "procedures-synthetic"
    with pytest.raises(
        AbsentError, match=r"make them with: python experiments/procedures\.py synth"
    ):
        variances.load(path)
    drawn_otherwise(tmp_path, "synthetic")
    about = json.loads(tables.file(path, "json").read_text())
    del about["rows"][3]["pivotal"]
    for content in (about, {**about, "rows": 3}, {"format": 1}):
        tables.file(path, "json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="procedures-synthetic are not whole results"):
            variances.load(path)


def test_less_noise(tmp_path):
    found = loaded(tmp_path, balanced=0.74, difference=0.8)
    finding = goals.less_noise("balanced", 0.75)([found])
    assert (finding.measured, finding.verdict) == ("0.740 ± 0.000", REACHED)
    assert "800 Monte Carlo draws" in finding.reason
    assert goals.less_noise("balanced", 0.73)([found]).verdict == NOT_REACHED
    finding = goals.less_noise("difference", 0.9)([found])  # a closed form: nothing to doubt
    assert (finding.measured, finding.reason) == ("0.800", "one run; exact")
    assert "10% of the variance" in goals.little_to_save(found)  # 2 / 20
    assert "0.59" in goals.both_alone(found)


def test_never_worse(tmp_path):
    assert goals.never_worse([loaded(tmp_path)]).verdict == REACHED
    assert goals.never_worse([loaded(tmp_path, pivotal=1.06)]).verdict == NOT_REACHED
    assert goals.never_worse_in_ten([loaded(tmp_path)]).verdict == REACHED
    assert goals.never_worse_in_ten([loaded(tmp_path, difference=1.06)]).verdict == NOT_REACHED
    found = loaded(tmp_path)
    with pytest.raises(AbsentError, match="every round"):
        goals.never_worse_in_ten([variances.Variances(2 * found.rounds, found.values, {})])


# Rounds at the best learning rate


RATES = read(ROOT / "experiments/femnist-rates.toml")


def accurate(first, *, lost=()):
    """Results in which labels reach 0.96 at these rounds with rate 0.1, much later with 0.05;
    others at 100. Runs of (label, rate, seed) fall back to 0.1 at the end."""
    t = np.arange(0, RATES.rounds, 5)
    parts = []
    for run in RATES.runs():
        label, rate = run.sampler.label, run.learning_rate
        at = first.get(label, 100) + (50 if rate == 0.05 else 0)
        accuracy = np.where(t >= at, 0.96 if rate == 0.1 else 0.955, 0.5)
        if (label, rate, run.seed) in lost:
            accuracy[-3:] = 0.1
        parts.append(
            pl.DataFrame({"round": t.astype(np.int32), "accuracy": accuracy}).with_columns(
                pl.lit(label).alias("label"),
                pl.lit(rate).alias("learning_rate"),
                pl.lit(run.seed).alias("seed"),
                pl.lit(0.0).alias("cut"),
            )
        )
    return Results(pl.concat(parts), {"experiment": asdict(RATES)})


def test_fewer_rounds():
    found = accurate({"recommended": 60, "Vrb": 80, "by size": 60})
    finding = goals.fewer_rounds("recommended", 1.3)([found])
    assert "the best of the others, Vrb, 80 ± 0: 1.33 (1.33 to 1.33) times" in finding.measured
    assert finding.verdict == REACHED
    assert goals.fewer_rounds("recommended", 1.4)([found]).verdict == NOT_REACHED
    assert "largest is the best for all but nobody" in finding.reason


def test_near_by_size():
    for ours, verdict in ((60, REACHED), (65, NOT_REACHED), (50, REACHED)):
        found = accurate({"recommended": ours, "by size": 60})
        assert goals.near_by_size("recommended")([found]).verdict == verdict


def test_divergence_is_also_a_fall_without_a_word():
    finding = goals.no_divergence([accurate({}, lost=[("Mabs", 0.1, 2)])])
    assert finding.verdict == REACHED
    assert "0 of 12 runs of Forecast and recommended" in finding.measured
    assert "Mabs (rate 0.1, seed 2)" in finding.measured
    ours = ("Forecast", 0.1, 0)
    assert goals.no_divergence([accurate({}, lost=[ours])]).verdict == NOT_REACHED
    both = [ours, ("uniform", 0.1, 1)]  # nothing is asked where uniform diverges too
    assert goals.no_divergence([accurate({}, lost=both)]).verdict == REACHED


def test_divergence_is_also_an_early_end():
    found = accurate({})
    gone = (pl.col("label") == "recommended") & (pl.col("seed") == 1) & (pl.col("round") > 50)
    finding = goals.no_divergence([Results(found.table.filter(~gone), found.about)])
    assert finding.verdict == NOT_REACHED
    assert "2 of 12 runs" in finding.measured


# The pages


def test_figures_in_choosing():
    """They are those of the committed results."""
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    long, short, plain, images, runs = (
        claims.paired(RESULTS / f"{name}")
        if name != "beyond-femnist-400"
        else tables.load(RESULTS / name)
        for name in (
            "beyond-synthetic-500",
            "beyond-synthetic",
            "synthetic",
            "beyond-femnist-400",
            "femnist-rates",
        )
    )
    policy, procedure, memory = (
        claims.over(claims.total(a, ours, "variance"), claims.total(b, theirs, "variance")).mean()
        for a, ours, b, theirs in (
            (long, "Forecast", plain, "uniform"),
            (short, "recommended", short, "Forecast"),
            (short, "difference", short, "Forecast"),
        )
    )
    assert f"(five seeds) | {policy:.2f} | {procedure:.2f} | {memory:.2f} |" in text
    at_20 = Results(images.table.filter(pl.col("budget") == 20), images.about)
    policy = claims.total(at_20, "Forecast", "variance") / claims.total(
        at_20, "uniform", "variance"
    )
    writers = variances.load(RESULTS / "procedures-femnist-400").between(5, 30)
    procedure, memory, both, pivotal = (
        writers.ratio(way).mean()
        for way in ("balanced", "difference", "difference, balanced", "pivotal")
    )
    assert f"all (one run) | {policy[0]:.2f} | {procedure:.2f} | {memory:.2f} |" in text
    assert f"writers are left with {both:.2f}," in text
    assert f"(pivotal) takes {1 - pivotal:.0%} there".replace("%", " %") in text
    digits = variances.load(RESULTS / "procedures-femnist-iid")
    procedure, memory = (digits.window(way, 100)[0] for way in ("balanced", "difference"))
    assert f"K = 10 (one run) | – | {procedure:.2f} | {memory:.2f} |" in text
    best = rates.at_best_rates(runs)
    ours, alone, size, rival = (
        claims.rounds_to(best, label, "accuracy", rates.TARGET).mean()
        for label in ("recommended", "Forecast", "by size", "Avare")
    )
    assert f"{ours:.0f} rounds to 95 % with `recommended`, {alone:.0f} with `Forecast`" in text
    assert f"{size:.0f} with `BySize`, {rival:.0f} with Avare" in text
    ends = [beyond._late(at_20, label, "accuracy") for label in at_20.labels]
    assert f"within {max(ends) - min(ends):.3f} of each other" in text


def test_every_goal_is_judged_or_open(tmp_path):
    text = beyond.page(tmp_path)
    assert text.count("| no results yet | **open** |") == len(goals.CLAIMS)
    for name in beyond.FEDERATIONS:
        assert f"No results yet of `experiments/{name}.toml`." in text
    for claim in goals.CLAIMS:
        for need in claim.needs:
            if need.startswith("procedures-"):
                drawn_otherwise(tmp_path, need.removeprefix("procedures-"))
            else:
                given = read(ROOT / f"experiments/{need}.toml")
                zero = pl.lit(0.0).alias("cut")
                made(tmp_path, given, plausible(given, best=0.99).with_columns(zero))
    text = beyond.page(tmp_path)
    assert "**open**" not in text
    assert "nan" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {6}


def test_the_table_of_a_federation(tmp_path):
    given = read(ROOT / "experiments/beyond-femnist-400.toml")
    some = pl.col("budget") < 100
    unknown = pl.when(pl.col("label") == "recommended").then(None).otherwise(pl.col("variance"))
    table = plausible(given).filter(some).with_columns(unknown.alias("variance"))
    made(tmp_path, given, table)
    text = beyond.federation(tables.load(tmp_path / given.name))
    rows = text.splitlines()[2:]
    assert len(rows) == 2 * len(given.samplers)
    assert rows[1].startswith("| 5 | K-Vib | 1.10 | 1.00 |")  # 1.1 of the first, made so
    assert rows[5].startswith("| 5 | recommended | – | 1.36 |")


def test_an_earlier_floor_is_told(tmp_path):
    drawn_otherwise(tmp_path, "synthetic")
    assert "earlier floor" not in beyond.page(tmp_path)
    drawn_otherwise(tmp_path, "femnist-iid", commit="35fab94")
    text = beyond.page(tmp_path)
    assert "## An earlier floor" in text
    assert "In the rows of procedures-femnist-iid it is" in text

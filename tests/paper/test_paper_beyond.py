"""What was asked of kvib's own samplers, judged from result files made here."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest

from kvib.lab.files import find
from places import ROOT

pl = pytest.importorskip("polars")
pytest.importorskip("matplotlib")

from paper_results import drawn_otherwise, made, plausible  # noqa: E402

from kvib.lab import tables  # noqa: E402
from kvib.lab.tables import MissingResultsError, Results  # noqa: E402
from paper import beyond, goals, plots, variances  # noqa: E402
from paper.goals import NOT_REACHED, ON_AVERAGE, REACHED  # noqa: E402

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
    with pytest.raises(MissingResultsError, match="no round of femnist-400 between 50 and 60"):
        found.between(50, 60)
    with pytest.raises(MissingResultsError, match="fewer than 41 rounds"):
        found.window("pivotal", 41)


def test_files_of_variances_that_cannot_be_read(tmp_path):
    path = tmp_path / "procedures-synthetic"
    with pytest.raises(
        MissingResultsError, match=r"make them with: python experiments/procedures\.py synth"
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
    assert (finding.measured, finding.reason) == ("0.800", "26 rounds of one run; exact")
    assert "10% of the variance" in goals.little_to_save(found)  # 2 / 20
    assert "0.59" in goals.both_alone("balanced")(found)


def test_never_worse(tmp_path):
    assert goals.never_worse([loaded(tmp_path)]).verdict == REACHED
    assert goals.never_worse([loaded(tmp_path, pivotal=1.06)]).verdict == NOT_REACHED
    in_ten = goals.never_worse_in_ten("difference")
    assert in_ten([loaded(tmp_path)]).verdict == REACHED
    assert in_ten([loaded(tmp_path, difference=1.06)]).verdict == NOT_REACHED
    found = loaded(tmp_path)
    with pytest.raises(MissingResultsError, match="every round"):
        in_ten([variances.Variances(2 * found.rounds, found.values, {})])


def test_a_memory_that_only_watches_says_so(tmp_path):
    """Rows of a policy that learns from what it leaves are open until they are measured."""
    watched = loaded(tmp_path, learning=False)
    assert watched.ways == (*variances.DRAWS, *variances.MEMORY)
    for way in variances.LEARNING:
        for ask in (watched.ratio, lambda way: watched.window(way, 10)):
            with pytest.raises(
                MissingResultsError, match=f"hold no {way}; measure again, with --learning"
            ):
                ask(way)
    assert goals.never_worse([watched]).reason.endswith(goals.WATCHING)
    both = loaded(tmp_path)
    assert goals.never_worse([both]).reason.endswith("except for “learning”")
    assert goals.less_noise("difference, balanced, learning", 0.5)([both]).verdict == REACHED


def test_a_way_has_one_colour_in_all_panels(tmp_path):
    """Also where an older file lacks some."""
    new = loaded(tmp_path)
    old = variances.Variances(
        new.rounds, {k: v for k, v in new.values.items() if k != "neighbours"}, new.about
    )
    drawn = plots.ways_to_draw([old, new])
    shades = [{line.get_label(): line.get_color() for line in a.lines} for a in drawn.axes]
    for way in variances.WAYS:
        assert shades[0].get(way, shades[1][way]) == shades[1][way]
    [legend] = drawn.legends
    assert {text.get_text() for text in legend.get_texts()} == set(variances.WAYS)


# Rounds at the best learning rate


RATES = find("femnist-rates", ROOT / "experiments")


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
                pl.lit(run.budget).alias("budget"),
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
    lucky = Results(
        found.table.with_columns(
            pl.when(pl.col("label") == "Vrb", pl.col("seed") == 0, pl.col("round") >= 65)
            .then(pl.max_horizontal("accuracy", pl.lit(0.96)))
            .otherwise("accuracy")
            .alias("accuracy")
        ),
        found.about,
    )
    finding = goals.fewer_rounds("recommended", 1.2)([lucky])
    assert "(seeds: 1.08, 1.33, 1.33)" in finding.measured
    assert finding.verdict == ON_AVERAGE
    assert "of the rates 0.05, 0.1, 0.2 the best is 0.1 for most" in finding.reason


def test_near_by_size():
    for ours, verdict in ((60, REACHED), (65, NOT_REACHED), (50, REACHED)):
        found = accurate({"recommended": ours, "by size": 60})
        assert goals.near_by_size("recommended")([found]).verdict == verdict


def test_divergence_is_also_a_fall_without_a_word():
    judge = goals.no_divergence("Forecast")
    finding = judge([accurate({}, lost=[("Mabs", 0.1, 2)])])
    assert finding.verdict == REACHED
    assert (
        finding.measured == "runs lost at rates 0.05, 0.1, 0.2: Forecast 0, 0, 0; uniform 0, 0, 0"
    )
    assert "; Mabs 0, 1, 0;" in finding.reason
    ours = ("Forecast", 0.1, 0)
    assert judge([accurate({}, lost=[ours])]).verdict == NOT_REACHED
    assert goals.no_divergence("recommended")([accurate({}, lost=[ours])]).verdict == REACHED
    both = [ours, ("uniform", 0.1, 1)]  # nothing is asked where uniform diverges too
    assert judge([accurate({}, lost=both)]).verdict == REACHED


def test_divergence_is_also_an_early_end():
    found = accurate({})
    for last in (50, -1):  # in the first round there is nothing to record
        gone = (pl.col("label") == "recommended") & (pl.col("seed") == 1) & (pl.col("round") > last)
        left = Results(found.table.filter(~gone), found.about)
        finding = goals.no_divergence("recommended")([left])
        assert finding.verdict == NOT_REACHED
        assert "recommended 1, 1, 1; uniform 0, 0, 0" in finding.measured


# The pages


def test_every_goal_is_judged_or_open(tmp_path):
    text = beyond.page(tmp_path)
    assert text.count(" yet | open |") == len(goals.CLAIMS)
    for name in beyond.FEDERATIONS:
        assert f"No results yet of `{name}`." in text
    for claim in goals.CLAIMS:
        for need in claim.needs:
            if need.startswith("procedures-"):
                drawn_otherwise(tmp_path, need.removeprefix("procedures-"))
            else:
                given = find(need, ROOT / "experiments")
                zero = pl.lit(0.0).alias("cut")
                made(tmp_path, given, plausible(given, best=0.99).with_columns(zero))
    text = beyond.page(tmp_path)
    assert "| open |" not in text
    assert "nan" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {6}


def test_the_table_of_a_federation(tmp_path):
    given = find("beyond-femnist-400", ROOT / "experiments")
    some = pl.col("budget") < 100
    unknown = pl.when(pl.col("label") == "recommended").then(None).otherwise(pl.col("variance"))
    table = plausible(given).filter(some).with_columns(unknown.alias("variance"))
    made(tmp_path, given, table)
    text = beyond.federation(tables.load(tmp_path / given.name))
    rows = text.splitlines()[2:]
    assert len(rows) == 2 * len(given.samplers)
    assert rows[1].startswith("| 5 | K-Vib | 1.10 | 1.00 |")  # 1.1 of the first, made so
    assert rows[5].startswith("| 5 | recommended | – | 1.36 |")


def test_runs_that_were_lost_are_no_measure(tmp_path):
    """K-Vib forgets everything at the end: no ratio to it, or of it."""
    given = find("beyond-femnist-400", ROOT / "experiments")
    rounds = pl.col("round")
    gone = (pl.col("label") == "K-Vib") & (rounds > 0.8 * rounds.max())
    accuracy = pl.when(gone).then(0.01).otherwise(0.9)
    table = plausible(given).filter(pl.col("budget") == 5).with_columns(accuracy=accuracy)
    made(tmp_path, given, table)
    rows = beyond.federation(tables.load(tmp_path / given.name)).splitlines()[2:]
    assert rows[0].startswith("| 5 | uniform | 1.00 | – | 0.900 |")
    assert rows[1].startswith("| 5 | K-Vib | – | – | 0.010, lost |")


def test_the_table_of_what_was_played(tmp_path):
    given = find("beyond-femnist-400", ROOT / "experiments")
    few = pl.col("label").is_in(["K-Vib", "Forecast"]) & (pl.col("budget") == 5)
    made(tmp_path, given, plausible(given).filter(few))
    rows = beyond.federation(tables.load(tmp_path / given.name)).splitlines()[2:]
    assert [row.split(" | ")[1:4] for row in rows] == [
        ["K-Vib", "–", "1.00"],
        ["Forecast", "–", "1.18"],  # 1.3 and 1.1 of the first, made so
    ]


def test_notes_in_result_files_are_shown(tmp_path):
    """Once above the figures, for all that share one, and with every figure."""
    drawn_otherwise(tmp_path, "synthetic")
    assert "Note on procedures" not in beyond.page(tmp_path)
    for task in ("femnist-400", "femnist-iid"):
        drawn_otherwise(tmp_path, task, more={"note": "The floor was another."})
    text = beyond.page(tmp_path)
    assert (
        "\nNote on procedures-femnist-400, procedures-femnist-iid: The floor was another.\n" in text
    )
    assert text.count("\nNote: The floor was another.\n") == 2


# From few clients to all


def test_every_budget():
    given = find("beyond-budgets", ROOT / "experiments")
    found = Results(plausible(given), {"experiment": asdict(given), "sizes": [1] * 100})
    finding = goals.at_every_budget("regret", "K-Vib", "recommended")([found])
    assert finding.verdict == REACHED  # the first is the lowest, made so
    assert re.match("K = 5: 0.77.* K = 20: .* K = 50: .* K = 100, all clients: ", finding.measured)
    above = goals.at_every_budget("regret", "recommended", "K-Vib")([found])
    assert above.verdict == NOT_REACHED
    with pytest.raises(MissingResultsError, match="every budget draws everybody"):
        goals.at_every_budget("regret", "K-Vib", "Forecast")(
            [Results(found.table, {**found.about, "sizes": [1]})]
        )


def test_half_the_rounds_on_every_seed():
    columns = ["label", "budget", "learning_rate", "seed", "round", "train_loss"]
    first = {"recommended": (4, 4), "K-Vib": (20, 6), "optimal": (4, 4)}
    rows = [
        (label, 10.0, 0.1, seed, t, 1.0 if t >= at else 2.0)
        for label, ats in first.items()
        for seed, at in enumerate(ats)
        for t in range(30)
    ]
    about = {"name": "x", "train_loss_every": 1}
    found = Results(pl.DataFrame(rows, schema=columns, orient="row"), {"experiment": about})
    finding = goals.half_the_rounds([found])
    assert "(seeds: 0.20, 0.67)" in finding.measured
    assert finding.verdict == ON_AVERAGE
    assert "measured every round" in finding.reason
    assert goals.half_the_rounds([found.where(seed=0)]).verdict == REACHED
    assert goals.half_the_rounds([found.where(seed=1)]).verdict == NOT_REACHED
